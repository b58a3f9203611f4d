#!/usr/bin/env python3
"""Runs the tests that need an NVIDIA GPU and reports how many passed, failed and were skipped, and why. Then, if
compute-sanitizer is installed, runs some of them under each of its tools.

    scripts/test_gpu.py BUILD [--check memcheck,racecheck,synccheck,initcheck|none] [--filter GTEST_FILTER]

--check runs only these tools, without the plain run; "none" runs no tool. Without a GPU every test is skipped and the
exit code is 0; otherwise it is 1 if a test failed or a tool found an error.
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
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Only memcheck runs whole models: the other tools slow them down most, and initcheck reports that decoding copies
# unwritten rows of a cache tile, which affect no result.
CHECKED = {tool: "GpuDevice.*:GpuRows.*:GpuAttention.*:GpuLinear.*" for tool in TOOLS}
CHECKED["memcheck"] += ":GpuSplit.StoriesAreTheGoldenOnes"


def sanitizer():
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=CUDA_TOOLS)


def outcome(test):
    if test.get("failures"):
        return "failed"
    return "skipped" if test["result"] == "SKIPPED" else "passed"


def run(program, gtest_filter, environment, tool=None):
    """The program's exit code, its output, and the counts of its tests."""
    # One test allocates more memory than there is on purpose, so do not report API errors.
    prefix = [sanitizer(), "--tool", tool, "--error-exitcode", "1", "--report-api-errors", "no"] if tool else []
    with tempfile.TemporaryDirectory() as folder:
        report, log = pathlib.Path(folder) / "report.json", pathlib.Path(folder) / "log"
        command = [program, "--gtest_brief=1", f"--gtest_filter={gtest_filter}", f"--gtest_output=json:{report}"]
        with open(log, "w") as out:
            code = subprocess.run(prefix + command, env=environment, stdout=out, stderr=subprocess.STDOUT,
                                  check=False).returncode
        tests = []
        if report.exists():
            tests = [t for suite in json.loads(report.read_text())["testsuites"] for t in suite["testsuite"]]
        return code, log.read_text(errors="replace"), collections.Counter(outcome(t) for t in tests)


def report(what, code, text, counts):
    """Prints one line, after a failure the whole output too. Returns whether all is well."""
    good = code == 0 and sum(counts.values()) > 0
    if not good:
        print(text)
    reasons = {line.split(": ", 1)[1] for line in text.splitlines() if line.startswith("no device to test: ")}
    why = f" ({'; '.join(sorted(reasons))})" if reasons else ""
    end = "" if good or counts["failed"] else f", and exit code {code}"
    print(f"{what}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped{why}{end}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--check")
    parser.add_argument("--filter", default=os.environ.get("GTEST_FILTER"))
    arguments = parser.parse_args()
    tools = TOOLS if arguments.check is None else [] if arguments.check == "none" else arguments.check.split(",")
    for tool in tools:
        if tool not in TOOLS:
            parser.error(f"unknown tool {tool}, needed one of {', '.join(TOOLS)}")

    program = (arguments.build / "bin" / "gpu_tests").resolve()
    if not program.exists():
        print("GPU tests: none, tandem was built without CUDA (nvcc not found)")
        return 0
    source = pathlib.Path(__file__).resolve().parent.parent
    environment = dict(os.environ, TANDEM_SOURCE_DIR=str(source), TANDEM_BINARY=str(program.parent / "tandem"))
    good, has_gpu = True, True
    if arguments.check in (None, "none"):
        code, text, counts = run(program, arguments.filter or "*", environment)
        good = report("GPU tests", code, text, counts)
        has_gpu = counts["passed"] + counts["failed"] > 0
    if not tools or not has_gpu:
        return 0 if good else 1
    if not sanitizer():
        print(f"compute-sanitizer: not run, not found on the PATH or in {CUDA_TOOLS}")
        return 0 if good and arguments.check is None else 1
    environment["TANDEM_GPU_TESTS"] = "some"
    for tool in tools:
        good &= report(tool, *run(program, arguments.filter or CHECKED[tool], environment, tool))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
