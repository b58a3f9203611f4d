#!/usr/bin/env python3
"""Checks that objects compiled for an instruction set export only their own kernels.

The linker keeps one copy of a weak function (an inline function or a template instance) for the whole program. If that
copy comes from a file compiled for AVX-512, the program crashes on machines without it, in code that has nothing to do
with kernels. Therefore the objects of an instruction set may define no weak function, and nothing outside their
namespace. Weak constants are allowed: their bytes do not depend on compiler flags.

    scripts/check_isa_symbols.py [--nm NM] ISA OBJECT...    exit code 1 and a line for each symbol that leaks
    scripts/check_isa_symbols.py --self-test
"""

import argparse
import subprocess
import sys

WEAK_FUNCTION = "W"
WEAK_OBJECTS = "Vu"


def leaks(isa, listing):
    """One line for each leaking symbol in the output of `nm --defined-only --extern-only --format=posix`."""
    inside = f"_ZN6tandem3cpu{len(isa)}{isa}"  # Itanium mangling; functions and objects alike
    found = []
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) < 2 or len(fields[1]) != 1:
            continue  # file names and blank lines
        name, kind = fields[0], fields[1]
        if kind == WEAK_FUNCTION:
            found.append(f"{name}: weak function; make it static or always inlined")
        elif kind not in WEAK_OBJECTS and not name.startswith(inside):
            found.append(f"{name}: outside of namespace tandem::cpu::{isa}")
    return found


def check(nm, isa, objects):
    problems, functions = [], 0
    for path in objects:
        listing = subprocess.run([nm, "--defined-only", "--extern-only", "--format=posix", path], check=True,
                                 capture_output=True, text=True).stdout
        functions += sum(line.split()[1:2] == ["T"] for line in listing.splitlines())
        problems += [f"{path}: {problem}" for problem in leaks(isa, listing)]
    if functions == 0:
        problems.append(f"{isa}: found no functions in {len(objects)} objects")
    return problems


def self_test():
    cases = [
        ("_ZN6tandem3cpu4avx214linear_kernelsEv T 390 61", None),
        ("_ZN6tandem3cpu4avx25tableE R 0 40", None),
        ("_ZN6tandem12kvalues_iq4nlE u 0 10", None),
        ("DW.ref.__gxx_personality_v0 V 0 8", None),
        ("_ZSt3maxIfERKT_S2_S2_ W 0 1b", "weak function"),
        ("_ZN6tandem3cpu4avx24axpyIfEEvPT_ W 0 1b", "weak function"),
        ("_ZN6tandem3cpu6avx5126helperEv T 0 1b", "outside of namespace tandem::cpu::avx2"),
        ("_ZN6tandem9row_bytesENS_5DTypeEl T 0 1b", "outside of namespace tandem::cpu::avx2"),
        ("counter B 0 4", "outside of namespace tandem::cpu::avx2"),
        ("linear.cpp.o:", None),
    ]
    failures = []
    for line, expected in cases:
        found = leaks("avx2", line + "\n")
        if bool(found) != (expected is not None) or (expected and expected not in found[0]):
            failures.append(f"{line!r}: expected {expected!r}, found {found}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--self-test", action="store_true", help="check this script")
    parser.add_argument("--nm", default="nm", help="the nm to list symbols with")
    parser.add_argument("isa", nargs="?", help="the namespace of the objects")
    parser.add_argument("objects", nargs="*", help="object files compiled for it")
    args = parser.parse_args()
    if not args.self_test and not args.objects:
        parser.error("needed an instruction set and its objects")
    problems = self_test() if args.self_test else check(args.nm, args.isa, args.objects)
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
