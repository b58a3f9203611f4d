#!/usr/bin/env python3
"""Runs the fuzz targets of a build made with -DTANDEM_FUZZ=ON.

    scripts/fuzz.py explore BUILD [--seconds N] [--jobs N] [NAME...]   look for new failures with a random seed
    scripts/fuzz.py check BUILD [--seconds N] NAME                     the same from the kept corpus, with a fixed seed
    scripts/fuzz.py long BUILD [--runs N] [--jobs N] [NAME...]         N executions over all targets, and a table
    scripts/fuzz.py keep BUILD [--bytes N] [NAME...]                   keep the best inputs found in tests/fuzz/corpus

Inputs come from tests/fuzz/corpus/NAME and BUILD/seeds/NAME (written by the program fuzz_seeds); `explore` and `long` keep
what they find in BUILD/corpus/NAME and continue from there. A failing input is saved in BUILD/found/. Exit codes: 0 no
failure, 1 a target failed, 2 usage, 77 there is no such target in BUILD.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NO_TARGET = 77
# An input that takes longer is a failure. Generous, because the machine may be busy.
UNIT_TIMEOUT_S = 60
RSS_LIMIT_MB = 4096
NO_LEAKS = "-detect_leaks=0"
SHARE_S = 20  # of `long`: the time in which the speed of a target is measured


@dataclasses.dataclass
class Result:
    name: str
    code: int = 0
    output: str = ""
    n_runs: int = 0
    seconds: float = 0.0
    n_inputs: int = 0  # in the corpus
    n_edges: int = 0
    artifacts: list = dataclasses.field(default_factory=list)


def names_in(build):
    return sorted(p.name.removesuffix("_fuzz") for p in (build / "bin").glob("*_fuzz") if os.access(p, os.X_OK))


def program(build, name):
    return build / "bin" / (f"{name}_fuzz" if not name.endswith("self_test") else name)


def seed_folders(build, name):
    name = name.removesuffix("_self_test")  # which has the inputs of the target that it tests
    return [f for f in (ROOT / "tests/fuzz/corpus" / name, build / "seeds" / name) if f.is_dir()]


def run(build, name, corpus, flags):
    """Runs one target on a corpus, to which it adds what it finds."""
    corpus.mkdir(parents=True, exist_ok=True)
    found = build / "found"
    found.mkdir(exist_ok=True)
    command = [program(build, name), f"-timeout={UNIT_TIMEOUT_S}", f"-rss_limit_mb={RSS_LIMIT_MB}",
               "-print_final_stats=1", f"-artifact_prefix={found}/{name}-", *flags, corpus, *seed_folders(build, name)]
    environment = dict(os.environ, UBSAN_OPTIONS="print_stacktrace=1", TANDEM_CONFIG="")
    if NO_LEAKS in flags:
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
    start = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=environment, check=False)
    result = Result(name, done.returncode, done.stdout.decode(errors="replace"), seconds=time.monotonic() - start)
    result.artifacts = [pathlib.Path(p) for p in re.findall(r"Test unit written to (.+)", result.output)]
    if match := re.search(r"stat::number_of_executed_units: *(\d+)", result.output):
        result.n_runs = int(match[1])
    if matches := re.findall(r" cov: (\d+) ft: \d+ corp: (\d+)", result.output):
        result.n_edges, result.n_inputs = map(int, matches[-1])
    return result


def report_failure(build, result):
    print(f"{result.name}_fuzz failed (exit code {result.code}):")
    print("\n".join(result.output.splitlines()[-60:]))
    for artifact in result.artifacts:
        text = artifact.read_bytes()
        print(f"input, {len(text)} bytes{', the first 200' if len(text) > 200 else ''}: {text[:200]!r}")
        print(f"to run it again: {os.path.relpath(program(build, result.name))} {os.path.relpath(artifact)}")


def explore(build, arguments):
    """Runs every target for some seconds."""
    def one(name):
        return run(build, name, build / "corpus" / name, [f"-max_total_time={arguments.seconds}"])

    failed = False
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(one, arguments.names):
            print(f"{result.name}_fuzz: {result.n_runs} executions, {result.n_inputs} inputs, {result.n_edges} edges",
                  flush=True)
            if result.code != 0:
                report_failure(build, result)
                failed = True
    return 1 if failed else 0


def check(build, arguments):
    """The test run's: the same inputs in the same order every time."""
    (name,) = arguments.names
    # Without the search for leaks, which not every container allows.
    with tempfile.TemporaryDirectory() as corpus:
        flags = [f"-max_total_time={arguments.seconds}", "-seed=1", NO_LEAKS]
        result = run(build, name, pathlib.Path(corpus), flags)
    print(f"{name}_fuzz: {result.n_runs} executions, {result.n_edges} edges")
    if result.code != 0:
        report_failure(build, result)
        return 1
    if result.n_runs == 0:
        print(f"{name}_fuzz executed nothing:\n{result.output}")
        return 1
    return 0


