#!/usr/bin/env python3
"""Compares predicted and measured speed and memory of models larger than the GPU: one table for models with random
weights under several limits of GPU memory.

    scripts/offload_report.py BUILD [--models 8B,70B] [--vram 4,8,16,24] [--scratch FOLDER] [--cpu] [--check]
                              [--limit SECONDS] [--json FILE]
    scripts/offload_report.py BUILD --mixtures [--models gpt-oss-120b] [--vram 8,16,24,32] [--ram 32,64,128]
    scripts/offload_report.py BUILD --mixtures --measure [--cpu] [--scratch FOLDER]

A model is 8B, 70B (Llama 3.1), a shape of `tandem synth` (tinyllama-1.1b; tinyllama-1.1b:4 is its first four layers), or
a GGUF file. Models (5 and 43 GB) are written one at a time to a temporary folder in BUILD; with --scratch they are kept
in that folder and reused. A model that does not fit on the disk is skipped. Each row is written to --json at once; a
command that runs past --limit is reported and the next row goes on.

Each row is the first placement of `tandem plan`, which is also the choice of `tandem bench`, run and chat. Prefill is a
prompt of 512 tokens (or a micro-batch, if larger); decode runs in the middle of the context; the predictions are for the
same. Memory on a GPU is the planned bytes of the session, and the decrease in free memory when measured (without the
driver's own); on the host it is the resident memory of the program. "of bound" is the measured speed as a share of the
bound: the speed if the only work were to read the weights that cross the bus and those that the CPU reads, one after the
other, at the measured rates.

Without a GPU, or with --cpu, only the host's row is measured, for tinyllama-1.1b unless --models is given. With --check
the exit code is 1 if a prediction is off by more than --tolerance. tinyllama-1.1b:4 is quicker to write, but runs faster
than predicted if caches hold part of its 150 MB.

--mixtures: predictions of mixtures under 8 to 32 GiB of GPU memory and 32 to 128 GiB of the host's, beside published figures
(mixture_rows.py says of which machine). With --measure, those for this machine beside what it does, of models that are written
as above, with routers that use experts by Zipf's law; with --cpu without a GPU.
"""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import gpu_steps
import mixture_rows

SHAPES = {"8B": "llama-3.1-8b", "70B": "llama-3.1-70b"}
BITS = {"Q4_0": 4.6, "Q4_K_M": 4.9, "Q5_K_M": 5.7, "Q8_0": 8.6, "MXFP4_MOE": 4.4, "F16": 16.0, "F32": 32.0}  # per weight
GIB = 2**30
OUT_OF_MEMORY = 4  # exit code
HEADER = ("model", "max VRAM", "placement", "ubatch", "prefill t/s", "measured", "off", "of bound", "decode t/s", "measured",
          "off", "of bound", "GiB planned", "measured")


class Failed(RuntimeError):
    """A failed tandem command, with its exit code and error message."""

    def __init__(self, code, why):
        super().__init__(why)
        self.code = code


def run(command, limit=None):
    print("  " + " ".join(map(str, command[1:])), file=sys.stderr, flush=True)
    try:
        result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise Failed(1, f"stopped after {limit:.0f} s: {' '.join(map(str, command[1:3]))}") from error
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if "error: " in line] or result.stderr.splitlines()[-1:]
        raise Failed(result.returncode, lines[-1].split("error: ", 1)[-1] if lines else f"exit code {result.returncode}")
    return result.stdout


class Tandem:
    def __init__(self, build, arguments):
        self.program = build / "bin" / "tandem"
        self.arguments = arguments
        self.limit = arguments.limit or None
        self.journal = gpu_steps.Journal(arguments.json)

    def has_gpu(self):
        return len(run([self.program, "plan", "--list-devices"]).splitlines()) > 1

    def plan(self, model, options):
        return json.loads(run([self.program, "plan", "-m", model, "-c", self.arguments.ctx, "--json", *options], self.limit))

    def bench(self, model, options):
        command = [self.program, "bench", "-m", model, "--ctx-size", self.arguments.ctx, "-o", "jsonl",
                   "-r", self.arguments.repetitions, *options]
        return json.loads(run(command, self.limit))

    def estimated_bytes(self, spec, file_type):
        """The estimated file size of a shape."""
        shape, _, layers = spec.partition(":")
        found = re.search(rf"^\s+{re.escape(shape)}\s+([\d.]+) B weights, (\d+) layers", run([self.program, "synth", "--list"]), re.M)
        if not found:
            raise Failed(2, f"{shape} is not a shape of `tandem synth` and not a file")
        share = int(layers) / int(found[2]) if layers else 1
        return float(found[1]) * 1e9 * BITS.get(file_type, 16.0) / 8 * (0.2 + 0.8 * share if layers else 1)

    def synthesize(self, spec, folder, file_type=None, more=()):
        file_type = file_type or self.arguments.type
        path = folder / f"{'-'.join([spec.replace(':', '-'), file_type, *map(str, more)])}.gguf"
        if path.exists():
            return path
        needed, free = self.estimated_bytes(spec, file_type) * 1.02, shutil.disk_usage(folder).free
        if needed + GIB > free:
            raise Failed(OUT_OF_MEMORY, f"its file needs {needed / 1e9:.0f} GB of disk space, {free / 1e9:.0f} GB are free")
        shape, _, layers = spec.partition(":")
        run([self.program, "synth", shape, "--type", file_type, "-o", path, *(["--layers", layers] if layers else []), *more])
        return path


