#!/usr/bin/env python3
"""Prints what deferring experts (--defer-experts) costs a trained mixture, as a table: perplexity, and how far its
predictions are from those of the model without it.

    python3 scripts/demo_model/train.py --out mix --experts 16 --used 4 --minutes 10
    python3 scripts/demo_model/deferred.py build/bin/tandem mix
    python3 scripts/demo_model/deferred.py --self-test

Needs no packages. The folder is converted to F32 in a temporary folder. N is the number of deferred experts, 1 to one less than
a token uses.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HELD_OUT = pathlib.Path(__file__).resolve().parents[2] / "models" / "heldout.txt"
NUMBERS = {  # of the report of `tandem perplexity --kl-divergence`
    "base": r"^Mean PPL\(base\) *: *([-+.\de]+)",
    "perplexity": r"^Mean PPL\(Q\) *: *([-+.\de]+)",
    "mean": r"^Mean +KLD: *([-+.\de]+)",
    "99%": r"^99\.0% +KLD: *([-+.\de]+)",
    "same top": r"^Same top p: *([-+.\de]+)",
}


def parse_args(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path, help="the program tandem")
    parser.add_argument("folder", type=pathlib.Path, help="of the trained mixture")
    parser.add_argument("--text", type=pathlib.Path, default=HELD_OUT, help="text to predict (models/heldout.txt)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a chunk")
    args = parser.parse_args(arguments)
    if args.ctx < 4:
        parser.error(f"--ctx {args.ctx}: needed 4 or more")
    return args


def experts_used(config):
    n = config.get("num_experts_per_tok", 0)
    if n < 2:
        sys.exit("config.json: needed a mixture whose tokens use 2 experts or more (num_experts_per_tok)")
    return n


def read_report(report):
    found = {name: re.search(pattern, report, re.MULTILINE) for name, pattern in NUMBERS.items()}
    missing = [name for name, match in found.items() if not match]
    if missing:
        sys.exit(f"the report lacks: {', '.join(missing)}")
    return {name: float(match[1]) for name, match in found.items()}


def table(reports):
    lines = ["| N | perplexity | mean KL divergence | 99% | same top token |", "|---|---|---|---|---|"]
    lines.append(f"| 0 | {reports[1]['base']:.3f} | | | |")
    for n, r in reports.items():
        lines.append(f"| {n} | {r['perplexity']:.3f} | {r['mean']:.4f} | {r['99%']:.3f} | {r['same top']:.1f}% |")
    return "\n".join(lines)


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}{' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


def measure(args):
    n_used = experts_used(json.loads((args.folder / "config.json").read_text()))
    with tempfile.TemporaryDirectory() as scratch:
        model, base = pathlib.Path(scratch) / "model.gguf", pathlib.Path(scratch) / "base"
        run(args.binary, "convert", args.folder, "-o", model, "--outtype", "f32")
        score = [args.binary, "perplexity", "-m", model, "-c", args.ctx, "-dev", "none", "--kl-divergence-base", base]
        run(*score, "-f", args.text)
        return {n: read_report(run(*score, "--kl-divergence", "--defer-experts", n)) for n in range(1, n_used)}


SAMPLE = """Mean PPL(Q)                   :   2.094104 ±   0.036503
Mean PPL(base)                :   2.091949 ±   0.036436
Mean    KLD:   0.001831 ±   0.000098
Maximum KLD:   0.334683
99.0%   KLD:   0.026226
Median  KLD:   0.000235
 1.0%   KLD:  -0.000001
Same top p: 98.649 ± 0.139 %
"""


def self_test():
    def ends_with(text, call):
        try:
            call()
        except SystemExit as end:
            assert text in str(end.code), end.code
            return
        raise AssertionError(f"accepted: {text}")

    report = read_report(SAMPLE)
    assert report == {"base": 2.091949, "perplexity": 2.094104, "mean": 0.001831, "99%": 0.026226, "same top": 98.649}
    assert table({1: report}).splitlines()[2:] == ["| 0 | 2.092 | | | |", "| 1 | 2.094 | 0.0018 | 0.026 | 98.6% |"]
    ends_with("the report lacks: 99%", lambda: read_report(SAMPLE.replace("99.0%", "98.0%")))
    assert experts_used({"num_experts_per_tok": 3}) == 3
    ends_with("needed a mixture", lambda: experts_used({}))
    ends_with("needed a mixture", lambda: experts_used({"num_experts_per_tok": 1}))
    args = parse_args(["tandem", "mix", "--ctx", "64"])
    assert (args.folder, args.text, args.ctx) == (pathlib.Path("mix"), HELD_OUT, 64) and HELD_OUT.exists()
    print("ok")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        print(table(measure(parse_args())))
