#!/usr/bin/env python3
"""The archive of `make gpu-pack` on a machine that has only a C library, a shell, the usual small programs and Python, no
network and no GPU: it unpacks, every step that needs a GPU says that there is none, the others pass; with TRY=1 all its
steps run on the CPU; a step that fails or runs past its limit is reported.

    gpu_pack_test.py SOURCE BUILD
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

from bare_root import BareRoot, Checks, need_unshare, skip

TOOLS = ("bash", "sh", "env", "dirname", "mkdir", "wc", "tail", "head", "cat", "cut", "tr", "grep", "sed", "awk", "timeout", "sleep",
         "ls", "date", "tee", "df", "rm", "uname")
SMALL = {"SHAPE": "tinyllama-1.1b:1", "TYPE": "Q4_0", "TYPES": "Q8_0"}  # models of 1 layer
STEP = re.compile(r"^\| (.{32}) \| (\S[^|]*?) *\| +(\d+) \| (.*) \|$", re.M)


def steps_of(text):
    return {name.strip(): (result, why) for name, result, _, why in STEP.findall(text) if name.strip() != "step"}


class PackTest:
    def __init__(self, root):
        self.root, self.checks = root, Checks()

    def piece(self, number, code, **environment):
        """Runs a piece; its steps as its summary file lists them."""
        ran = self.root.run(f"./gpu_day.sh {number}", "/home/tandem-gpu",
                            {"OUT": "/home/results", "SCRATCH": "/home/models", **SMALL, **environment})
        self.checks.expect(ran.returncode == code, f"piece {number} {environment}: exit code {ran.returncode}, expected {code}",
                           ran.stdout + ran.stderr)
        summary = self.root.path(f"home/results/piece{number}.md").read_text()
        self.checks.expect(summary in ran.stdout, f"piece {number} prints its summary last", ran.stdout)
        steps = steps_of(summary)
        self.checks.expect(bool(steps), f"piece {number} has steps", summary)
        return steps

    def expect(self, steps, name, result, why=""):
        found = steps.get(name, ("missing", ""))
        self.checks.expect(found[0] == result and why in found[1], f"{name}: {found}, expected {result} {why}")

    def rows(self, number):
        lines = self.root.path(f"home/results/piece{number}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def without_a_gpu(self):
        on_the_cpu = {"device facts", "golden text on the CPU"}
        for number in (1, 2, 3):
            steps = self.piece(number, 3)
            for name in steps:
                if name in on_the_cpu:
                    self.expect(steps, name, "passed")
                else:
                    self.expect(steps, name, "not run", "no GPU: no NVIDIA driver")
            self.checks.expect(number > 1 or on_the_cpu < steps.keys(), f"the steps of piece 1: {sorted(steps)}")
        self.expect(self.piece(1, 3), "GPU tests", "not run", "no GPU")

    def every_step_on_the_cpu(self):
        steps = self.piece(2, 3, TRY="1")
        self.expect(steps, "memcheck", "not run", "no compute-sanitizer")
        self.expect(steps, "write tinyllama-1.1b:1 Q4_0", "passed")
        for name, n in (("modes", 16), ("layers", 20)):
            self.expect(steps, f"bench: {name}", "passed", f"{n} measured, 0 failed")
            rows = [row for row in self.rows(2) if row.get("section") == name and row["record"]["avg_ts"] > 0]
            self.checks.expect(len(rows) == n, f"{len(rows)} measurements of {name} in the file, expected {n}")

    def faults(self):
        """Too little time, missing golden data, a slow step."""
        steps = self.piece(1, 3, TRY="1", MINUTES="0.3")
        self.expect(steps, "bench: streamed", "not run", "no time left")
        golden = self.root.path("home/tandem-gpu/data/stories260K.golden.json")
        golden.rename(golden.with_suffix(".away"))
        pack = {"TANDEM_SHARED": "/home/tandem-gpu", "LD_LIBRARY_PATH": "/home/tandem-gpu/lib"}
        ran = self.root.run("python3 scripts/test_gpu.py . --sections tests --filter 'GpuDevice.*'", "/home/tandem-gpu", pack)
        golden.with_suffix(".away").rename(golden)
        self.checks.expect(ran.returncode == 1 and "golden.json not found" in ran.stdout, "missing golden data fails", ran.stdout)
        ran = self.root.run("python3 scripts/bench_gpu.py . --cpu --sections decode --types Q4_0 --shape tinyllama-1.1b:1 "
                            "--scratch /home/models --limit 1.01 --repetitions 100000", "/home/tandem-gpu", pack)
        self.checks.expect(ran.returncode == 1 and "stopped after 1 s" in ran.stdout, "a slow step is stopped", ran.stdout)


def main():
    source, build = map(pathlib.Path, sys.argv[1:])
    data = pathlib.Path(os.environ.get("TANDEM_SHARED") or source.parent / "shared") / "data"
    need_unshare()
    if not data.exists():
        skip(f"{data} not found")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        made = subprocess.run([source / "scripts" / "gpu_pack.py", build, "-o", folder / "pack.tar.gz", "--data", data],
                              capture_output=True, text=True, check=False)
        print(made.stdout + made.stderr)
        if made.returncode:
            sys.exit(1)
        root = BareRoot(folder / "root")
        for tool in TOOLS:
            root.add_program(tool)
        root.add_libraries("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libstdc++.so.6", "libgcc_s.so.1")
        root.add_python()
        with tarfile.open(folder / "pack.tar.gz") as tar:
            tar.extractall(root.path("home"))
        test = PackTest(root)
        test.without_a_gpu()
        test.every_step_on_the_cpu()
        test.faults()
        test.checks.exit()


if __name__ == "__main__":
    main()
