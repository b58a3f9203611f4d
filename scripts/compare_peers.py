#!/usr/bin/env python3
"""Compares the speed of tandem and llama.cpp (through the llama-cpp-python package) on this machine, with the same files
and threads, alternating in one run, and prints medians and ratios as a Markdown table.

    scripts/compare_peers.py --threads 2 --shape tinyllama-1.1b --types Q4_0,Q4_K_M,Q8_0,F16

The first run installs the package into a virtual environment (--venv), which compiles it for this machine's CPU; `tandem
synth` writes the model files (--models). Each measurement is a separate process: load, one warm-up of each kind, then
prefill of --prompt-len tokens as one batch (micro-batch 512) and decoding of --gen-len tokens after --depth others, with
an F16 cache, as in llama-bench. llama.cpp runs with flash attention on and off, and the faster result counts
(--flash-attn); tandem always uses flash attention.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tandem"
UBATCH = 512


# ---- llama.cpp, in a separate process -------------------------------------------------------------------------------

def peer_main(spec):
    """Runs in the virtual environment. Prints one JSON object: tokens per second of each test."""
    import ctypes

    import llama_cpp as lc

    silent = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(silent, ctypes.c_void_p(0))
    lc.llama_backend_init()
    model_params = lc.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = lc.llama_model_load_from_file(spec["model"].encode(), model_params)
    if not model:
        sys.exit("llama.cpp could not load " + spec["model"])

    params = lc.llama_context_default_params()
    params.n_ctx = max(spec["prompt_len"], spec["depth"] + spec["gen_len"]) + 8
    params.n_batch = max(spec["prompt_len"], UBATCH)
    params.n_ubatch = UBATCH
    params.n_threads = params.n_threads_batch = spec["threads"]
    params.flash_attn_type = 1 if spec["flash_attn"] == "on" else 0
    params.type_k = params.type_v = 1  # F16
    context = lc.llama_init_from_model(model, params)
    if not context:
        sys.exit("llama.cpp could not make a context")
    memory = lc.llama_get_memory(context)
    n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))

    def run(n_tokens, n_batch, depth=0):
        """Tokens per second of n_tokens in batches of n_batch, in a context of `depth` tokens."""
        lc.llama_memory_clear(memory, True)
        if depth > 0:
            feed(depth, params.n_batch)
        start = time.perf_counter()
        feed(n_tokens, n_batch)
        return n_tokens / (time.perf_counter() - start)

    def feed(n_tokens, n_batch):
        tokens = [(7919 * i + 13) % n_vocab for i in range(n_tokens)]
        for first in range(0, n_tokens, n_batch):
            part = tokens[first:first + n_batch]
            ids = (lc.llama_token * len(part))(*part)  # the batch does not copy them
            if lc.llama_decode(context, lc.llama_batch_get_one(ids, len(part))) != 0:
                sys.exit("llama_decode failed")
            lc.llama_synchronize(context)

    run(spec["prompt_len"], spec["prompt_len"])
    run(2, 1)
    result = {
        "prefill": run(spec["prompt_len"], spec["prompt_len"]),
        "decode": run(spec["gen_len"], 1, spec["depth"]),
        "version": lc.__version__,
        "system": lc.llama_print_system_info().decode().strip(" |"),
    }
    print(json.dumps(result))


# ---- measurements ---------------------------------------------------------------------------------------------------

def run_checked(command, **options):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with exit code {result.returncode}:\n{result.stderr[-2000:]}")
    return result.stdout


def measure_peer(args, model, flash_attn):
    """Tokens per second of one run of each test, with llama.cpp's version and system information."""
    spec = {"model": str(model), "threads": args.threads, "prompt_len": args.prompt_len, "gen_len": args.gen_len,
            "flash_attn": flash_attn, "depth": args.depth}
    output = run_checked([venv_python(args.venv), __file__, "--peer-child", json.dumps(spec)])
    return json.loads(output.strip().splitlines()[-1])


def measure_tandem(args, model):
    """Tokens per second of one run of each test."""
    def bench(*what):
        words = [args.tandem, "bench", "-m", model, "-r", 1, "-t", args.threads, "-ub", UBATCH, "-o", "jsonl", *what]
        return json.loads(run_checked([str(word) for word in words]))["avg_ts"]

    return {"prefill": bench("-p", args.prompt_len, "-n", 0),
            "decode": bench("-p", 0, "-n", args.gen_len, "-d", args.depth)}


# ---- preparation ----------------------------------------------------------------------------------------------------

def venv_python(venv):
    return str(pathlib.Path(venv) / "bin" / "python")


def prepare_peer(venv, version):
    """Makes a virtual environment that can import llama_cpp; the first call compiles it from source."""
    python = venv_python(venv)
    if not pathlib.Path(python).exists():
        print(f"making a virtual environment in {venv}", file=sys.stderr)
        run_checked([sys.executable, "-m", "venv", str(venv)])
    if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode != 0:
        package = "llama-cpp-python" + (f"=={version}" if version else "")
        print(f"installing {package} (compiling it takes minutes)", file=sys.stderr)
        run_checked([python, "-m", "pip", "install", "--quiet", package])


