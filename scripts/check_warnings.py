#!/usr/bin/env python3
"""Parses every C++ source with other compilers, and fails on any warning or error: the tree builds without warnings with GCC 12,
clang 14 and clang 19.

    check_warnings.py BUILD COMPILER... [--only REGEX] [--jobs N]

BUILD is a configured folder: its compile_commands.json says which files there are, and their flags. Nothing is compiled, so it
takes minutes where a build takes half an hour: files with the same flags are parsed together, eight at a time, because headers
cost more than what includes them. Where eight files do not go together (they define the same name for themselves), each half of
them is tried. Warnings that only a code generator finds are not found.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

AT_ONCE = 8
NO_CODE = re.compile(r"-c|-g\d?|-O\d|-fsanitize.*|-fno-sanitize.*|-ffile-prefix-map.*")
GCC_ONLY = {"-Wno-maybe-uninitialized"}
CLANG_ONLY = ["-Wno-deprecated-declarations"]  # CMakeLists.txt says why


def flags_of(command, file):
    """The flags of a compile command without the compiler, the file, the output, and what only matters for code."""
    words = shlex.split(command)
    while words and not words[0].startswith("-"):  # ccache and the compiler
        words.pop(0)
    if "-o" in words:
        at = words.index("-o")
        del words[at : at + 2]
    return tuple(w for w in words if w != file and not NO_CODE.fullmatch(w))


def units_of(build, only):
    groups = collections.defaultdict(list)
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = entry["file"]
        if file.endswith(".cpp") and re.search(only, file) and pathlib.Path(file).exists():
            key = (os.path.dirname(file), flags_of(entry["command"], file), entry["directory"])
            groups[key].append(file)
    for (_, flags, directory), files in groups.items():
        for at in range(0, len(files), AT_ONCE):
            yield files[at : at + AT_ONCE], flags, directory


def parse(compiler, files, flags, directory):
    """What the compiler says of files, in as few runs as it takes."""
    if "clang" in os.path.basename(compiler):
        flags = [f for f in flags if f not in GCC_ONLY] + CLANG_ONLY
    command = [compiler, *flags, "-fsyntax-only"]
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as unit:
        unit.write("".join(f'#include "{file}"\n' for file in files))
        unit.flush()
        done = subprocess.run([*command, unit.name if len(files) > 1 else files[0]], cwd=directory, capture_output=True, text=True,
                              errors="replace", check=False)
    if done.returncode and len(files) > 1:
        half = len(files) // 2
        return parse(compiler, files[:half], flags, directory) + parse(compiler, files[half:], flags, directory)
    return done.stderr or ("failed\n" if done.returncode else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("compilers", nargs="+")
    parser.add_argument("--only", default="", help="parse files whose path has this (a regular expression)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    failed = False
    for compiler in options.compilers:
        if not shutil.which(compiler):
            sys.exit(f"check_warnings.py: {compiler} is not on this machine")
        units = list(units_of(options.build, options.only))
        n_files = sum(len(files) for files, _, _ in units)
        if not units:
            sys.exit(f"check_warnings.py: no file of {options.build} has {options.only!r}")
        n_warnings = 0
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for said in pool.map(lambda unit: parse(compiler, *unit), units):
                n_warnings += bool(said)
                print(said, end="", flush=True)
        print(f"{compiler}: {n_files} files, {n_warnings or 'no'} units with warnings or errors")
        failed = failed or n_warnings > 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
