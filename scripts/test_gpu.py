#!/usr/bin/env python3
"""Runs the tests that need an NVIDIA GPU, suite by suite, and reports how many passed, failed and were skipped, and why.
Then, if compute-sanitizer is installed, runs some of them under each of its tools.

    scripts/test_gpu.py BUILD [--sections tests,memcheck,racecheck,synccheck,initcheck] [--filter GTEST_FILTER]
                        [--jobs N] [--limit SECONDS] [--total SECONDS] [--json FILE]

Every suite is a process of its own with a limit of its own, and its result is printed and written to --json at once. With
--jobs several run at once: most of their time goes into results of the CPU to compare with.
The golden text needs $TANDEM_SHARED/data (by default ../shared/data beside the source tree); without it the script
fails. Without a GPU every test is skipped and the exit code is 0; otherwise it is 1 if a test failed, a suite ran past its
limit or a tool found an error.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

import gpu_steps
from gpu_steps import CUDA_TOOLS, OutOfTime, say

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Only memcheck runs whole models: the other tools slow them down most, and initcheck reports that decoding copies
# unwritten rows of a cache tile, which affect no result.
CHECKED = {tool: "GpuDevice.*:GpuRows.*:GpuAttention.*:GpuPackedAttention.*:GpuLinear.*:*GpuLongPrompts.*" for tool in TOOLS}
CHECKED["memcheck"] += ":GpuSplit.StoriesAreTheGoldenOnes"
LONG = ("GpuLinear.", "Products/GpuLongPrompts.")  # with --jobs, each of its tests is a process
GOLDEN = ("stories260K.gguf", "stories260K.golden.json")
RESULT = re.compile(r"^\[ *(OK|FAILED|SKIPPED|RUN) *\] (\S+?)(?:,| \(|$)")


def sanitizer():
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=CUDA_TOOLS)


def shared_folder(script):
    return pathlib.Path(os.environ.get("TANDEM_SHARED") or script.parent.parent.parent / "shared")


class Run:
    """One suite, alone or under a tool."""

    def __init__(self, name):
        self.name = name
        self.counts = collections.Counter()
        self.running = self.stopped = None
        self.code = 0
        self.text = []

    def read(self, line):
        self.text.append(line)
        found = RESULT.match(line)
        if not found or found[2].isdigit():  # "[  FAILED  ] 2 tests, listed below"
            return
        if found[1] == "RUN":
            self.running = found[2]
        elif self.running == found[2]:  # the list at the end names failures again
            self.running = None
            self.counts[{"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[found[1]]] += 1

    def execute(self, command, environment, limits):
        try:
            for line in gpu_steps.lines_of(command, limits.next(), environment):
                self.read(line)
        except OutOfTime as why:
            self.stopped = str(why)
        except subprocess.CalledProcessError as error:
            self.code = error.returncode

    def good(self):
        return not self.stopped and self.code == 0 and sum(self.counts.values()) > 0

    def why(self):
        reasons = {line.split(": ", 1)[1] for line in self.text if "no device to test: " in line}
        where = f" in {self.running}" if self.running else ""
        if self.stopped:
            return f", {self.stopped}{where}"
        if not self.counts["failed"] and (self.code or not sum(self.counts.values())):
            return f", and exit code {self.code}{where}"
        return f" ({'; '.join(sorted(reasons))})" if reasons else ""

    def report(self, journal):
        """Prints one line, after a failure the output too."""
        if not self.good():
            say("\n".join(self.text[-400:]))
        c = self.counts
        say(f"{self.name}: {c['passed']} passed, {c['failed']} failed, {c['skipped']} skipped{self.why()}")
        journal.write(kind="test", name=self.name, good=self.good(), why=self.why().strip(", "), **c)
        return self.good()


def suites_of(program, gtest_filter, environment, limits):
    """The suites that have a test that the filter lets through, with their tests."""
    listed, suite = {}, None
    lines = gpu_steps.lines_of([program, "--gtest_list_tests", f"--gtest_filter={gtest_filter}"], limits.next(), environment)
    for line in lines:
        if line.startswith("  "):
            listed[suite].append(suite + line.split("#")[0].strip())
        elif re.fullmatch(r"\S+\.(\s+#.*)?", line):
            suite = line.split()[0]
            listed[suite] = []
    return listed


def units_of(suites, divided):
    """What a process runs: names and tests."""
    for suite, tests in suites.items():
        if divided and suite in LONG:
            yield from ((test, [test]) for test in tests)
        else:
            yield suite.rstrip("."), tests


def execute_all(units, jobs, section, command, environment, limits):
    """Yields a Run for each unit as it ends."""

    def execute(unit):
        name, tests = unit
        run = Run(name if section == "tests" else f"{section} {name}")
        run.execute([*command, f"--gtest_filter={':'.join(tests)}"], environment, limits)
        return run

    with concurrent.futures.ThreadPoolExecutor(jobs or max(1, min(8, (os.cpu_count() or 2) // 2))) as pool:
        # The long ones first.
        ordered = sorted(units, key=lambda unit: len(unit[1]) > 1)
        for done in concurrent.futures.as_completed([pool.submit(execute, unit) for unit in ordered]):
            yield done.result()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--filter", default=os.environ.get("GTEST_FILTER"))
    parser.add_argument("--jobs", type=int, default=1, help="processes at once; 0: half of the cores, at most 8 (default: 1)")
    gpu_steps.add_options(parser, ("tests", *TOOLS), 600)
    arguments = parser.parse_args()
    sections = gpu_steps.chosen_sections(parser, arguments.sections, ("tests", *TOOLS))
    gpu_steps.end_children_on_sigterm()
    limits, journal = gpu_steps.Limits(arguments.limit, arguments.total), gpu_steps.Journal(arguments.json)

    script = pathlib.Path(__file__).resolve()
    program = (arguments.build / "bin" / "gpu_tests").resolve()
    if not program.exists():
        say("GPU tests: none, tandem was built without CUDA")
        return 0
    shared = shared_folder(script).resolve()
    environment = dict(os.environ, TANDEM_SHARED=str(shared), TANDEM_BINARY=str(program.parent / "tandem"))
    missing = [str(shared / "data" / name) for name in GOLDEN if not (shared / "data" / name).exists()]
    good = not missing
    if missing:
        say(f"golden text: failed, {' and '.join(missing)} not found (set TANDEM_SHARED to the folder that has data/)")
        journal.write(kind="test", name="golden data", good=False, why="not found")

    tools = [section for section in sections if section != "tests"]
    if tools and not sanitizer():
        say(f"compute-sanitizer: not run, not found on the PATH or in {CUDA_TOOLS}")
        good &= "tests" in sections and arguments.sections is None  # it was asked for by name
        sections = [section for section in sections if section == "tests"]
    for section in sections:
        prefix = []
        if section != "tests":
            # One test allocates more memory than there is on purpose, so do not report API errors.
            prefix = [sanitizer(), "--tool", section, "--error-exitcode", "1", "--report-api-errors", "no"]
            environment["TANDEM_GPU_TESTS"] = "some"
        try:
            suites = suites_of(program, arguments.filter or CHECKED.get(section, "*"), environment, limits)
        except (OutOfTime, subprocess.CalledProcessError) as error:
            say(f"{section}: the tests could not be listed: {error}")
            return 1
        has_gpu, total = False, collections.Counter()
        for run in execute_all(units_of(suites, arguments.jobs != 1), arguments.jobs, section, [*prefix, program], environment, limits):
            good &= run.report(journal)
            has_gpu |= run.counts["passed"] + run.counts["failed"] > 0 or bool(run.stopped)
            total += run.counts
        say(f"{section}: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
        if not has_gpu:
            break  # no tool finds more
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
