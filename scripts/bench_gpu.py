#!/usr/bin/env python3
"""Measures tandem on the first NVIDIA GPU, with random weights in the shape of Llama 3.1 8B, and prints a table whose
rows appear as they are measured.

    scripts/bench_gpu.py BUILD [--sections decode,chains,attention,products,prefill,streamed,modes,layers,long,types] [--scratch FOLDER]
                         [--types Q4_K_M,Q8_0,F16,Q4_0] [--limit SECONDS] [--total SECONDS] [--json FILE]
    scripts/bench_gpu.py --table FILE...    prints the table of --json files

decode     tokens one by one, with 0, 4096 and 16384 tokens in the cache
chains     the same with chains, a layer's products in one launch, of pairs of rows and of tiles (TANDEM_CUDA_CHAINS=tiles), and with kernels
           of their own (TANDEM_CUDA_CHAINS=0), in turn
attention  decode over caches of F16, Q8_0 and Q4_0 with attention on tensor cores, and in floats
           (TANDEM_CUDA_ATTENTION=floats), in turn
prefill    prompts, at micro-batches of 512 and 2048 tokens
streamed   all weights in host memory, sent to the GPU for every step
modes      other placements that need less GPU memory: weights, cache, both
layers     some layers on the GPU, the cache there or on the host (-nkvo)
long       32768 and 65536 tokens in the cache, also as q8_0
types      decode and prefill of the other --types

All but the last use the first of --types. Models (5 to 16 GB each) are written one at a time to a temporary folder in
BUILD; with --scratch they are kept in that folder and reused. Each command has its own limit; one that fails or runs past
it is a row that says so, the others go on, and the exit code is 1. Without a GPU the script says so and exits with 0;
--cpu runs the same commands there without one, to try the script (--shape tinyllama-1.1b:2 is its first two layers).

The share: of decode, the bytes of weights and cache that a token reads, times the measured speed, of the rate at which a
copy on the device reads and writes; of prefill, the operations of matrices and attention, of cuBLAS's F16 rate; of
streamed weights, of the rate at which pinned memory is copied to the device.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import gpu_steps
from gpu_steps import OutOfTime, say

# Of Llama 3.1 8B: layers, width, width of keys and of values, width inside the MLP.
SHAPE, N_LAYER, N_EMBD, N_KV, N_FF = "llama-3.1-8b", 32, 4096, 1024, 14336
MATRIX_ELEMENTS = N_LAYER * N_EMBD * (2 * N_EMBD + 2 * N_KV + 3 * N_FF)  # multiplied for each prompt token
ALL = ["-ngl", 99]
STREAM = ["--gpu-weights-percent", 0, "--stream-weights", "on"]


def decode(depths, options, n=128):
    return ["-p", 0, "-n", n, "-d", ",".join(map(str, depths)), *options]


def prefill(prompts, options):
    return ["-p", ",".join(map(str, prompts)), "-n", 0, *options]


def both(name, options, depth=0):
    """A short prompt, then decoding, after `depth` tokens."""
    return [(name, ["-p", 512, "-n", 0, "-d", depth, *options]), (name, decode([depth], options, 32))]


# The last words of a name, and what they are in the environment.
CHAINS = {"in chains": "TANDEM_CUDA_CHAINS=1", "in chains of tiles": "TANDEM_CUDA_CHAINS=tiles", "without chains": "TANDEM_CUDA_CHAINS=0"}
PRODUCTS = {"by wgmma": "TANDEM_CUDA_WGMMA=1", "by cuBLAS": "TANDEM_CUDA_WGMMA=0"}
ATTENTION = {"on tensor cores": "TANDEM_CUDA_ATTENTION=packed", "in floats": "TANDEM_CUDA_ATTENTION=floats"}

# Of each section the commands: (name, options of `tandem bench`).
SECTIONS = {
    "decode": [("all on the GPU", decode([0, 4096, 16384], ALL))],
    "chains": [(f"all on the GPU, {how}", decode([0, 4096, 16384], ALL)) for how in (*CHAINS, *CHAINS)],
    "attention": [(f"cache of {cache}, {how}", decode([4096, 16384], [*ALL, "-ctk", cache, "-ctv", cache], 64))
                  for cache in ("f16", "q8_0", "q4_0") for how in (*ATTENTION, *ATTENTION)],
    "products": [(f"all on the GPU, {how}", prefill([256, 512, 2048], ["-ub", 2048, *ALL])) for how in (*PRODUCTS, *PRODUCTS)],
    "prefill": [("all on the GPU", prefill([512, 2048], ["-ub", 512, *ALL])),
                ("all on the GPU", prefill([2048, 4096], ["-ub", 2048, *ALL])),
                ("all on the GPU, after 16k", ["-p", 512, "-n", 0, "-d", 16384, *ALL])],
    "streamed": [("all weights streamed, not pinned", decode([0], [*STREAM, "--pin-weights", "off"], 32)),
                 ("all weights streamed", decode([0], STREAM, 32)),
                 ("all weights streamed", prefill([512], ["-ub", 512, *STREAM])),
                 ("all weights streamed", prefill([2048], ["-ub", 2048, *STREAM])),
                 ("all weights streamed, not pinned", prefill([512, 2048], ["-ub", 2048, *STREAM, "--pin-weights", "off"]))],
    "modes": [*both("half of the weights streamed", ["--gpu-weights-percent", 50, "--stream-weights", "on"]),
              *both("half on the CPU", ["-ngl", 16, "--stream-weights", "off"]),
              *both("half on the CPU, prompts streamed", ["-ngl", 16]),
              *both("half on both", ["-ngl", 16, "--stream-weights", "on", "--gpu-rows", 50]),
              *both("cache on the GPU", ALL, 16384),
              *both("cache on the host", [*ALL, "-nkvo", 1], 16384),
              *both("cache prefetched", [*ALL, "--kv-offload", "prefetch"], 16384),
              *both("cache split, newest 4k on the GPU", [*ALL, "--kv-split", 4096], 16384)],
    "layers": [(f"-ngl {n}{' -nkvo' if on_host else ''}", ["-p", 512, "-n", 32, "-ngl", n, "-nkvo", on_host])
               for n in (0, 8, 16, 24, 99) for on_host in (0, 1)],
    "long": [("all on the GPU", decode([32768, 65536], ALL, 32)),
             ("all on the GPU, cache q8_0", decode([16384, 65536], [*ALL, "-ctk", "q8_0", "-ctv", "q8_0"], 32))],
}
OTHER_TYPES = [("all on the GPU", decode([0, 16384], ALL, 64)), *((f"all on the GPU, {how}", decode([0, 16384], ALL, 64)) for how in list(CHAINS)[1:]), *((f"all on the GPU, {how}", prefill([512, 2048], ["-ub", 2048, *ALL])) for how in PRODUCTS)]
WIDTHS = (9, 8, 33, 15, 6, 9, 8, 22, 7)
HEADER = ("section", "type", "placement", "test", "ubatch", "t/s", "± t/s", "share of", "GiB GPU")


def operations_per_token(n_prompt):
    """One multiplication and one addition per matrix element, and per position in attention."""
    return 2 * MATRIX_ELEMENTS + 4 * N_LAYER * N_EMBD * (n_prompt + 1) / 2


def share_of_limits(record, limits):
    """The measured rate as a share of the GPU's, and what of; None where there is nothing to compare with."""
    speed, streamed = record["avg_ts"], record["streamed_bytes_per_token"]
    if not limits:
        return None
    if streamed > 0:
        return streamed * speed / limits["to_device"], "bus"
    if record["n_gpu_layers"] < N_LAYER or record["kv_on_host"]:
        return None
    if record["n_gen"] > 0:
        return record["bytes_per_token"] * speed / limits["copy"], "copy bandwidth"
    if record["n_depth"] == 0:
        return operations_per_token(record["n_prompt"]) * speed / limits["f16"], "F16 rate"
    return None


