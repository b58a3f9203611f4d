#!/usr/bin/env python3
"""Checks that the build with TANDEM_QUICK_BUILD compiles, in which each folder is one source: configures it below another
build and lets the compiler parse its sources. An error here is mostly a name that two files of a folder define.

    quick_build_test.py SOURCE_DIR BUILD_DIR CXX [NAME]    NAME: only sources whose name contains this, such as tools_hub
"""

import concurrent.futures
import json
import os
import pathlib
import resource
import shlex
import subprocess
import sys

MIN_SOURCES = 60  # fewer: the quick build is off


def configure(source, folder, compiler):
    command = ["cmake", "-S", source, "-B", folder, f"-DCMAKE_CXX_COMPILER={compiler}", "-DTANDEM_TESTS=ON",
               "-DTANDEM_CUDA=OFF", "-DTANDEM_QUICK_BUILD=ON"]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed:\n{result.stdout}")


def parse(entry):
    """What the compiler says of the source; empty if it has nothing to complain about."""
    words = shlex.split(entry["command"])
    output = words.index("-o")
    del words[output : output + 2]
    words.remove("-c")
    result = subprocess.run(words + ["-fsyntax-only", "-fdiagnostics-color=never"], cwd=entry["directory"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0 and not result.stdout:
        return f"{shlex.join(words)} ended with {result.returncode}\n"
    return result.stdout


def main():
    source, build, compiler = sys.argv[1:4]
    folder = os.path.join(build, "quick_build")
    configure(source, folder, compiler)
    commands = json.loads(pathlib.Path(folder, "compile_commands.json").read_text())
    sources = [c for c in commands if pathlib.Path(c["file"]).parent.name == "Unity"]
    if len(sources) < MIN_SOURCES:
        sys.exit(f"found {len(sources)} sources of whole folders, needed {MIN_SOURCES} or more")
    chosen = [c for c in sources if all(name in c["file"] for name in sys.argv[4:])]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for entry, text in zip(chosen, pool.map(parse, chosen)):
            if text:
                failed += 1
                print(f"{pathlib.Path(entry['file']).name}:\n{text}", flush=True)
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(chosen)} sources, {failed} with errors or warnings; {cpu.ru_utime + cpu.ru_stime:.0f} CPU seconds")
    sys.exit(1 if failed else 0)


main()