def bound_speed(record, tiers, weights_read):
    """Tokens per second if reading the streamed and the host's weights were the only work; None if there are none."""
    streamed = record["streamed_bytes_per_token"]
    # The host reads all its weights once per step, except the embedding table and those that it only sends.
    step = max(1, min(record["n_prompt"], record["n_ubatch"]))
    unread = max(0, record["model_size"] - weights_read)
    on_host = max(0.0, (record["mapped_weights"] - unread) / step - streamed)
    seconds = on_host / tiers[0]["read_bytes_per_s"]
    if streamed > 0:
        seconds += streamed / tiers[1]["bus_bytes_per_s"]
    return 1 / seconds if seconds > 0 else None


def speed_cells(predicted, measured, bound):
    off = predicted / measured - 1
    return off, [f"{predicted:.1f}", f"{measured:.1f}", f"{off:+.0%}", f"{measured / bound:.0%}" if bound else "-"]


def placement_text(plan):
    cache = "GPU>" if plan["kv_prefetched"] else "CPU" if plan["kv_on_host"] else "GPU"
    extra = [f"{name} {plan[name]}" for name in ("kv_split", "n_cpu_moe") if plan.get(name)]
    rows = [plan.get(f"gpu_rows_{step}", 1) for step in ("prefill", "decode")]
    if any(0 < share < 1 for share in rows):
        extra.append("GPU rows " + "/".join(f"{share:.0%}" for share in rows))
    return ", ".join([f"ngl {plan['n_gpu_layers']}", f"stream {plan['streaming']}", f"cache {cache}", *extra])


