#!/usr/bin/env python3
"""Prints what reading the cache sparsely (--sparse-kv R,K) costs a model, as a table: the bytes of the cache that a token reads, as a
share of all, perplexity, and how far the model's predictions are from those that read all (KL divergence).

    python3 scripts/demo_model/sparse_reads.py build/bin/tandem models/tandem-demo-Q8_0.gguf
    python3 scripts/demo_model/sparse_reads.py --self-test

Needs no packages. Every token is computed in a step of its own, as when generating (-ub 1): prompts are never read sparsely. In the
second half of each chunk, which is what `tandem perplexity` scores, a token has half a chunk or more before it.
"""

import argparse
import pathlib
import sys
import tempfile

from cache_types import HELD_OUT, metadata_of, read_report, run

READS = ["64,128", "32,64", "16,64", "16,32", "8,32", "8,20", "8,12", "4,12", "4,4"]
FIRST, BLOCK = 4, 32  # positions that are always read; tokens that have a mean in common


def newest(k):
    return min(64, max(8, k // 4))


def head_bytes(r, k, key, value, n):
    """The bytes that a token reads for a head, at its n-th position, and all that there are; of half floats."""
    every, listed = n * 2 * (key + value), FIRST + newest(k) + k
    if n <= listed:
        return every, every
    return n * (r + 4) + n // BLOCK * 2 * value + listed * 2 * (key + value), every


def share(reads, key, value, ctx):
    r, k = map(int, reads.split(","))
    pairs = [head_bytes(r, k, key, value, n) for n in range(ctx // 2, ctx + 1)]
    return sum(some for some, _ in pairs) / sum(every for _, every in pairs)


def table(name, base, rows):
    lines = [f"{name}, perplexity {base:.4f} where all is read:", ""]
    lines += ["| R,K | share of the bytes | perplexity | mean KL divergence | 99% |", "|---|---:|---:|---:|---:|"]
    for reads, part, r in rows:
        lines.append(f"| {reads} | {part:.3f} | {r['perplexity']:.4f} | {r['mean']:.5f} ± {r['error']:.5f} | {r['99%']:.4f} |")
    return "\n".join(lines)


def measure(args, model, scratch):
    base = scratch / "base"
    score = [args.binary, "perplexity", "-m", model, "-c", args.ctx, "-ub", 1, "-t", 1, "-dev", "none", "--kl-divergence-base", base]
    run(*score, "-f", args.text)
    data = metadata_of(args.binary, model)
    get = lambda key: data.get(f"{data['general.architecture']}.{key}")
    width = get("embedding_length") // get("attention.head_count")
    key, value = (get(f"attention.{which}_length") or width for which in ("key", "value"))
    rows = []
    for reads in args.reads:
        if int(reads.split(",")[0]) > key:
            continue
        report = read_report(run(*score, "--kl-divergence", "--sparse-kv", reads))
        rows.append((reads, share(reads, key, value, args.ctx), report))
    return table(model.name, rows[0][2]["base"], rows)


def self_test():
    assert [newest(k) for k in (1, 40, 2048)] == [8, 10, 64]
    assert head_bytes(8, 20, 64, 64, 32) == (32 * 256, 32 * 256)
    assert head_bytes(8, 20, 64, 64, 512) == (512 * 12 + 16 * 128 + 32 * 256, 512 * 256)
    assert share("64,1000", 64, 64, 512) == 1
    assert 0.12 < share("8,20", 64, 64, 512) < 0.16
    report = {"perplexity": 2.0, "mean": 0.001, "error": 0.0001, "99%": 0.02}
    assert table("demo", 1.9, [("8,20", 0.125, report)]).splitlines()[-1] == "| 8,20 | 0.125 | 2.0000 | 0.00100 ± 0.00010 | 0.0200 |"
    print("ok")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path, help="the program tandem")
    parser.add_argument("models", type=pathlib.Path, nargs="+", help="GGUF files")
    parser.add_argument("--text", type=pathlib.Path, default=HELD_OUT, help="text to predict (models/heldout.txt)")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a chunk")
    parser.add_argument("--reads", nargs="+", default=READS, metavar="R,K", help="what to try")
    args = parser.parse_args()
    for model in args.models:
        with tempfile.TemporaryDirectory() as scratch:
            print(measure(args, model, pathlib.Path(scratch)), flush=True)
            print()


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        main()
