#!/usr/bin/env python3
"""Runs the tests that need an NVIDIA GPU and says how many passed and how many were skipped, and why.

    scripts/test_gpu.py BUILD [--check memcheck|racecheck|synccheck|initcheck] [--filter GTEST_FILTER]

Without a GPU every test is skipped and the exit code is 0; otherwise it is 1 when a test failed, or when
compute-sanitizer (--check) found something.
"""

import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

CUDA_TOOLS = "/usr/local/cuda/bin"


def sanitizer(tool):
    path = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=CUDA_TOOLS)
    if not path:
        sys.exit("test_gpu.py: compute-sanitizer is neither on the PATH nor in " + CUDA_TOOLS)
    # One test asks for more memory than there is: that is an error of the interface, and meant.
    return [path, "--tool", tool, "--error-exitcode", "1", "--report-api-errors", "no"]


def outcome(test):
    if test.get("failures"):
        return "failed"
    return "skipped" if test["result"] == "SKIPPED" else "passed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--check", choices=("memcheck", "racecheck", "synccheck", "initcheck"))
    parser.add_argument("--filter", default=os.environ.get("GTEST_FILTER", "*"))
    arguments = parser.parse_args()

    program = arguments.build / "bin" / "gpu_tests"
    if not program.exists():
        print("GPU tests: none, tandem was built without CUDA (no nvcc was found)")
        return 0
    source = pathlib.Path(__file__).resolve().parent.parent
    environment = dict(os.environ, TANDEM_SOURCE_DIR=str(source), TANDEM_BINARY=str(arguments.build / "bin" / "tandem"))
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [program.resolve(), "--gtest_brief=1", f"--gtest_filter={arguments.filter}", f"--gtest_output=json:{report}"]
        log = pathlib.Path(folder) / "log"
        with open(log, "w") as out:
            code = subprocess.run((sanitizer(arguments.check) if arguments.check else []) + command, env=environment,
                                  stdout=out, stderr=subprocess.STDOUT, check=False).returncode
        text = log.read_text(errors="replace")
        tests = []
        if report.exists():
            tests = [t for suite in json.loads(report.read_text())["testsuites"] for t in suite["testsuite"]]
    counts = collections.Counter(outcome(t) for t in tests)
    if code != 0 or not tests:
        print(text)
    reasons = {line.split(": ", 1)[1] for line in text.splitlines() if line.startswith("no device to test: ")}
    why = f" ({'; '.join(sorted(reasons))})" if reasons else ""
    print(f"GPU tests: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped{why}")
    return 0 if code == 0 and tests else 1


if __name__ == "__main__":
    sys.exit(main())
