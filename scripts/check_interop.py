#!/usr/bin/env python3
"""Checks that tandem and other GGUF programs (the gguf package, llama.cpp) read each other's files.

    scripts/check_interop.py [--hf FOLDER] [--tandem build/bin/tandem] [--model models/tandem-demo-Q8_0.gguf]

Needs the Python packages gguf, numpy and llama-cpp-python.

Reads the files that tandem writes (quantize, split, and convert of each --hf folder) with gguf.GGUFReader: its names,
shapes, dtypes and metadata must match `tandem inspect`, and its dequantized tensors must be close to those of the
original file. Then tandem continues a few prompts greedily, and llama.cpp is fed the same tokens one by one: at each it
must prefer the token that tandem chose. Files written by llama.cpp's quantizer are checked in the same way in tandem;
their perplexity may differ from that of tandem's quantization by --max-ppl.

A tie is not a failure: llama.cpp prefers another token, but its logit for ours is so close to the best that rounding
explains the difference: within 0.01 if the weights are F32 and F16, within 0.1 if some are quantized or BF16, because
activations are then rounded to 8 bits too. More than one tie in 20 tokens is a failure. The script counts the ties and
shows the first of each file below the table. Exits with 1 if a check failed.
"""

import argparse
import ctypes
import json
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
    MISSING = None
except ImportError as error:  # --help works without them
    MISSING = error.name

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPTS = ["Once upon a time", "One rainy day, Mia", "A little fox", "\"Where is my red ball?\" said",
           "Tom and Anna went to the", "In the forest there was"]
OUR_TYPES = ["F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0",
             "IQ4_NL", "IQ4_XS", "Q3_K_M", "Q2_K"]
THEIR_TYPES = {"Q8_0": 7, "Q4_K_M": 15, "Q4_0": 2, "F16": 1}  # values of llama_ftype
OUT_TYPES = ["f32", "f16", "bf16", "q8_0"]
N_CTX = 256  # in both programs, because some kinds of RoPE scaling depend on it
PRECISE = {"F32", "F16"}
TIE_OF_PRECISE, TIE_OF_OTHERS, MAX_TIES = 0.01, 0.1, 0.05
# Limits on the relative RMS error by dtype: slightly above that of normally distributed weights.
MAX_ERROR = {"F32": 1e-7, "F16": 1e-3, "BF16": 4e-3, "Q8_0": 0.012, "Q6_K": 0.03, "Q5_K": 0.06, "Q5_1": 0.06,
             "Q5_0": 0.07, "Q4_K": 0.12, "Q4_1": 0.12, "Q4_0": 0.14, "IQ4_NL": 0.12, "IQ4_XS": 0.12, "MXFP4": 0.2,
             "Q3_K": 0.25, "Q2_K": 0.5}


class Failed(Exception):
    """A failed check; the message is one line."""


def run(*command):
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                            check=False)
    if result.returncode != 0:
        raise Failed(f"{pathlib.Path(command[0]).name} {command[1]}: exit code {result.returncode}: "
                     f"{(result.stderr.strip() or '-').splitlines()[-1]}")
    return result.stdout


# ---- llama.cpp, in a separate process because its assertions abort --------------------------------------------------

def peer_quantize(spec):
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize = 1, spec["ftype"], True
    if llama_cpp.llama_model_quantize(spec["model"].encode(), spec["out"].encode(), ctypes.byref(params)) != 0:
        sys.exit("llama_model_quantize failed")
    return {}


def peer_follow(spec):
    """Feeds our tokens to llama.cpp one by one. Returns where it prefers another, as [prompt, position, our token,
    its token, gap between their logits]."""
    import llama_cpp

    llm = llama_cpp.Llama(spec["model"], n_ctx=N_CTX, n_threads=1, logits_all=True, verbose=False)
    found = {"n_tokens": 0, "differ": [], "prompts": []}
    for number, text in enumerate(spec["texts"]):
        prompt = llm.tokenize(text["prompt"].encode(), add_bos=True, special=True)
        found["prompts"].append(prompt)
        if text["tokens"][:len(prompt)] != prompt:
            continue  # the caller reports it
        llm.reset()
        llm.eval(prompt)
        following = text["tokens"][len(prompt):] + ([None] if text["ended"] else [])
        for position, token in enumerate(following):
            logits = llm.scores[llm.n_tokens - 1]
            best = int(np.argmax(logits))
            if token is None:  # tandem's text ends here
                token = best if llama_cpp.llama_vocab_is_eog(llm._model.vocab, best) else llm.token_eos()
            if best != token:
                found["differ"].append([number, position, token, best, float(logits[best] - logits[token])])
            found["n_tokens"] += 1
            llm.eval([token])
    llm.close()  # now rather than during interpreter shutdown
    return found


def peer(what, **spec):
    return json.loads(run(sys.executable, __file__, "--child", what, json.dumps(spec)))


