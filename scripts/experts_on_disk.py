#!/usr/bin/env python3
"""Measures how fast a mixture decodes whose experts are mostly on disk, beside what its disk allows: one table for several
--max-ram of one model with random weights. Needs no GPU.

    scripts/experts_on_disk.py BUILD [--shape qwen3-30b-a3b] [--type Q4_K_M] [--skew 0.7] [--layers N]
                               [--shares 8,4,2] [--rounds 3] [--tokens 64] [--warm 0] [--scratch FOLDER] [--check]
    scripts/experts_on_disk.py --self-test

The model's routers use experts by Zipf's law with exponent --skew. It is written to a temporary folder in BUILD (17.3 GiB),
or kept in --scratch and reused. In every round each share is run once: 8 stands for --max-ram of an eighth of the file's
weights. Before and after each run the disk is measured: 1 MiB at random places of the file, past the page cache, 32 at a time;
the better rate counts.

With --warm N the first N tokens of an answer do not count: they fill the memory, which takes time of its own (a virtual machine
may give memory for the first time at less than the disk's rate). Each answer is then run with N tokens and with N + --tokens,
and the difference is the result.

"bound" is that rate divided by the bytes that the answer read for a token; "of bound" is the speed as a share of it. With
memory for the whole model, its speed without a limit is measured too, in the same rounds: where the disk would allow more
than that, it is the bound. "whole layers" is the most that reading whole layers could give: the rate divided by all weights
beyond --max-ram, which every token would read. "gain" is the speed divided by that. Numbers are medians of the rounds.

--check: exit code 1 unless at least 80% of the bound is reached everywhere, and the gain is 4 at least for an eighth.
"""

import argparse
import concurrent.futures
import json
import mmap
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

MIB, GIB = 2**20, 2**30
HEADER = ("--max-ram", "in memory", "read per token", "t/s", "disk GB/s", "bound", "of bound", "whole layers", "gain")


def run(command):
    print("  " + " ".join(map(str, command)), file=sys.stderr, flush=True)
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{command[0]} {command[1]}: exit code {result.returncode}: {result.stderr.strip().splitlines()[-1:]}")
    return result.stdout


