#!/usr/bin/env python3
"""Compares tandem's quantizers with llama.cpp's (through the llama-cpp-python package): the time of each on one F16 file
with the same threads, alternating, and the error of every tensor. Prints a Markdown table.

    scripts/compare_quantize.py --threads 2 --venv ~/.cache/tandem/peer-venv

Both quantize every matrix to the dtype of the file type (--pure). The time is the minimum of --reps runs. The error of a
tensor is the root mean square of the difference between quantized and original, dequantized by the gguf package; with an
importance matrix each square is multiplied by its column's importance. The table shows the largest ratio of errors, ours
to theirs: 1 or less means that no tensor is worse. Exits with 1 if a limit (--max-error, --min-speed for the K types)
is exceeded.
"""

import argparse
import ctypes
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "tandem"
TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q4_K_S": 14, "Q5_K_S": 16,
         "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "Q2_K_S": 21, "IQ3_S": 26, "IQ3_XXS": 23,
         "IQ2_M": 29, "IQ2_XS": 20, "IQ2_XXS": 19, "IQ1_M": 31, "IQ1_S": 24}  # IQ2_M: its matrices are IQ2_S
NEED_IMATRIX = {"Q2_K_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"}  # llama.cpp refuses to make them without
N_EMBD, N_FF, N_LAYER, N_HEAD, N_VOCAB = 1024, 2816, 2, 16, 512


# ---- inside the virtual environment ---------------------------------------------------------------------------------

def make_files(model, imatrix):
    """Writes an F16 model with normally distributed weights and some outliers, and importances over two decades."""
    import gguf
    import numpy as np

    rng = np.random.default_rng(1)
    shapes = {"token_embd.weight": (N_VOCAB, N_EMBD), "output.weight": (N_VOCAB, N_EMBD)}
    for i in range(N_LAYER):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{i}.{name}.weight"] = (N_EMBD, N_EMBD)
        shapes[f"blk.{i}.ffn_gate.weight"] = shapes[f"blk.{i}.ffn_up.weight"] = (N_FF, N_EMBD)
        shapes[f"blk.{i}.ffn_down.weight"] = (N_EMBD, N_FF)

    writer = gguf.GGUFWriter(model, "llama")
    writer.add_block_count(N_LAYER)
    writer.add_context_length(256)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_file_type(1)
    for i in range(N_LAYER):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(N_EMBD, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    for name, shape in shapes.items():
        weights = rng.standard_normal(shape, np.float32) * 0.02
        weights[rng.random(shape, np.float32) < 1e-3] *= 8
        writer.add_tensor(name, weights.astype(np.float16))
    finish(writer)

    writer = gguf.GGUFWriter(imatrix, "")
    writer.kv_data[0].pop("general.architecture", None)
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", ["random"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, shape in shapes.items():
        importance = np.exp(rng.standard_normal(shape[1]) * 1.2).astype(np.float32)
        writer.add_tensor(name + ".in_sum2", importance.reshape(1, -1) * 512)
        writer.add_tensor(name + ".counts", np.full((1, 1), 512, np.float32))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_importance(path):
    import gguf

    tensors = {tensor.name: tensor.data.reshape(-1) for tensor in gguf.GGUFReader(path).tensors}
    return {name[:-len(".in_sum2")]: sums / tensors[name[:-len(".in_sum2")] + ".counts"]
            for name, sums in tensors.items() if name.endswith(".in_sum2")}


def peer_quantize(spec):
    """Quantizes a model and prints the seconds of the call."""
    import llama_cpp as lc

    silent = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(silent, ctypes.c_void_p(0))
    params = lc.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.pure = spec["threads"], spec["ftype"], True
    if spec["imatrix"]:
        importance = read_importance(spec["imatrix"])
        entries = (lc.llama_model_imatrix_data * (len(importance) + 1))()
        for entry, (name, values) in zip(entries, importance.items()):
            entry.name, entry.size = name.encode(), len(values)
            entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = entries
    clock = time.process_time if spec["clock"] == "cpu" else time.perf_counter
    start = clock()
    if lc.llama_model_quantize(spec["model"].encode(), spec["out"].encode(), ctypes.byref(params)) != 0:
        sys.exit("llama_model_quantize failed")
    print(json.dumps(clock() - start))


def errors(spec):
    """Prints the largest and the mean ratio of the tensor errors, ours to theirs."""
    import gguf
    import numpy as np

    def read(path):
        return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}

    original, ours, theirs = (read(spec[name]) for name in ("model", "ours", "theirs"))
    importance = read_importance(spec["imatrix"]) if spec["imatrix"] else {}
    plain = np.ones(1, np.float32)
    ratios, plain_ratios = {}, []
    for name, x in original.items():
        squares = [(q[name].reshape(x.shape) - x).astype(np.float64) ** 2 for q in (ours, theirs)]
        if squares[1].any():
            weighted = [np.mean(square * importance.get(name, plain)) for square in squares]
            ratios[name] = float(np.sqrt(weighted[0] / weighted[1]))
            plain_ratios.append(float(np.sqrt(squares[0].mean() / squares[1].mean())))
    worst = max(ratios, key=ratios.get)
    print(json.dumps({"max": ratios[worst], "worst": worst, "mean": sum(ratios.values()) / len(ratios),
                      "max_unweighted": max(plain_ratios)}))


