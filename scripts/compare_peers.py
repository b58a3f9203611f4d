#!/usr/bin/env python3
"""Compares the speed of tandem and llama.cpp (through the llama-cpp-python package) on this machine, with the same files
and threads, alternating in one run, and prints medians and ratios as a Markdown table, with what the machine can do at most,
measured before and after each model.

    scripts/compare_peers.py --threads 2 --shape tinyllama-1.1b --types Q4_0,Q4_K_M,Q8_0,F16
    scripts/compare_peers.py --shape tinyllama-1.1b --types Q4_K_M --tests pp512,pp512@4096,tg32@4096,pp2,pp4,pp8,pp16,tg32
    scripts/compare_peers.py --shape qwen3-30b-a3b --layers 6 --types Q4_K_M
    scripts/compare_peers.py --isa avx2       as on a CPU without AVX-512

The first run installs the package into a virtual environment (--venv), which compiles it for this machine's CPU: with clang
if the CPU has AMX, because g++ 12 compiles llama.cpp's AMX kernels to code that crashes. `tandem synth`
writes the model files (--models). The limits are those of build/bin/cpu_limits, which `make test` builds.

Tests are named as in llama-bench: ppN computes N tokens as one batch (micro-batch 512), which for few tokens is what a batch
of texts or a guess costs; tgN generates N tokens one by one; @D behind D tokens of context. Each measurement is a separate
process: load, a warm-up, then the tests, with an F16 cache. llama.cpp runs with flash attention on and off, and the faster
result counts (--flash-attn); tandem always uses flash attention.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tandem"
UBATCH = 512


def parse_test(name):
    """("pp" or "tg", tokens, depth) of a test such as tg64@4096."""
    match = re.fullmatch(r"(pp|tg)([1-9][0-9]*)(?:@([0-9]+))?", name)
    if not match:
        sys.exit(f"no test: {name} (for instance pp512, pp8, tg64, tg64@4096)")
    return match[1], int(match[2]), int(match[3] or 0)


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
    tests = [parse_test(name) for name in spec["tests"]]
    params.n_ctx = max(n + depth for _, n, depth in tests) + 8
    params.n_batch = max(UBATCH, max(n for _, n, _ in tests))
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

    def measure(kind, n, depth):
        size = 1 if kind == "tg" else n
        run(2 * size if kind == "tg" else size, size)  # warm-up
        return run(n, size, depth)

    result = {
        "tests": {name: measure(*test) for name, test in zip(spec["tests"], tests)},
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
    spec = {"model": str(model), "threads": args.threads, "tests": args.tests, "flash_attn": flash_attn}
    output = run_checked([venv_python(args.venv), __file__, "--peer-child", json.dumps(spec)])
    return json.loads(output.strip().splitlines()[-1])


def measure_tandem(args, model):
    """Tokens per second of one run of each test."""
    def bench(kind, n, depth):
        what = ["-p", n, "-n", 0] if kind == "pp" else ["-p", 0, "-n", n]
        words = [args.tandem, "bench", "-m", model, "-r", 1, "-t", args.threads, "-ub", UBATCH, "-d", depth, "-o", "jsonl",
                 *what, *(["--isa", args.isa] if args.isa else [])]
        return json.loads(run_checked([str(word) for word in words]))["avg_ts"]

    return {"tests": {name: bench(*parse_test(name)) for name in args.tests}}


def measure_limits(args):
    """What cpu_limits prints, as {name: value}; nothing where it was not built."""
    program = pathlib.Path(args.tandem).parent / "cpu_limits"
    if not program.exists():
        return {}
    limits = json.loads(run_checked([str(program), str(args.threads)]))
    return {"read, GB/s": limits["read_gb_s"],
            **{f"{peak['of']} with {peak['with']}, Gop/s": peak["gop_s"] for peak in limits["peaks"]}}


# ---- preparation ----------------------------------------------------------------------------------------------------

def venv_python(venv):
    return str(pathlib.Path(venv) / "bin" / "python")


def compiler_of_peer():
    """Environment that chooses a compiler, and its name: clang for a CPU with AMX."""
    has_amx = "amx_int8" in pathlib.Path("/proc/cpuinfo").read_text().split()
    if not has_amx:
        return {}, "the default compiler"
    for suffix in [*(f"-{version}" for version in range(25, 14, -1)), ""]:
        if shutil.which("clang++" + suffix) and shutil.which("clang" + suffix) and knows_amx("clang++" + suffix):
            return {"CC": "clang" + suffix, "CXX": "clang++" + suffix}, "clang" + suffix
    sys.exit("for a CPU with AMX llama.cpp is compiled with clang: install a newer one")


def knows_amx(compiler):
    """Whether it has, for this CPU, the name by which llama.cpp asks for AMX: clang 14 calls it otherwise."""
    macros = run_checked([compiler, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"])
    return "__AMX_INT8__" in macros.split()


# Of --isa, what llama.cpp is compiled with instead of everything that this machine has.
PEER_OPTIONS = {"avx2": ["AVX", "AVX2", "FMA", "F16C", "BMI2"], "avx_vnni": ["AVX", "AVX2", "FMA", "F16C", "BMI2", "AVX_VNNI"]}


def prepare_peer(venv, version, isa):
    """Makes a virtual environment that can import llama_cpp; the first call compiles it from source."""
    python = venv_python(venv)
    if not pathlib.Path(python).exists():
        print(f"making a virtual environment in {venv}", file=sys.stderr)
        run_checked([sys.executable, "-m", "venv", str(venv)])
    if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode != 0:
        package = "llama-cpp-python" + (f"=={version}" if version else "")
        environment, compiler = compiler_of_peer()
        if isa:
            options = ["-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=ON" for name in PEER_OPTIONS[isa])]
            environment = {**environment, "CMAKE_ARGS": " ".join(options)}
        print(f"installing {package} (compiling it takes minutes, with {compiler})", file=sys.stderr)
        # A wheel that pip keeps may have been compiled for other instructions.
        run_checked([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", package], env={**os.environ, **environment})


def prepare_model(args, file_type):
    layers = ["--layers", str(args.layers)] if args.layers else []
    path = pathlib.Path(args.models) / f"{'-'.join([args.shape, *layers[1:], file_type])}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        print(f"writing {path}", file=sys.stderr)
        run_checked([args.tandem, "synth", args.shape, *layers, "--type", file_type, "-o", str(path)])
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
    samples, peer, limits = {}, {}, [measure_limits(args)]
    for repetition in range(args.reps):
        for label, measure in contestants(args):
            result = measure(args, model)
            for test, speed in result["tests"].items():
                samples.setdefault((label, test), []).append(speed)
            peer.update({key: result[key] for key in ("version", "system") if key in result})
            speeds = ", ".join(f"{test} {speed:.2f}" for test, speed in result["tests"].items())
            print(f"{file_type} {repetition + 1}/{args.reps} {label}: {speeds} t/s", file=sys.stderr)
    limits.append(measure_limits(args))
    medians = {}
    for (label, test), values in samples.items():
        best = medians.setdefault("tandem" if label == "tandem" else "peer", {})
        best[test] = max(best.get(test, 0), statistics.median(values))
    detail = [{"program": label, "test": test, "samples_ts": values, "median_ts": statistics.median(values)}
              for (label, test), values in samples.items()]
    name = args.shape + (f", {args.layers} layers" if args.layers else "")
    return {"model": name, "type": file_type, "medians": medians, "samples": detail, "peer": peer, "limits": limits}


def table(results, args):
    lines = ["| model | type | test | tandem | llama.cpp | ratio |", "|---|---|---|---:|---:|---:|"]
    for result in results:
        for test in args.tests:
            ours, peer = (result["medians"].get(name, {}).get(test) for name in ("tandem", "peer"))
            cells = [result["model"], result["type"], test, f"{ours:.1f}" if ours else "-", f"{peer:.1f}" if peer else "-",
                     f"{ours / peer:.2f}" if ours and peer else "-"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def limits_line(results):
    """Lowest and highest value of each limit in the run."""
    measured = [limits for result in results for limits in result["limits"] if limits]
    if not measured:
        return "no limits: build/bin/cpu_limits is not there"
    def span(name):
        values = [limits[name] for limits in measured]
        return f"{name}: {min(values):g} - {max(values):g}"
    return "What the machine did at most meanwhile: " + "; ".join(span(name) for name in measured[0]) + "."


def peer_paths(results):
    """The instructions that llama.cpp says it was built for."""
    system = next((result["peer"]["system"] for result in results if result["peer"]), "")
    return ", ".join(re.findall(r"(\w+) = 1", system))


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
    parser.add_argument("--layers", type=int, default=0, help="only the first layers of the shape (default: all)")
    parser.add_argument("--tests", type=lambda names: names.split(","), default=["pp512", "tg64"],
                        help="comma-separated, default pp512,tg64")
    parser.add_argument("--reps", type=int, default=3, help="repetitions (default %(default)s)")
    parser.add_argument("--flash-attn", choices=["both", "on", "off"], default="both", help="of llama.cpp; default both, the faster one counts")
    parser.add_argument("--only", choices=["tandem", "peer"], help="measure only one program (peer: llama.cpp)")
    parser.add_argument("--tandem", default=str(ROOT / "build/bin/tandem"), help="the program (default %(default)s)")
    parser.add_argument("--isa", choices=PEER_OPTIONS, help="both programs with the instructions of an older CPU (default: all of this one's)")
    parser.add_argument("--venv", help=f"virtual environment (default {CACHE}/peer-venv, with --isa another)")
    parser.add_argument("--models", default=str(CACHE / "models"), help="where models are kept (default %(default)s)")
    parser.add_argument("--peer-version", help="version of llama-cpp-python to install (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print every sample as JSON instead of the table")
    parser.add_argument("--peer-child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.venv = args.venv or str(CACHE / ("peer-venv" + (f"-{args.isa}" if args.isa else "")))
    for name in args.tests:
        parse_test(name)
    return args


def main():
    args = parse_args()
    if args.peer_child:
        return peer_main(json.loads(args.peer_child))
    if args.only != "tandem":
        prepare_peer(args.venv, args.peer_version, args.isa)
    results = [compare(args, file_type) for file_type in args.types.split(",")]
    if args.json:
        print(json.dumps({"cpu": cpu_name(), "threads": args.threads, "results": results}, indent=2))
    else:
        version = next((r["peer"]["version"] for r in results if r["peer"]), None)
        print(f"{cpu_name()}{f' as {args.isa}' if args.isa else ''}, {args.threads} threads" + (f", llama-cpp-python {version}" if version else ""))
        print(f"Tokens per second, medians of {args.reps}, llama.cpp with flash attention: {args.flash_attn}.")
        if version:
            print(f"llama.cpp was built for {peer_paths(results)}.")
        print(limits_line(results) + "\n")
        print(table(results, args))


if __name__ == "__main__":
    main()