def long(build, arguments):
    """Divides the executions over the targets by their speed, so that all take about as long."""
    def explore_for(name, flags):
        return run(build, name, build / "corpus" / name, flags)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        first = list(pool.map(lambda name: explore_for(name, [f"-max_total_time={SHARE_S}"]), arguments.names))
        n_measured = sum(r.n_runs for r in first)
        rest = max(0, arguments.runs - n_measured)
        n_runs = {r.name: -(-rest * r.n_runs // max(1, n_measured)) for r in first if r.code == 0}
        print(f"{n_measured} executions in {SHARE_S} s each; {rest} to do", file=sys.stderr, flush=True)
        second = list(pool.map(lambda name: explore_for(name, [f"-runs={n_runs[name]}"]),
                               [name for name, n in n_runs.items() if n > 0]))
    print("| target | executions | per second | inputs | edges | failures |")
    print("|---|---|---|---|---|---|")
    total = Result("all")
    for name in arguments.names:
        of_target = [r for r in first + second if r.name == name]
        runs, seconds = sum(r.n_runs for r in of_target), sum(r.seconds for r in of_target)
        n_failures = sum(r.code != 0 for r in of_target)
        print(f"| {name} | {runs:,} | {runs / seconds:,.0f} | {of_target[-1].n_inputs:,} | {of_target[-1].n_edges:,} | "
              f"{n_failures} |")
        total.n_runs, total.seconds, total.code = total.n_runs + runs, total.seconds + seconds, total.code + n_failures
    print(f"| all | {total.n_runs:,} | {total.n_runs / total.seconds:,.0f} | | | {total.code} |", flush=True)
    for result in first + second:
        if result.code != 0:
            report_failure(build, result)
    return 1 if total.code else 0


def keep(build, arguments):
    """Adds to the kept corpus some of the inputs that reach something new, of all sizes, up to a number and a size for
    each target."""
    for name in arguments.names:
        kept = ROOT / "tests/fuzz/corpus" / name
        with tempfile.TemporaryDirectory() as minimal:
            # What the seeds reach need not be kept.
            for folder in seed_folders(build, name):
                for file in folder.iterdir():
                    shutil.copy(file, minimal)
            seeds = set(os.listdir(minimal))
            subprocess.run([program(build, name), "-merge=1", minimal, build / "corpus" / name], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            new = sorted((p for p in pathlib.Path(minimal).iterdir() if p.name not in seeds),
                         key=lambda p: (p.stat().st_size, p.name))
            n_bytes = 0
            for file in new[:: max(1, -(-len(new) // arguments.inputs))]:
                n_bytes += file.stat().st_size
                if n_bytes > arguments.bytes:
                    break
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, kept / file.name[:12])
        print(f"{name}: {len(list(kept.glob('*')))} inputs kept of {len(new)} new")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["explore", "check", "long", "keep"])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--inputs", type=int, default=32, help="keep: most inputs of a target")
    parser.add_argument("--bytes", type=int, default=8192)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_intermixed_args()
    build = arguments.build.resolve()
    known = names_in(build)
    arguments.names = arguments.names or known
    unknown = [n for n in arguments.names if not program(build, n).exists()]
    if unknown or not arguments.names:
        print(f"no fuzz target {' '.join(unknown)} in {build}/bin: make test and make fuzz build them", file=sys.stderr)
        return NO_TARGET
    if arguments.what == "check" and len(arguments.names) != 1:
        parser.error("check needs one NAME")
    return {"explore": explore, "check": check, "long": long, "keep": keep}[arguments.what](build, arguments)


if __name__ == "__main__":
    sys.exit(main())
