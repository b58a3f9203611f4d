#!/usr/bin/env python3
"""Measures tandem on the first NVIDIA GPU, with random weights in the shape of Llama 3.1 8B, and prints three tables:
speed at -ngl all, also as a share of the GPU's measured limits; speed over -ngl with and without -nkvo; and speed in the
modes that need less GPU memory: streamed weights, caches in host memory, both at once.

    scripts/bench_gpu.py BUILD [--scratch FOLDER] [--types Q4_0,Q4_K_M,Q8_0,F16] [--sweep-type Q4_K_M] [--json FILE]

Models (5 to 16 GB each) are written one at a time to a temporary folder in BUILD; with --scratch they are kept in that
folder and reused. Without a GPU the script says so and exits with 0.

Bandwidth: the bytes of weights and cache that a token reads, times the measured speed, as a share of the rate at which a
copy on the device reads and writes. Tensor rate: the operations of matrices and attention, as a share of cuBLAS's F16
rate.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

SHAPE = "llama-3.1-8b"
N_LAYER, N_EMBD, N_HEAD_KV_DIM, N_FF = 32, 4096, 1024, 14336
MATRIX_ELEMENTS = N_LAYER * N_EMBD * (2 * N_EMBD + 2 * N_HEAD_KV_DIM + 3 * N_FF)  # multiplied for each prompt token
DEPTHS = (0, 4096, 16384)
PROMPTS = (512, 4096)
LAYERS = (0, 8, 16, 24, 99)
# (name, options, depth): modes that need less GPU memory; the cache modes run at a depth of 16k tokens. A mode with an
# option that the program does not have is skipped.
MODES = (
    ("all on the GPU", ["-ngl", 99], 0),
    ("stream all weights", ["--gpu-weights-percent", 0, "--stream-weights", "on"], 0),
    ("stream half the weights", ["--gpu-weights-percent", 50, "--stream-weights", "on"], 0),
    ("half on the CPU", ["-ngl", 16, "--stream-weights", "off"], 0),
    ("half on the CPU, prompts streamed", ["-ngl", 16], 0),
    ("half on both", ["-ngl", 16, "--stream-weights", "on", "--gpu-rows", 50], 0),
    ("cache on the GPU", ["-ngl", 99], 16384),
    ("cache on the host", ["-ngl", 99, "-nkvo", 1], 16384),
    ("cache prefetched", ["-ngl", 99, "--kv-offload", "prefetch"], 16384),
    ("cache split, newest 4k on the GPU", ["-ngl", 99, "--kv-split", 4096], 16384),
)


def operations_per_token(n_prompt):
    """One multiplication and one addition per matrix element, and per position in attention."""
    return 2 * MATRIX_ELEMENTS + 4 * N_LAYER * N_EMBD * (n_prompt + 1) / 2


def run(command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"bench_gpu.py: {' '.join(map(str, command))}: exit code {result.returncode}:\n{result.stderr.strip()}")
    return result.stdout


class Bench:
    """Runs the program and collects its results."""

    def __init__(self, build, repetitions):
        self.program = build / "bin" / "tandem"
        self.repetitions = repetitions
        self.records = []

    def measure(self, model, *options):
        """The JSON records of one `tandem bench`."""
        command = [self.program, "bench", "-m", model, "-r", self.repetitions, "-o", "jsonl", *options]
        print("  " + " ".join(map(str, command[1:])), file=sys.stderr, flush=True)
        records = [json.loads(line) for line in run(command).splitlines()]
        self.records += [dict(record, options=[str(o) for o in options]) for record in records]
        return records

    def synthesize(self, kind, folder):
        path = folder / f"{SHAPE}-{kind}.gguf"
        if not path.exists():
            print(f"  making {path.name}", file=sys.stderr, flush=True)
            run([self.program, "synth", SHAPE, "--type", kind, "-o", path])
        return path


def table(header, rows):
    """A Markdown table."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(cells):
        return "| " + " | ".join(str(c).rjust(w) for c, w in zip(cells, widths)) + " |"

    return "\n".join([line(header), "|" + "|".join("-" * (w + 1) + ":" for w in widths) + "|", *map(line, rows)])