def measured_row(tandem, name, model, limit, options):
    """The cells of a row, and the relative errors of its predictions."""
    page = tandem.plan(model, options)
    best, tiers = page["plans"][0], page["tiers"]
    n_ubatch, n_gen, n_ctx = best["n_ubatch"], tandem.arguments.gen, tandem.arguments.ctx
    prefill = tandem.bench(model, ["-p", min(n_ctx, max(512, n_ubatch)), "-n", 0, *options])
    decode = tandem.bench(model, ["-p", 0, "-n", n_gen, "-d", max(0, (n_ctx - n_gen) // 2), *options])
    weights_read = decode["weights_read_per_token"]
    off_prefill, prefill_cells = speed_cells(best["prefill_tokens_per_s"], statistics.median(prefill["samples_ts"]), bound_speed(prefill, tiers, weights_read))
    off_decode, decode_cells = speed_cells(best["decode_tokens_per_s"], statistics.median(decode["samples_ts"]), bound_speed(decode, tiers, weights_read))
    last = len(tiers) - 1
    planned, used = best["bytes"][last], max(prefill["used_bytes"][last], decode["used_bytes"][last])
    where = placement_text(best) if last > 0 else "all on the CPU"
    for record in (prefill, decode):
        if last > 0 and (record["n_gpu_layers"], record["streaming"]) != (best["n_gpu_layers"], best["streaming"]):
            where += " (bench chose another)"
    memory = [f"{planned / GIB:.2f}", f"{used / GIB:.2f}"]
    return [name, limit, where, n_ubatch, *prefill_cells, *decode_cells, *memory], [off_prefill, off_decode]


def table(header, rows):
    """A Markdown table."""
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]

    def line(cells):
        return "| " + " | ".join(str(c).rjust(w) for c, w in zip(cells, widths)) + " |"

    return "\n".join([line(header), "|" + "|".join("-" * (w + 1) + ":" for w in widths) + "|", *map(line, rows)])


def rows_of(tandem, spec, folder, keep, limits):
    """Rows, the relative errors of their predictions, and the models that could not be measured."""
    rows, off, problems = [], [], []
    given = pathlib.Path(spec)
    try:
        model = given if given.suffix == ".gguf" else tandem.synthesize(SHAPES.get(spec, spec), folder)
    except Failed as failure:
        return rows, off, [(failure.code, f"{spec}: {failure}")]
    for limit in limits:
        options = ["--device", "none"] if limit is None else ["--max-vram", f"{limit}GiB"]
        try:
            row, errors = measured_row(tandem, spec if model is not given else given.stem, model, limit or "-", options)
            rows.append(row)
            off += errors
            tandem.journal.write(kind="offload", header=HEADER, row=row)
            print("  " + " | ".join(map(str, row)), file=sys.stderr, flush=True)
        except Failed as failure:
            problems.append((failure.code, f"{spec}{f' in {limit} GiB' if limit else ''}: {failure}"))
    if not keep and model is not given:
        model.unlink()
    return rows, off, problems


def mixtures(tandem, arguments):
    """The exit code."""
    models = arguments.models.split(",") if arguments.models else list(mixture_rows.MODELS)
    numbers = lambda text: [int(n) for n in text.split(",")]
    vram, ram = numbers(arguments.vram or "8,16,24,32"), numbers(arguments.ram)
    if not arguments.measure:
        rows = []
        for row in mixture_rows.rows(tandem.plan, models, vram, ram):
            rows.append(row)
            tandem.journal.write(kind="mixture", header=mixture_rows.HEADER, row=row)
        print(table(mixture_rows.HEADER, rows))
        print("\nPublished for other mixtures, in tokens per second:\n  " + "\n  ".join(mixture_rows.OTHERS))
        return 0
    if arguments.cpu:
        vram = None
    elif not tandem.has_gpu():
        print("offload_report: no GPU; --cpu measures without one", file=sys.stderr)
        return 1
    rows, problems = [], []
    with tempfile.TemporaryDirectory(dir=arguments.build) as temporary:
        folder = arguments.scratch or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for model in models:
            file_type = mixture_rows.MODELS.get(mixture_rows.shape_of(model), arguments.type)
            try:
                path = tandem.synthesize(model, folder, file_type, ("--expert-skew", mixture_rows.SKEW))
            except Failed as failure:
                problems.append(f"{model}: {failure}")
                continue
            for row in mixture_rows.measured_rows(tandem, model, path, vram, ram):
                rows.append(row)
                tandem.journal.write(kind="mixture", header=mixture_rows.MEASURED_HEADER, row=row)
            if not arguments.scratch:
                path.unlink()
    if rows:
        print(table(mixture_rows.MEASURED_HEADER, rows))
    for problem in problems:
        print(f"not measured: {problem}")
    return 0 if rows else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--models")
    parser.add_argument("--vram", help="limits in GiB (default: 4,8,16,24)")
    parser.add_argument("--ram", default="32,64,128", help="limits of host memory in GiB, with --mixtures")
    parser.add_argument("--type", default="Q4_K_M", help="file type of the weights")
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--gen", type=int, default=32, help="tokens to decode")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--mixtures", action="store_true", help="predict the speed of mixtures; nothing is measured, unless with --measure")
    parser.add_argument("--measure", action="store_true", help="with --mixtures: write the models and measure them here")
    parser.add_argument("--cpu", action="store_true", help="measure only the host's row")
    parser.add_argument("--tolerance", type=float, default=0.15)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--limit", type=float, default=0, help="seconds for each plan and each measurement (default: no limit)")
    parser.add_argument("--json", metavar="FILE", help="append each row to FILE as a line of JSON")
    arguments = parser.parse_args()

    tandem = Tandem(arguments.build, arguments)
    if arguments.mixtures:
        return mixtures(tandem, arguments)
    has_gpu = tandem.has_gpu()
    if not has_gpu:
        print("offload_report: no GPU, measuring only the host's row\n", flush=True)
    on_host = arguments.cpu or not has_gpu
    models = arguments.models or ("tinyllama-1.1b" if on_host else "8B,70B")
    limits = [None] if on_host else (arguments.vram or "4,8,16,24").split(",")

    with tempfile.TemporaryDirectory(dir=arguments.build) as temporary:
        folder = arguments.scratch or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows, off, problems = [], [], []
        for spec in models.split(","):
            for all_of, some in zip((rows, off, problems), rows_of(tandem, spec, folder, bool(arguments.scratch), limits)):
                all_of += some
    if rows:
        print(table(HEADER, rows))
    for _, problem in problems:
        print(f"not measured: {problem}")
    within = sum(abs(x) <= arguments.tolerance for x in off)
    print(f"\n{within} of {len(off)} speeds within {arguments.tolerance:.0%} of the prediction")
    if any(code != OUT_OF_MEMORY for code, _ in problems) or not rows:
        return 1
    return 1 if arguments.check and within < len(off) else 0


if __name__ == "__main__":
    sys.exit(main())