# ---- the comparison -------------------------------------------------------------------------------------------------

def run_checked(command):
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with exit code {result.returncode}:\n{result.stderr[-2000:]}")
    return result.stdout


def venv_python(venv):
    return str(pathlib.Path(venv) / "bin" / "python")


def prepare_peer(venv):
    python = venv_python(venv)
    if not pathlib.Path(python).exists():
        print(f"making a virtual environment in {venv}", file=sys.stderr)
        run_checked([sys.executable, "-m", "venv", venv])
    if subprocess.run([python, "-c", "import llama_cpp, gguf"], capture_output=True).returncode != 0:
        print("installing llama-cpp-python (compiling it takes minutes) and gguf", file=sys.stderr)
        run_checked([python, "-m", "pip", "install", "--quiet", "llama-cpp-python", "gguf"])


def in_venv(args, what, spec):
    return json.loads(run_checked([venv_python(args.venv), __file__, "--child", what, json.dumps(spec)]) or "null")


def wall_or_cpu_of_children(args):
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime if args.clock == "cpu" else time.perf_counter()


def tandem_quantize(args, spec):
    words = [args.tandem, "quantize", "--pure", "--log-disable"]
    if spec["imatrix"]:
        words += ["--imatrix", spec["imatrix"]]
    start = wall_or_cpu_of_children(args)
    run_checked(words + [spec["model"], spec["out"], spec["type"], args.threads])
    return wall_or_cpu_of_children(args) - start


def compare(args, folder, file_type, imatrix):
    spec = {"model": str(folder / "model.gguf"), "type": file_type, "ftype": TYPES[file_type],
            "imatrix": str(folder / "imatrix.gguf") if imatrix else "", "threads": args.threads, "clock": args.clock}
    ours, theirs = dict(spec, out=str(folder / "ours.gguf")), dict(spec, out=str(folder / "theirs.gguf"))
    seconds = {"ours": [], "theirs": []}
    for _ in range(args.reps):
        seconds["ours"].append(tandem_quantize(args, ours))
        seconds["theirs"].append(in_venv(args, "quantize", theirs))
    ratio = in_venv(args, "errors", dict(spec, ours=ours["out"], theirs=theirs["out"]))
    return {"type": file_type, "imatrix": imatrix, "ours_s": min(seconds["ours"]), "theirs_s": min(seconds["theirs"]),
            "speed": min(seconds["theirs"]) / min(seconds["ours"]), "error": ratio}


def row(result):
    return (f"| {result['type']} | {'yes' if result['imatrix'] else 'no'} | {result['ours_s']:.2f} | "
            f"{result['theirs_s']:.2f} | {result['speed']:.2f} | {result['error']['max']:.4f} | "
            f"{result['error']['mean']:.4f} | {result['error']['max_unweighted']:.4f} |")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=",".join(TYPES), help="file types (default %(default)s)")
    parser.add_argument("--imatrix", choices=["both", "with", "without"], default="both", help="default %(default)s")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all CPUs")
    parser.add_argument("--reps", type=int, default=3, help="repetitions (default %(default)s)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: CPU seconds of all threads, for a busy machine (default %(default)s)")
    parser.add_argument("--max-error", type=float, help="fail above this ratio of errors")
    parser.add_argument("--min-speed", type=float, help="fail below this ratio of speeds (K types)")
    parser.add_argument("--tandem", default=str(ROOT / "build/bin/tandem"), help="the program (default %(default)s)")
    parser.add_argument("--venv", default=str(CACHE / "peer-venv"), help="virtual environment (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse_args()
    if args.child:
        spec = json.loads(args.child[1])
        if args.child[0] == "make":
            return make_files(spec["model"], spec["imatrix"])
        return {"quantize": peer_quantize, "errors": errors}[args.child[0]](spec)
    prepare_peer(args.venv)
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        in_venv(args, "make", {"model": str(folder / "model.gguf"), "imatrix": str(folder / "imatrix.gguf")})
        if not args.json:
            print("| type | imatrix | tandem, s | llama.cpp, s | speed ratio | worst error ratio | mean | "
                  "worst unweighted |\n|---|---|---:|---:|---:|---:|---:|---:|")
        for imatrix in {"both": [False, True], "with": [True], "without": [False]}[args.imatrix]:
            for file_type in args.types.split(","):
                if file_type in NEED_IMATRIX and not imatrix:
                    continue
                results.append(compare(args, folder, file_type, imatrix))
                if not args.json:
                    print(row(results[-1]), flush=True)
    if args.json:
        print(json.dumps(results, indent=2))
    too_far = [r for r in results if (args.max_error and r["error"]["max"] > args.max_error)
               or (args.min_speed and "_K" in r["type"] and r["speed"] < args.min_speed)]
    return 1 if too_far else 0


if __name__ == "__main__":
    sys.exit(main())
