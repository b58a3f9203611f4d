#!/usr/bin/env python3
"""Prints what each type of the KV cache costs a model, as a table: bytes a token, perplexity, and how far the model's predictions are
from those with an F32 cache (KL divergence), with heads as they are and rotated (--kv-rotate).

    python3 scripts/demo_model/train.py --out mix --experts 16 --used 4 --minutes 10
    python3 scripts/demo_model/cache_types.py build/bin/tandem models/tandem-demo-Q8_0.gguf mix
    python3 scripts/demo_model/cache_types.py --self-test

Needs no packages. Models are GGUF files, or folders, which are converted to F32 in a temporary folder.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HELD_OUT = pathlib.Path(__file__).resolve().parents[2] / "models" / "heldout.txt"
BITS = {"f16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "iq4_nl": 4.5, "q4_0": 4.5}  # of an element
BITS |= {"kivi4": 5, "kivi2": 3}  # of tokens that are not among the newest 128
NUMBERS = {  # of the report of `tandem perplexity --kl-divergence`
    "base": r"^Mean PPL\(base\) *: *([-+.\de]+)",
    "perplexity": r"^Mean PPL\(Q\) *: *([-+.\de]+)",
    "mean": r"^Mean +KLD: *([-+.\de]+)",
    "error": r"^Mean +KLD: *[-+.\de]+ ± *([-+.\de]+)",
    "99%": r"^99\.0% +KLD: *([-+.\de]+)",
}


def parse_args(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path, help="the program tandem")
    parser.add_argument("models", type=pathlib.Path, nargs="+", help="GGUF files, or folders of trained models")
    parser.add_argument("--text", type=pathlib.Path, default=HELD_OUT, help="text to predict (models/heldout.txt)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a chunk")
    args = parser.parse_args(arguments)
    if args.ctx < 4:
        parser.error(f"--ctx {args.ctx}: needed 4 or more")
    return args


def read_report(report):
    found = {name: re.search(pattern, report, re.MULTILINE) for name, pattern in NUMBERS.items()}
    missing = [name for name, match in found.items() if not match]
    if missing:
        sys.exit(f"the report lacks: {', '.join(missing)}")
    return {name: float(match[1]) for name, match in found.items()}


def values_of_token(metadata):
    """The keys and values that all layers cache of a token, for a model whose layers are alike."""
    get = lambda key: metadata.get(f"{metadata['general.architecture']}.{key}")
    heads, width = get("attention.head_count"), get("embedding_length")
    key, value = (get(f"attention.{which}_length") or width // heads for which in ("key", "value"))
    return get("block_count") * (get("attention.head_count_kv") or heads) * (key + value)


def table(name, n_values, reports):
    """reports: of each (type, rotation)."""
    base = next(iter(reports.values()))["base"]
    lines = [
        f"{name}, perplexity {base:.4f} with an F32 cache:",
        "",
        "| type | bytes a token | perplexity | mean KL divergence | 99% | rotated: perplexity | mean KL divergence | 99% |",
        "|---|---|---|---|---|---|---|---|",
    ]
    numbers = lambda r: f"{r['perplexity']:.4f} | {r['mean']:.5f} ± {r['error']:.5f} | {r['99%']:.4f}"
    for dtype, bits in BITS.items():
        plain, rotated = reports[dtype, "off"], reports[dtype, "on"]
        lines.append(f"| {dtype} | {n_values * bits / 8:.0f} | {numbers(plain)} | {numbers(rotated)} |")
    return "\n".join(lines)


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}{' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


def metadata_of(binary, model):
    values = json.loads(run(binary, "inspect", model, "--json"))["metadata"]
    return {key: value["value"] for key, value in values.items()}


def measure(args, folder_or_file, scratch):
    model = folder_or_file
    if folder_or_file.is_dir():
        model = scratch / "model.gguf"
        run(args.binary, "convert", folder_or_file, "-o", model, "--outtype", "f32")
    base = scratch / "base"
    score = [args.binary, "perplexity", "-m", model, "-c", args.ctx, "-dev", "none", "--kl-divergence-base", base]
    run(*score, "-f", args.text, "-ctk", "f32", "-ctv", "f32", "--kv-rotate", "off")
    reports = {}
    for dtype in BITS:
        for rotate in ("off", "on"):
            # A step's tokens are F16 in these types, so steps are short, as when text is generated.
            ubatch = ("-ub", 32) if dtype.startswith("kivi") else ()
            report = run(*score, "--kl-divergence", "-ctk", dtype, "-ctv", dtype, "--kv-rotate", rotate, *ubatch)
            reports[dtype, rotate] = read_report(report)
    return table(folder_or_file.name, values_of_token(metadata_of(args.binary, model)), reports)


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
    report = read_report(SAMPLE)
    assert report == {"base": 2.091949, "perplexity": 2.094104, "mean": 0.001831, "error": 0.000098, "99%": 0.026226}
    try:
        read_report(SAMPLE.replace("99.0%", "98.0%"))
    except SystemExit as end:
        assert str(end.code) == "the report lacks: 99%"
    else:
        raise AssertionError("accepted: a report that lacks a number")
    llama = {"general.architecture": "llama", "llama.block_count": 4, "llama.embedding_length": 256}
    llama |= {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}
    assert values_of_token(llama) == 4 * 2 * 128
    assert values_of_token(llama | {"llama.attention.key_length": 96, "llama.attention.value_length": 32}) == 4 * 2 * 128
    reports = {(dtype, rotate): report for dtype in BITS for rotate in ("off", "on")}
    lines = table("demo", 1024, reports).splitlines()
    numbers = "2.0941 | 0.00183 ± 0.00010 | 0.0262"
    assert lines[0] == "demo, perplexity 2.0919 with an F32 cache:" and len(lines) == 4 + len(BITS)
    assert lines[4] == f"| f16 | 2048 | {numbers} | {numbers} |" and lines[-1].startswith("| kivi2 | 384 |")
    args = parse_args(["tandem", "a.gguf", "mix", "--ctx", "64"])
    assert (args.models, args.text) == ([pathlib.Path("a.gguf"), pathlib.Path("mix")], HELD_OUT) and HELD_OUT.exists()
    print("ok")


def main():
    args = parse_args()
    for model in args.models:
        with tempfile.TemporaryDirectory() as scratch:
            print(measure(args, model, pathlib.Path(scratch)), flush=True)
            print()


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        main()