def cells_of(row):
    head = (row["section"], row["type"], row["name"])
    if "error" in row:
        return (*head, row["error"], "", "", "", "", "")
    r = row["record"]
    test = (f"tg{r['n_gen']}" if r["n_gen"] else f"pp{r['n_prompt']}") + (f" @ {r['n_depth']}" if r["n_depth"] else "")
    share = f"{row['share'][0]:.1%} {row['share'][1]}" if row.get("share") else "-"
    on_gpu = f"{r['used_bytes'][1] / 2**30:.2f}" if len(r["used_bytes"]) > 1 else "-"
    return (*head, test, r["n_ubatch"], f"{r['avg_ts']:.1f}", f"{r['stddev_ts']:.1f}", share, on_gpu)


def table_line(cells):
    left = (0, 1, 2)
    padded = [str(c).ljust(w) if i in left else str(c).rjust(w) for i, (c, w) in enumerate(zip(cells, WIDTHS))]
    return "| " + " | ".join(padded) + " |"


def say_header():
    say(table_line(HEADER))
    say("|" + "|".join("-" * (w + 1) + ("-" if i < 3 else ":") for i, w in enumerate(WIDTHS)) + "|")


class Bench:
    """Runs the program and reports its results one by one."""

    def __init__(self, arguments, limits_of_gpu, folder):
        self.arguments, self.limits_of_gpu, self.folder = arguments, limits_of_gpu, folder
        self.program = arguments.build / "bin" / "tandem"
        self.time = gpu_steps.Limits(arguments.limit, arguments.total)
        self.journal = gpu_steps.Journal(arguments.json)
        self.n_measured = self.n_failed = 0

    def report(self, **row):
        self.n_measured += "error" not in row
        self.n_failed += "error" in row
        self.journal.write(kind="bench", **row)
        say(table_line(cells_of(row)))

    def lines(self, command, environment=()):
        """The lines of a command of the program; its last line on stderr explains a failure."""
        with tempfile.TemporaryFile("w+") as errors:
            try:
                yield from gpu_steps.lines_of(["env", *environment, self.program, *command], self.time.next(), errors=errors)
            except subprocess.CalledProcessError as error:
                errors.seek(0)
                last = (errors.read().strip() or "no message").splitlines()[-1]
                raise RuntimeError(f"exit code {error.returncode}: {last}") from error

    def measure(self, section, kind, name, model, options):
        if self.arguments.cpu:
            options = [*on_the_cpu(options), "--device", "none"]
        command = ["bench", "-m", model, "-r", self.arguments.repetitions, "-o", "jsonl", *options]
        row = {"section": section, "type": kind, "name": name, "options": " ".join(map(str, options))}
        try:
            for line in self.lines(command, [value for how, value in (CHAINS | ATTENTION | PRODUCTS).items() if name.endswith(how)]):
                record = json.loads(line)
                self.report(**row, record=record, share=share_of_limits(record, self.limits_of_gpu))
        except (OutOfTime, RuntimeError, ValueError) as error:
            self.report(**row, error=str(error))

    def model(self, kind):
        """The path of a model of this type, written if it does not exist."""
        shape, _, layers = self.arguments.shape.partition(":")
        path = self.folder / f"{self.arguments.shape.replace(':', '-')}-{kind}.gguf"
        if not path.exists():
            for _ in self.lines(["synth", shape, "--type", kind, "-o", path, *(["--layers", layers] if layers else [])]):
                pass
        return path

    def run(self, sections, kind, commands_of, keep):
        try:
            model = self.model(kind)
        except (OutOfTime, RuntimeError) as error:
            self.report(section="model", type=kind, name="write the model", error=str(error))
            return
        for section in sections:
            for name, options in commands_of(section):
                self.measure(section, kind, name, model, options)
        if not keep:
            model.unlink()