def disk_rate(path, seconds=2.0, n_bytes=MIB, depth=32):
    """Bytes per second of reads at random places past the page cache. Each of depth threads reads at least once."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    n_places, end = os.fstat(file).st_size // n_bytes, time.monotonic() + seconds

    def read_some(seed):
        places, buffer, n = random.Random(seed), mmap.mmap(-1, n_bytes), 0
        while not n or time.monotonic() < end:
            read = os.preadv(file, [buffer], places.randrange(n_places) * n_bytes)
            if read != n_bytes:
                raise OSError(f"{path}: {read} bytes read of {n_bytes}")
            n += read
        return n

    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(depth) as pool:
        n_read = sum(pool.map(read_some, range(depth)))
    os.close(file)
    return n_read / (time.monotonic() - begin)


def answer_of(output):
    """What a run with --json says at its end of its answer: tokens, seconds, experts used and found in memory, bytes read."""
    end = json.loads(output.strip().splitlines()[-1])
    experts = (end.get("experts") or {}).get("answer") or {"n_used": 0, "n_found": 0, "read_bytes": 0}
    # The first token comes with the prompt.
    return end["n_generated"] - 1, end["generate_s"], experts["n_used"], experts["n_found"], experts["read_bytes"]


def speed_of(answer, warm=(0, 0, 0, 0, 0)):
    """Tokens per second, the share of experts found, and bytes read per token of an answer, without those of its beginning."""
    n, seconds, used, found, n_bytes = (whole - beginning for whole, beginning in zip(answer, warm))
    return n / seconds, found / used if used else 1.0, n_bytes / n


def row(name, runs, limit, n_weights, in_memory):
    """The cells of a share: `runs` has a tuple (tokens per second, share found, bytes per token, disk rate) of each round;
    in_memory the speeds without a limit. And the share of the bound, and the gain."""
    speed, found, n_bytes, rate = (statistics.median(r[i] for r in runs) for i in range(4))
    bounds = [min(r[3] / r[2] if r[2] else float("inf"), whole) for r, whole in zip(runs, in_memory)]
    share = statistics.median(r[0] / bound for r, bound in zip(runs, bounds))
    layers = [r[3] / (n_weights - limit) for r in runs]
    gain = statistics.median(r[0] / most for r, most in zip(runs, layers))
    cells = [name, f"{found:.0%}", f"{n_bytes / MIB:.0f} MiB", f"{speed:.2f}", f"{rate / 1e9:.2f}",
             f"{statistics.median(bounds):.2f}", f"{share:.0%}", f"{statistics.median(layers):.3f}", f"{gain:.0f}"]
    return cells, share, gain


def self_test():
    output = '{"event": "token"}\n{"n_generated": 11, "generate_s": 2.5, "experts": {"answer": {"n_used": 100, "n_found": 75, ' \
             '"read_bytes": 1000}}}\n'
    assert answer_of(output) == (10, 2.5, 100, 75, 1000) and speed_of(answer_of(output)) == (4.0, 0.75, 100)
    assert speed_of(answer_of('{"n_generated": 3, "generate_s": 1, "experts": null}')) == (2, 1, 0)
    assert speed_of((10, 2.5, 100, 75, 1000), (4, 1.0, 40, 15, 700)) == (4, 1, 50)
    # 1 GB/s, 250 MB a token: 4 t/s at the most; of whole layers 9 GB.
    cells, share, gain = row("1 GB", [(3.6, 0.7, 250e6, 1e9)] * 3, 1e9, 10e9, [10] * 3)
    assert abs(share - 0.9) < 1e-9 and abs(gain - 3.6 * 9) < 1e-9 and len(cells) == len(HEADER)
    assert row("1 GB", [(3.6, 0.7, 250e6, 1e9)], 1e9, 10e9, [3.6])[1] == 1  # no faster than in memory
    with tempfile.NamedTemporaryFile(dir=pathlib.Path(__file__).parent) as file:
        file.write(bytes(4 * MIB))
        file.flush()
        try:
            assert disk_rate(file.name, 0.0) > 0  # a disk too busy for one read in the time
        except OSError:
            pass  # a file system without O_DIRECT
    print("ok")


def measure(arguments, folder):
    program = arguments.build / "bin" / "tandem"
    layers = ["--layers", arguments.layers] if arguments.layers else []
    path = folder / f"{arguments.shape}-{arguments.type}-{arguments.skew}-{arguments.layers or 'all'}.gguf"
    if not path.exists():
        run([program, "synth", arguments.shape, "--type", arguments.type, "--expert-skew", arguments.skew, *layers, "-o", path])
    n_weights = path.stat().st_size
    shares = [int(share) for share in arguments.shares.split(",")]
    available = int(next(line for line in open("/proc/meminfo", encoding="ascii") if line.startswith("MemAvailable")).split()[1])
    in_memory = available * 1024 > n_weights + 2 * GIB
    runs, whole = {share: [] for share in shares}, []

    def answer(n, options):
        return answer_of(run([program, "run", "-m", path, "-dev", "none", "-c", max(512, n + 64), "-p", "a b c d", "-n", n,
                              "-s", 1, "--temp", 0.8, "--ignore-eos", "--json", *options]))

    def decode(*options):
        n_warm = arguments.warm
        return speed_of(answer(n_warm + arguments.tokens, options), *([answer(n_warm, options)] if n_warm else []))

    for _ in range(arguments.rounds):
        for share in shares:
            before = disk_rate(path)
            result = decode("--max-ram", n_weights // share)
            runs[share].append((*result, max(before, disk_rate(path))))
        whole.append(decode()[0] if in_memory else float("inf"))
    return n_weights, runs, whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("--shape", default="qwen3-30b-a3b")
    parser.add_argument("--type", default="Q4_K_M", help="file type of the weights")
    parser.add_argument("--skew", type=float, default=0.7)
    parser.add_argument("--layers", type=int, help="of the model, the first N")
    parser.add_argument("--shares", default="8,4,2", help="of the model, one over each of these is the memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="to decode in a run")
    parser.add_argument("--warm", type=int, default=0, help="tokens of an answer before those that count")
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if not arguments.build:
        parser.error("name the build folder")
    with tempfile.TemporaryDirectory(dir=arguments.build) as temporary:
        folder = arguments.scratch or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        n_weights, runs, whole = measure(arguments, folder)
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    fine = True
    for share, of_share in runs.items():
        limit = n_weights // share
        cells, of_bound, gain = row(f"{limit / MIB:.0f} MiB, 1/{share}", of_share, limit, n_weights, whole)
        print("| " + " | ".join(cells) + " |")
        fine = fine and of_bound >= 0.8 and (share != 8 or gain >= 4)
    speeds = f"{statistics.median(whole):.2f} t/s" if whole[0] < float("inf") else "not measured, memory is too small"
    print(f"\nall in memory: {speeds}")
    return 1 if arguments.check and not fine else 0


if __name__ == "__main__":
    sys.exit(main())