def full_offload_row(bench, kind, model, limits):
    decode = bench.measure(model, "-p", 0, "-n", 128, "-d", ",".join(map(str, DEPTHS)), "-ngl", 99)
    prefill = bench.measure(model, "-p", ",".join(map(str, PROMPTS)), "-n", 0, "-ngl", 99)
    row = [kind, f"{model.stat().st_size / 2**30:.2f}"]
    for depth in DEPTHS:
        record = next(r for r in decode if r["n_depth"] == depth)
        share = record["bytes_per_token"] * record["avg_ts"] / limits["copy"]
        row.append(f"{record['avg_ts']:.1f} ({share:.0%})")
    for n in PROMPTS:
        record = next(r for r in prefill if r["n_prompt"] == n)
        share = operations_per_token(n) * record["avg_ts"] / limits["f16"]
        row.append(f"{record['avg_ts']:.0f} ({share:.0%})")
    return row


def sweep_rows(bench, model):
    rows = []
    for layers in LAYERS:
        row = ["all" if layers == 99 else layers]
        for on_host in (0, 1):
            records = bench.measure(model, "-p", 512, "-n", 32, "-ngl", layers, "-nkvo", on_host)
            row += [f"{next(r for r in records if r['n_gen'] == 0)['avg_ts']:.1f}",
                    f"{next(r for r in records if r['n_gen'] > 0)['avg_ts']:.1f}"]
        rows.append(row)
    return rows


def mode_rows(bench, model, limits):
    """The speed of each mode, and the share of the bus bandwidth that streamed weights use while decoding."""
    known, rows = run([bench.program, "bench", "--help"]), []
    for name, options, depth in MODES:
        if any(str(o).startswith("--") and str(o) not in known for o in options):
            continue
        prefill, = bench.measure(model, "-p", 512, "-n", 0, "-d", depth, *options)
        decode, = bench.measure(model, "-p", 0, "-n", 32, "-d", depth, *options)
        share = decode["streamed_bytes_per_token"] * decode["avg_ts"] / limits["to_device"]
        rows.append([name, depth, f"{prefill['avg_ts']:.1f}", f"{decode['avg_ts']:.1f}",
                     f"{share:.0%}" if share > 0 else "-", f"{decode['used_bytes'][1] / 2**30:.2f}"])
    return rows


def measure_all(bench, arguments, limits, folder, keep):
    full, sweep, modes = [], [], []
    for kind in arguments.types.split(","):
        model = bench.synthesize(kind, folder)
        full.append(full_offload_row(bench, kind, model, limits))
        if kind == arguments.sweep_type:
            sweep = sweep_rows(bench, model)
            modes = mode_rows(bench, model, limits)
        if not keep:
            model.unlink()
    print(f"{SHAPE}, -ngl all, t/s (decode: share of the bandwidth of a copy; prefill: share of the F16 tensor rate)\n")
    print(table(["type", "GiB", *(f"tg128 @ {d}" for d in DEPTHS), *(f"pp{n}" for n in PROMPTS)], full))
    if sweep:
        print(f"\n{SHAPE} {arguments.sweep_type}, t/s\n")
        print(table(["-ngl", "pp512", "tg32", "pp512 -nkvo", "tg32 -nkvo"], sweep))
    if modes:
        print(f"\n{SHAPE} {arguments.sweep_type} with less GPU memory, t/s (bus: share used by streamed weights)\n")
        print(table(["mode", "depth", "pp512", "tg32", "bus", "GiB on the GPU"], modes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--types", default="Q4_0,Q4_K_M,Q8_0,F16")
    parser.add_argument("--sweep-type", default="Q4_K_M")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="write all measurements to this file")
    arguments = parser.parse_args()

    program = arguments.build / "bin" / "gpu_limits"
    if not program.exists():
        print("bench-gpu: nothing measured, tandem was built without CUDA (nvcc not found)")
        return 0
    limits = json.loads(run([program]))
    if not limits["device"]:
        print(f"bench-gpu: nothing measured, {limits['why']}")
        return 0
    print(f"{limits['device']}\ncopy {limits['copy'] / 1e9:.0f} GB/s read and written, bus {limits['to_device'] / 1e9:.1f} GB/s in, "
          f"{limits['to_host'] / 1e9:.1f} GB/s out, F16 product {limits['f16'] / 1e12:.0f} Tflop/s\n", flush=True)

    bench = Bench(arguments.build, arguments.repetitions)
    if arguments.scratch:
        arguments.scratch.mkdir(parents=True, exist_ok=True)
        measure_all(bench, arguments, limits, arguments.scratch, keep=True)
    else:
        with tempfile.TemporaryDirectory(dir=arguments.build) as folder:
            measure_all(bench, arguments, limits, pathlib.Path(folder), keep=False)
    if arguments.json:
        arguments.json.write_text(json.dumps({"limits": limits, "records": bench.records}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