def on_the_cpu(options):
    """The same command without the options that need a GPU, and with small numbers of tokens."""
    kept, words = [], iter(options)
    for word in words:
        value = next(words)
        if word in ("-p", "-n", "-d"):
            kept += [word, ",".join(str(min(int(n), 16)) for n in str(value).split(","))]
        elif word in ("-ub", "-ctk", "-ctv"):
            kept += [word, value]
    return kept


def limits_of_gpu(program, time):
    """What the first GPU can do at most, or why there is none."""
    return json.loads("".join(gpu_steps.lines_of([program], time.next(), errors=sys.stderr)))


def print_tables(files):
    say_header()
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if row["kind"] == "bench":
                say(table_line(cells_of(row)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--shape", default=SHAPE)
    parser.add_argument("--types", default="Q4_K_M,Q8_0,F16,Q4_0")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--table", type=pathlib.Path, nargs="+", metavar="FILE")
    known = (*SECTIONS, "types")
    gpu_steps.add_options(parser, known, 180)
    arguments = parser.parse_args()
    if arguments.table:
        print_tables(arguments.table)
        return 0
    if not arguments.build:
        parser.error("the build folder is missing")
    sections = gpu_steps.chosen_sections(parser, arguments.sections, known)
    gpu_steps.end_children_on_sigterm()

    limits = None
    if not arguments.cpu:
        program = arguments.build / "bin" / "gpu_limits"
        if not program.exists():
            say("bench-gpu: nothing measured, tandem was built without CUDA")
            return 0
        limits = limits_of_gpu(program, gpu_steps.Limits(60, 0))
        if not limits["device"]:
            say(f"bench-gpu: nothing measured, {limits['why']}")
            return 0
        say(f"{limits['device']}\ncopy {limits['copy'] / 1e9:.0f} GB/s read and written, bus {limits['to_device'] / 1e9:.1f} "
            f"GB/s in, {limits['to_host'] / 1e9:.1f} GB/s out, F16 product {limits['f16'] / 1e12:.0f} Tflop/s\n")

    with tempfile.TemporaryDirectory(dir=arguments.build) as temporary:
        folder = arguments.scratch or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(arguments, limits, folder)
        bench.journal.write(kind="limits", **(limits or {}))
        say_header()
        first, *others = arguments.types.split(",")
        own = [section for section in sections if section != "types"]
        if own:
            bench.run(own, first, SECTIONS.get, bool(arguments.scratch))
        if "types" in sections:
            for kind in others:
                bench.run(["types"], kind, lambda _: OTHER_TYPES, bool(arguments.scratch))
    say(f"\n{bench.n_measured} measured, {bench.n_failed} failed")
    return 1 if bench.n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
