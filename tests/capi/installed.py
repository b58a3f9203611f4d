#!/usr/bin/env python3
"""Installs the build into a temporary folder, moves it, and builds the example there with pkg-config as C99 without a
warning. Checks the library's name, its exports, and that the example completes a prompt."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def install(arguments, folder):
    """Installs under a prefix, moves the tree, and returns where it is then."""
    first, moved = folder / "first", folder / "moved"
    run(arguments.cmake, "--install", arguments.build, "--prefix", first)
    first.rename(moved)
    return moved


def check_exports(nm, library):
    names = [line.split()[-1].split("@")[0] for line in run(nm, "-D", "--defined-only", library).splitlines()]
    foreign = [n for n in names if not n.startswith("tandem_") and n != "TANDEM_0"]
    declared = run("grep", "-o", r"\btandem_[a-z_]*(", library.parent.parent / "include/tandem.h")
    declared = {line.rstrip("(") for line in declared.split()}
    missing = sorted(name for name in names if name.startswith("tandem_") and name not in declared)
    if foreign or missing or len(names) < 30:
        sys.exit(f"{library}: exports {foreign}; not in the header: {missing}; {len(names)} symbols in all")


def main():
    parser = argparse.ArgumentParser()
    for name in ("build", "cmake", "cc", "nm", "model", "sanitize"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    if shutil.which("pkg-config") is None:
        print("pkg-config is not there")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tree = install(arguments, folder)
        pc = next(tree.rglob("tandem.pc"))
        library = next(pc.parent.parent.glob("libtandem.so.*.*.*"))
        check_exports(arguments.nm, library)
        environment = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent)}
        flags = run("pkg-config", "--cflags", "--libs", "tandem", env=environment).split()
        if arguments.sanitize:
            flags.append("-fsanitize=" + arguments.sanitize)
        source = next(tree.rglob("example.c"))
        program = folder / "example"
        run(arguments.cc, "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", source, "-o", program, *flags)
        environment["LD_LIBRARY_PATH"] = str(library.parent)
        text = run(program, arguments.model, "Once upon a time", env=environment)
        if len(text) < 50:
            sys.exit(f"the example printed {text!r}")
        failed = subprocess.run([program, folder / "nothing.gguf", "x"], capture_output=True, text=True, env=environment)
        if failed.returncode != 5 or "nothing.gguf" not in failed.stderr:
            sys.exit(f"a missing model: exit code {failed.returncode}, {failed.stderr!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
