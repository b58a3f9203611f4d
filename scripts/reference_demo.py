#!/usr/bin/env python3
"""Writes tests/golden/demo.json: the greedy text and the logits of the demo model, computed in float64.

    scripts/reference_demo.py [--model models/tandem-demo-Q8_0.gguf] [--out tests/golden/demo.json]
    scripts/reference_demo.py --check       compares with the file that is there

Needs only numpy. The script reads the GGUF file itself, dequantizes it, and computes the model as the Llama paper
(https://arxiv.org/abs/2302.13971) describes it, one matrix product after the other and without a cache. The tests run
the same weights, dequantized to F32, on every instruction set.

The file is {prompt: the text, n_prompt: its tokens, ids: prompt and greedy tokens, logits_at: {position: row}, heads:
for every position the first few logits, norm: for every position the norm of the row}.
"""

import argparse
import json
import math
import pathlib
import struct
import sys

try:
    import numpy as np
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit(0)
    sys.exit(f"reference_demo.py: the Python package {error.name} is missing")

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = "Once upon a time, there was a little"
N_IDS = 72  # more than two cache blocks of 32
FULL_ROWS = (12, 40, 63)
N_HEADS = 6
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    """The metadata and tensors (as float64) of a GGUF file with F32, F16 and Q8_0 weights."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        self.at = 0
        magic, version = self.take("4sI")
        if magic != b"GGUF" or version != 3:
            sys.exit(f"{path}: needed a GGUF file of version 3")
        n_tensors, n_metadata = self.take("QQ")
        self.metadata = {}
        for _ in range(n_metadata):
            key = self.text()
            self.metadata[key] = self.value(*self.take("I"))
        infos = []
        for _ in range(n_tensors):
            name = self.text()
            dims = self.take("Q" * self.take("I")[0])
            infos.append((name, dims, *self.take("IQ")))
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-self.at // alignment) * alignment
        self.tensors = {name: self.tensor(dims, kind, start + at) for name, dims, kind, at in infos}

    def take(self, layout):
        values = struct.unpack_from("<" + layout, self.bytes, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def text(self):
        return self.take(f"{self.take('Q')[0]}s")[0].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.take(SCALARS[kind])[0]
        element, n = self.take("IQ")
        return [self.value(element) for _ in range(n)]

    def tensor(self, dims, kind, at):
        """float64, outermost dimension first."""
        n = math.prod(dims)
        if kind == 0:
            flat = np.frombuffer(self.bytes, "<f4", n, at)
        elif kind == 1:
            flat = np.frombuffer(self.bytes, "<f2", n, at)
        elif kind == 8:  # blocks of an f16 scale and 32 i8
            blocks = np.frombuffer(self.bytes, np.dtype([("scale", "<f2"), ("q", "i1", 32)]), n // 32, at)
            flat = blocks["scale"].astype(np.float64)[:, None] * blocks["q"]
        else:
            sys.exit(f"needed F32, F16 or Q8_0, found type {kind}")
        return flat.astype(np.float64).reshape(dims[::-1])


def norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate(x, base):
    """x: [n_tokens, n_head, head_dim], the token at its position; rotates the pairs (0, 1), (2, 3), ..."""
    n, _, width = x.shape
    angle = np.arange(n)[:, None] * base ** (-np.arange(0, width, 2) / width)  # [n_tokens, head_dim / 2]
    turn = np.exp(1j * angle)[:, None, :]
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def forward(model, ids):
    """float64 logits [n_ids, n_vocab]."""
    m, t = model.metadata, model.tensors
    n_head, n_head_kv = m["llama.attention.head_count"], m["llama.attention.head_count_kv"]
    epsilon, base = m["llama.attention.layer_norm_rms_epsilon"], m.get("llama.rope.freq_base", 10000.0)
    n = len(ids)
    future = np.triu(np.full((n, n), -np.inf), 1)
    x = t["token_embd.weight"][ids]
    for i in range(m["llama.block_count"]):
        def product(of, name):
            return of @ t[f"blk.{i}.{name}.weight"].T

        h = norm(x, t[f"blk.{i}.attn_norm.weight"], epsilon)
        q, k, v = (product(h, f"attn_{part}").reshape(n, heads, -1)
                   for part, heads in (("q", n_head), ("k", n_head_kv), ("v", n_head_kv)))
        q, k = rotate(q, base), rotate(k, base)
        k, v = (np.repeat(part, n_head // n_head_kv, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1]) + future
        x = x + product(np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(n, -1), "attn_output")
        h = norm(x, t[f"blk.{i}.ffn_norm.weight"], epsilon)
        gate = product(h, "ffn_gate")
        x = x + product(gate / (1 + np.exp(-gate)) * product(h, "ffn_up"), "ffn_down")
    return norm(x, t["output_norm.weight"], epsilon) @ t.get("output.weight", t["token_embd.weight"]).T


def byte_letters():
    """byte -> the letter that stands for it in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, n_others = {b: chr(b) for b in printable}, 0
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + n_others)
            n_others += 1
    return letters


def tokenize(model, text):
    """Ids of BOS and a text of words with a space before each: merges by rank, word by word."""
    ids = {token: i for i, token in enumerate(model.metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(m.split(" ")): i for i, m in enumerate(model.metadata["tokenizer.ggml.merges"])}
    letters = byte_letters()
    found = [model.metadata["tokenizer.ggml.bos_token_id"]]
    words = text.replace(",", " ,").split(" ")
    for i, word in enumerate(words):
        spaced = word if i == 0 or word == "," else " " + word
        parts = [letters[b] for b in spaced.encode()]
        while True:
            pairs = [(ranks.get(pair, len(ranks)), j) for j, pair in enumerate(zip(parts, parts[1:]))]
            if not pairs or min(pairs)[0] == len(ranks):
                break
            j = min(pairs)[1]
            parts[j:j + 2] = [parts[j] + parts[j + 1]]
        found += [ids[p] for p in parts]
    return found


def rounded(x):
    return float(f"{x:.6g}")


def compute(model):
    ids = tokenize(model, TEXT)
    n_prompt = len(ids)
    while len(ids) < N_IDS:
        ids.append(int(forward(model, ids)[-1].argmax()))
    logits = forward(model, ids)
    margin = np.sort(logits[n_prompt - 1:], axis=1)
    margin = float((margin[:, -1] - margin[:, -2]).min())
    if margin < 1e-2:
        sys.exit(f"two tokens are as likely as each other: {margin}; choose another text")
    return {
        "prompt": TEXT, "n_prompt": n_prompt, "ids": ids,
        "logits_at": {str(p): [rounded(x) for x in logits[p]] for p in FULL_ROWS},
        "heads": [[rounded(x) for x in row[:N_HEADS]] for row in logits],
        "norm": [rounded(np.linalg.norm(row)) for row in logits],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "tandem-demo-Q8_0.gguf")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "golden" / "demo.json")
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    options = parser.parse_args()
    data = compute(Gguf(options.model))
    if options.check:
        before = json.loads(options.out.read_text())
        same = before["ids"] == data["ids"] and np.allclose(before["heads"], data["heads"], rtol=1e-5, atol=1e-5)
        print("equal" if same else f"{options.out} differs: the model has changed")
        return 0 if same else 1
    parts = [f'"{key}": {json.dumps(value)}' for key, value in data.items()]
    options.out.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