def prepare_model(args, file_type):
    path = pathlib.Path(args.models) / f"{args.shape}-{file_type}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f"writing {path}", file=sys.stderr)
        run_checked([args.tandem, "synth", args.shape, "--type", file_type, "-o", str(path)])
    return path


# ---- the comparison -------------------------------------------------------------------------------------------------

def contestants(args):
    """(label, measuring function) of each contestant; a repetition runs them in turn."""
    turns = []
    if args.only != "peer":
        turns.append(("tandem", measure_tandem))
    if args.only != "tandem":
        for setting in ["on", "off"] if args.flash_attn == "both" else [args.flash_attn]:
            turns.append((f"llama.cpp, flash attention {setting}",
                          lambda args, model, setting=setting: measure_peer(args, model, setting)))
    return turns


def compare(args, file_type):
    """All samples of one file, and the medians: {program: {test: tokens per second}}, for llama.cpp the best setting."""
    model = prepare_model(args, file_type)
    samples, peer = {}, {}
    for repetition in range(args.reps):
        for label, measure in contestants(args):
            result = measure(args, model)
            for test in ("prefill", "decode"):
                samples.setdefault((label, test), []).append(result[test])
            peer.update({key: result[key] for key in ("version", "system") if key in result})
            print(f"{file_type} {repetition + 1}/{args.reps} {label}: prefill {result['prefill']:.2f}, "
                  f"decode {result['decode']:.2f} t/s", file=sys.stderr)
    medians = {}
    for (label, test), values in samples.items():
        best = medians.setdefault("tandem" if label == "tandem" else "peer", {})
        best[test] = max(best.get(test, 0), statistics.median(values))
    detail = [{"program": label, "test": test, "samples_ts": values, "median_ts": statistics.median(values)}
              for (label, test), values in samples.items()]
    return {"model": args.shape, "type": file_type, "medians": medians, "samples": detail, "peer": peer}


def table(results, args):
    head = ["model", "type"]
    depth = f" at {args.depth}" if args.depth > 0 else ""
    for test in (f"prefill {args.prompt_len}", f"decode {args.gen_len}{depth}"):
        head += [f"{test}: tandem", "llama.cpp", "ratio"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * 6]
    for result in results:
        cells = [result["model"], result["type"]]
        for test in ("prefill", "decode"):
            ours, peer = (result["medians"].get(name, {}).get(test) for name in ("tandem", "peer"))
            cells += [f"{ours:.1f}" if ours else "-", f"{peer:.1f}" if peer else "-",
                      f"{ours / peer:.2f}" if ours and peer else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tinyllama-1.1b", help="a shape of `tandem synth` (default %(default)s)")
    parser.add_argument("--types", default="Q4_0,Q4_K_M,Q8_0,F16", help="file types (default %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all CPUs")
    parser.add_argument("--prompt-len", type=int, default=512, help="default %(default)s")
    parser.add_argument("--gen-len", type=int, default=64, help="default %(default)s")
    parser.add_argument("--depth", type=int, default=0, help="tokens in the context before decoding (default %(default)s)")
    parser.add_argument("--reps", type=int, default=3, help="repetitions (default %(default)s)")
    parser.add_argument("--flash-attn", choices=["both", "on", "off"], default="both", help="of llama.cpp; default both, the faster one counts")
    parser.add_argument("--only", choices=["tandem", "peer"], help="measure only one program (peer: llama.cpp)")
    parser.add_argument("--tandem", default=str(ROOT / "build/bin/tandem"), help="the program (default %(default)s)")
    parser.add_argument("--venv", default=str(CACHE / "peer-venv"), help="virtual environment (default %(default)s)")
    parser.add_argument("--models", default=str(CACHE / "models"), help="where models are kept (default %(default)s)")
    parser.add_argument("--peer-version", help="version of llama-cpp-python to install (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print every sample as JSON instead of the table")
    parser.add_argument("--peer-child", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse_args()
    if args.peer_child:
        return peer_main(json.loads(args.peer_child))
    if args.only != "tandem":
        prepare_peer(args.venv, args.peer_version)
    results = [compare(args, file_type) for file_type in args.types.split(",")]
    if args.json:
        print(json.dumps({"cpu": cpu_name(), "threads": args.threads, "results": results}, indent=2))
    else:
        version = next((r["peer"]["version"] for r in results if r["peer"]), None)
        print(f"{cpu_name()}, {args.threads} threads" + (f", llama-cpp-python {version}" if version else ""))
        print(f"Tokens per second, medians of {args.reps}, llama.cpp with flash attention: {args.flash_attn}.\n")
        print(table(results, args))


if __name__ == "__main__":
    main()
