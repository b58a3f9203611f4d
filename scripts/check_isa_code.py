#!/usr/bin/env python3
"""Checks that the objects of avx_vnni use AVX-VNNI and no AVX-512.

The instructions of both multiply alike and differ in their encoding: a compiler, or a helper of the wrong set, that takes
the one of AVX-512 makes a program that crashes on client CPUs. objdump writes {vex} before those of AVX-VNNI.

    scripts/check_isa_code.py [--objdump OBJDUMP] OBJECT...    exit code 1 and a line for each wrong instruction
    scripts/check_isa_code.py --self-test
"""

import argparse
import re
import subprocess
import sys

PRODUCT = re.compile(r"\bvpdp(?:bus|wss)ds?\b")
# Registers, masks and broadcasts that only AVX-512 has.
AVX512 = re.compile(r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])\b|%k[0-7]\b|\{1to\d+\}|\{evex\}")


def check_listing(listing):
    """The wrong instructions of what objdump printed, and how many products it has in the right encoding."""
    problems, n_products = [], 0
    for line in listing.splitlines():
        is_product = PRODUCT.search(line) is not None
        if AVX512.search(line) or (is_product and "{vex}" not in line):
            problems.append(f"AVX-512: {line.strip()}")
        elif is_product:
            n_products += 1
    return problems, n_products


def check(objdump, objects):
    problems, n_products = [], 0
    for path in objects:
        listing = subprocess.run([objdump, "-d", "--no-show-raw-insn", path], check=True, capture_output=True,
                                 text=True).stdout
        found, n = check_listing(listing)
        problems += [f"{path}: {problem}" for problem in found[:20]]
        n_products += n
    if n_products == 0:
        problems.append(f"found no product of AVX-VNNI in {len(objects)} objects")
    return problems


def self_test():
    cases = [
        ("  10:\t{vex} vpdpbusd %ymm1,%ymm2,%ymm3", 0, 1),
        ("  10:\t{vex} vpdpwssd (%rax),%ymm2,%ymm3", 0, 1),
        ("  10:\tvpdpbusd %ymm1,%ymm2,%ymm3", 1, 0),
        ("  10:\tvpdpbusd %zmm1,%zmm2,%zmm3", 1, 0),
        ("  10:\tvpaddd %ymm16,%ymm2,%ymm3", 1, 0),
        ("  10:\tvpaddd (%rax){1to8},%ymm2,%ymm3", 1, 0),
        ("  10:\tvpcmpeqd %ymm1,%ymm2,%k1", 1, 0),
        ("  10:\tvpaddd %ymm15,%ymm2,%ymm3", 0, 0),
        ("0000000000000000 <panel>:", 0, 0),
    ]
    failures = []
    for line, n_problems, n_products in cases:
        found, n = check_listing(line)
        if len(found) != n_problems or n != n_products:
            failures.append(f"{line!r}: found {found} and {n} products")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--self-test", action="store_true", help="check this script")
    parser.add_argument("--objdump", default="objdump", help="the objdump to disassemble with")
    parser.add_argument("objects", nargs="*", help="object files compiled for AVX-VNNI")
    args = parser.parse_args()
    if not args.self_test and not args.objects:
        parser.error("needed object files")
    problems = self_test() if args.self_test else check(args.objdump, args.objects)
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