# ---- the checks -----------------------------------------------------------------------------------------------------

def same_value(ours, theirs):
    if isinstance(ours, list):
        theirs = list(theirs)
        return len(ours) == len(theirs) and all(map(same_value, ours, theirs))
    if isinstance(ours, float) or isinstance(theirs, float):
        return np.float32(ours) == np.float32(theirs)
    return ours == theirs


class Files:
    """A file, or the parts of a split one, as the gguf package reads them."""

    def __init__(self, paths):
        readers = [gguf.GGUFReader(path) for path in paths]
        self.metadata = {name: field for name, field in readers[0].fields.items() if not name.startswith("GGUF.")}
        self.tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        self.n_tensors = sum(len(reader.tensors) for reader in readers)

    def values(self, name):
        tensor = self.tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(-1).astype(np.float64)


class Checker:
    def __init__(self, args, folder):
        self.tandem, self.folder, self.n_predict, self.max_ppl = args.tandem, folder, args.tokens, args.max_ppl
        self.text = args.text
        self.rows, self.notes = [], []

    def compare_listing(self, path, files):
        """gguf and `tandem inspect` list the same tensors and metadata."""
        page = json.loads(run(self.tandem, "inspect", path, "--json"))
        ours = {t["name"]: (t["dtype"], t["dims"]) for t in page["tensors"]}
        theirs = {name: (t.tensor_type.name, [int(n) for n in t.shape]) for name, t in files.tensors.items()}
        if ours != theirs or files.n_tensors != len(ours):
            name = next((n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)), "a name twice")
            raise Failed(f"{name}: tandem reads {ours.get(name)}, gguf reads {theirs.get(name)}")
        if page["metadata"].keys() != files.metadata.keys():
            raise Failed(f"metadata: only one of them has {set(page['metadata']) ^ set(files.metadata)}")
        for key, entry in page["metadata"].items():
            if not same_value(entry["value"], files.metadata[key].contents()):
                raise Failed(f"{key}: tandem reads {str(entry['value'])[:60]}, "
                             f"gguf reads {str(files.metadata[key].contents())[:60]}")

    def compare_values(self, files, original):
        """Each tensor, dequantized by gguf, is close to that of the original."""
        if files.tensors.keys() != original.tensors.keys():
            raise Failed(f"tensors in only one file: {sorted(files.tensors.keys() ^ original.tensors.keys())[:4]}")
        for name, tensor in files.tensors.items():
            x = original.values(name)
            error = np.sqrt(np.mean((files.values(name) - x) ** 2) / max(np.mean(x ** 2), 1e-30))
            if not error <= MAX_ERROR[tensor.tensor_type.name]:
                raise Failed(f"{name}: relative error {error:.4f} as {tensor.tensor_type.name}")

    def continue_greedily(self, path, prompt):
        session = self.folder / "session.gguf"
        session.unlink(missing_ok=True)
        done = subprocess.run([self.tandem, "run", "-m", path, "-p", prompt, "-n", str(self.n_predict), "--temp", "0",
                               "-c", str(N_CTX), "-t", "1", "--prompt-cache", session, "--prompt-cache-all"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"tandem run: {done.stderr.strip().splitlines()[-1]}")
        tokens = gguf.GGUFReader(session).fields["session.tokens"].contents()
        return {"prompt": prompt, "tokens": tokens, "ended": "stopped: end of text" in done.stderr}

    def compare_tokens(self, path, label, is_precise):
        """Compares greedy tokens. Returns the number of tokens and of ties as text."""
        texts = [self.continue_greedily(path, prompt) for prompt in PROMPTS]
        found = peer("follow", model=str(path), texts=texts)
        for text, prompt in zip(texts, found["prompts"]):
            if text["tokens"][:len(prompt)] != prompt:
                raise Failed(f"{text['prompt']!r}: tandem reads {text['tokens'][:len(prompt)]}, llama.cpp {prompt}")
        if found["n_tokens"] < len(PROMPTS):
            raise Failed("nothing was generated")
        limit = TIE_OF_PRECISE if is_precise else TIE_OF_OTHERS
        largest = max((gap for *_, gap in found["differ"]), default=0.0)
        if found["differ"]:
            number, position, ours, theirs, gap = found["differ"][0]
            self.notes.append(f"{label}: {PROMPTS[number]!r}, token {position}: tandem chose {ours}, llama.cpp prefers "
                              f"{theirs}; their logits differ by {gap:.4f}")
        worst = [gap for *_, gap in found["differ"] if not gap < limit]
        if worst:
            raise Failed(f"{len(worst)} of {found['n_tokens']} tokens differ, by up to {largest:.4f} "
                         f"(a tie is below {limit})")
        if len(found["differ"]) > MAX_TIES * found["n_tokens"]:
            raise Failed(f"{len(found['differ'])} of {found['n_tokens']} tokens are ties")
        return f"{found['n_tokens']}, {len(found['differ'])} ties" + (f" (<= {largest:.4f})" if largest else "")

    def perplexity(self, path):
        out = run(self.tandem, "perplexity", "-m", path, "-f", self.text, "-t", "1", "--log-disable")
        return float(re.search(r"PPL = ([0-9.]+)", out).group(1))

    def check(self, label, paths, original=None, same_ppl_as=None):
        """One row of the table. paths: the file, or the parts of a split one."""
        row = {"file": label, "tensors": "-", "read": "-", "tokens": "-", "ppl": "-", "result": "ok"}
        try:
            files = Files(paths)
            row["tensors"] = str(files.n_tensors)
            self.compare_listing(paths[0], files)
            if original:
                self.compare_values(files, original)
            row["read"] = "same"
            is_precise = all(t.tensor_type.name in PRECISE for t in files.tensors.values())
            row["tokens"] = self.compare_tokens(paths[0], label, is_precise)
            if same_ppl_as:
                ours, theirs = self.perplexity(same_ppl_as), self.perplexity(paths[0])
                row["ppl"] = f"{theirs:.4f}, ours {ours:.4f}"
                if not abs(theirs / ours - 1) <= self.max_ppl:
                    raise Failed(f"perplexities differ by more than {self.max_ppl:.1%}")
        except Failed as failure:
            row["result"] = f"FAILED: {failure}"
        self.rows.append(row)
        print(f"{label}: {row['result']}", file=sys.stderr, flush=True)


def check_model(checker, model):
    """Checks quantizations of a model by both programs, and a split copy."""
    original, folder = Files([model]), checker.folder
    checker.check(model.name, [model])
    for name in OUR_TYPES:
        out = folder / f"ours-{name}.gguf"
        run(checker.tandem, "quantize", "--allow-requantize", "--log-disable", model, out, name)
        checker.check(f"tandem quantize {name}", [out], original)
    run(checker.tandem, "split", "--split-max-tensors", "15", "--log-disable", model, folder / "parts")
    parts = sorted(folder.glob("parts-*.gguf"))
    checker.check(f"tandem split, {len(parts)} parts", parts, original)
    run(checker.tandem, "merge", "--log-disable", parts[0], folder / "merged.gguf")
    checker.check("tandem merge", [folder / "merged.gguf"], original)
    for name, ftype in THEIR_TYPES.items():
        out = folder / f"theirs-{name}.gguf"
        peer("quantize", model=str(model), out=str(out), ftype=ftype)
        checker.check(f"llama.cpp's {name}", [out], original, folder / f"ours-{name}.gguf")


def check_conversion(checker, folder):
    original = None
    for name in OUT_TYPES:
        out = checker.folder / f"converted-{name}.gguf"
        run(checker.tandem, "convert", folder, "-o", out, "--outtype", name, "--log-disable")
        original = original or Files([out])  # the first is F32
        checker.check(f"tandem convert {folder.name}, {name}", [out], original)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/tandem-demo-Q8_0.gguf",
                        help="the file to start from (default %(default)s)")
    parser.add_argument("--text", default=str(ROOT / "models/heldout.txt"), help="for perplexity (default %(default)s)")
    parser.add_argument("--hf", type=pathlib.Path, action="append", default=[], metavar="FOLDER",
                        help="a Hugging Face folder to convert; may be repeated")
    parser.add_argument("--tandem", default=str(ROOT / "build/bin/tandem"), help="the program (default %(default)s)")
    parser.add_argument("-n", "--tokens", type=int, default=64, help="tokens per prompt (default %(default)s)")
    parser.add_argument("--max-ppl", type=float, default=0.02,
                        help="limit on the relative difference of perplexities (default %(default)s)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse_args()
    if MISSING:
        sys.exit(f"check_interop.py: the Python package {MISSING} is missing; it needs gguf, numpy and llama-cpp-python")
    if args.child:
        print(json.dumps({"quantize": peer_quantize, "follow": peer_follow}[args.child[0]](json.loads(args.child[1]))))
        return 0
    with tempfile.TemporaryDirectory() as name:
        checker = Checker(args, pathlib.Path(name))
        try:
            check_model(checker, args.model)
            for folder in args.hf:
                check_conversion(checker, folder.resolve())
        except Failed as failure:
            checker.notes.append(f"stopped: {failure}")
            checker.rows.append({"file": "-", "tensors": "-", "read": "-", "tokens": "-", "ppl": "-",
                                 "result": f"FAILED: {failure}"})
    print("| file | tensors | gguf reads | greedy tokens | perplexity | result |\n|---|---:|---|---|---|---|")
    for row in checker.rows:
        print("| " + " | ".join(row.values()) + " |")
    for note in checker.notes:
        print("- " + note)
    return 1 if any(row["result"] != "ok" for row in checker.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
