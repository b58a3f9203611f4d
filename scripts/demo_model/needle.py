#!/usr/bin/env python3
"""Prints how well a model finds what stands far back in its text, as tables: the share of values that it recalls of key-value pairs,
by type of the KV cache, by what is read of it (--sparse-kv), and by the scaling of positions (--rope-scaling).

    python3 scripts/demo_model/needle.py build/bin/tandem
    python3 scripts/demo_model/needle.py --self-test

Needs no packages. The model is a tiny Llama whose weights are computed, not trained: layer 0 has a head that looks one position
back, layer 1 one that looks for its token behind others (an induction head, arXiv:2209.11895). It finds everything where nothing
is lost, so what it does not find has been lost in the cache. A text of N tokens is N/4 pairs of a random key and a random value,
each one token, and then the same pairs in another order: after each key, the value has to be predicted. So the pair lies N/2
tokens back on average, among N/4 - 1 others. A guess among the values would be right in 1/64 of the cases.
"""

import argparse
import array
import json
import math
import pathlib
import random
import struct
import sys
import tempfile

from cache_types import run

FIRST = 0x100  # the code points of keys and then values: two bytes in UTF-8, each a token by one merge
N_KEYS, N_VALUES = 512, 64
TRAINED = 512  # the context that the file names
LENGTHS = [512, 1024, 2048]
QUERIES = 2048  # about so many for each number
TYPES = ["f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "iq4_nl", "q4_0"]
SETTINGS = (
    [(f"{t}", ["-ctk", t, "-ctv", t]) for t in TYPES]
    + [("q8_0 keys, q4_0 values", ["-ctk", "q8_0", "-ctv", "q4_0"]), ("q4_0 keys, q8_0 values", ["-ctk", "q4_0", "-ctv", "q8_0"])]
    + [(f"{t} rotated", ["-ctk", t, "-ctv", t, "--kv-rotate", "on"]) for t in ("q4_1", "iq4_nl", "q4_0")]
    # In steps of a group, as those of a step are not quantized yet.
    + [(f"{t}, -ub 32", ["-ctk", t, "-ctv", t, "-ub", 32]) for t in ("kivi4", "kivi2")]
)
READS = ["16,64", "8,64", "8,16", "4,64", "4,16", "2,16", "1,4"]
ADDED = ["single_word", "lstrip", "rstrip", "normalized"]
SCALINGS = ["none", "linear", "yarn"]


def byte_symbols():
    """The characters that stand for bytes in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def tokenizer():
    """tokenizer.json: <s>, the 256 bytes, and a token for each key and value; and the id of the first key."""
    symbols = byte_symbols()
    vocab, merges = {"<s>": 0}, []
    for symbol in symbols.values():
        vocab[symbol] = len(vocab)
    first_key = len(vocab)
    for point in range(FIRST, FIRST + N_KEYS + N_VALUES):
        pair = [symbols[b] for b in chr(point).encode()]
        vocab["".join(pair)] = len(vocab)
        merges.append(" ".join(pair))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<s>", "special": True, **dict.fromkeys(ADDED, False)}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "unk_token": None, "byte_fallback": False, "vocab": vocab, "merges": merges},
    }, first_key


# The residual stream: the codes of the token, of the one before, of the answer; and a constant. A head: pairs of columns that turn
# with the position, and pairs that turn so slowly that they hold a code.
CODE, TURNING = 64, 16
HEAD = 2 * TURNING + CODE
WIDTH = 3 * CODE + 32
CONSTANT = 8.0  # as large as a code
THETA = 6.4e13  # pairs from TURNING on turn by less than 0.06 in 2,048 tokens
BACK, SAME = 40.0, 20.0  # scores: of a turning pair one position back; of a code with itself


def config():
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 1 + 256 + N_KEYS + N_VALUES,
        "hidden_size": WIDTH,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": THETA,
        "max_position_embeddings": TRAINED,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }


def code_columns():
    """The columns of a head that hold a code: column i turns with column i + HEAD / 2."""
    return [*range(TURNING, HEAD // 2), *range(HEAD // 2 + TURNING, HEAD)]


def weights(seed=5):
    """Matrices by name: (rows, columns, {(row, column): value})."""
    chance, n_vocab = random.Random(seed), config()["vocab_size"]
    matrices = {}
    embedding, output = {}, {}
    for token in range(n_vocab):
        code = [chance.gauss(0, 1) for _ in range(CODE)]
        length = math.sqrt(sum(x * x for x in code) / CODE)
        embedding[token, 3 * CODE] = CONSTANT
        for i, x in enumerate(code):
            embedding[token, i] = output[token, 2 * CODE + i] = x / length
    matrices["model.embed_tokens.weight"] = n_vocab, WIDTH, embedding
    matrices["lm_head.weight"] = n_vocab, WIDTH, output
    for layer in range(2):
        norm = math.sqrt(WIDTH / ((layer + 1) * CODE + CONSTANT**2))  # what RMS norm multiplies by
        q, k = {}, {}
        if layer == 0:  # a pair scores BACK * cos(turn * (distance - 1))
            size = math.sqrt(BACK * math.sqrt(HEAD)) / (CONSTANT * norm)
            for i in range(TURNING):
                turn = THETA ** (-2 * i / HEAD)
                q[i, 3 * CODE], q[i + HEAD // 2, 3 * CODE] = size * math.cos(turn), -size * math.sin(turn)
                k[i, 3 * CODE] = size
        else:
            size = math.sqrt(SAME * math.sqrt(HEAD) / CODE) / norm
            for i, column in enumerate(code_columns()):
                q[column, i] = k[column, CODE + i] = size
        name = f"model.layers.{layer}."
        matrices[name + "self_attn.q_proj.weight"] = HEAD, WIDTH, q
        matrices[name + "self_attn.k_proj.weight"] = HEAD, WIDTH, k
        matrices[name + "self_attn.v_proj.weight"] = HEAD, WIDTH, {(i, i): 1 / norm for i in range(CODE)}
        matrices[name + "self_attn.o_proj.weight"] = WIDTH, HEAD, {((layer + 1) * CODE + i, i): 1.0 for i in range(CODE)}
        for which, shape in (("gate", (32, WIDTH)), ("up", (32, WIDTH)), ("down", (WIDTH, 32))):
            matrices[f"{name}mlp.{which}_proj.weight"] = *shape, {}
    return matrices


def safetensors(matrices, norms):
    header, data = {}, bytearray()

    def add(name, shape, values):
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data.extend(values.tobytes())

    for name, (n_rows, n_columns, values) in matrices.items():
        flat = array.array("f", bytes(4 * n_rows * n_columns))
        for (row, column), value in values.items():
            flat[row * n_columns + column] = value
        add(name, [n_rows, n_columns], flat)
    for name in norms:
        add(name, [WIDTH], array.array("f", [1.0] * WIDTH))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_model(folder):
    folder.mkdir()
    write = lambda name, value: (folder / name).write_text(json.dumps(value) + "\n")
    write("config.json", config())
    write("tokenizer.json", tokenizer()[0])
    write("tokenizer_config.json", {"bos_token": "<s>", "eos_token": "<s>", "add_bos_token": False, "add_eos_token": False})
    norms = ["model.norm.weight"]
    norms += [f"model.layers.{i}.{which}_layernorm.weight" for i in range(2) for which in ("input", "post_attention")]
    (folder / "model.safetensors").write_bytes(safetensors(weights(), norms))


def texts(length, n_texts, seed=7):
    """n_texts texts of `length` characters, each a token."""
    chance, parts = random.Random(seed), []
    for _ in range(n_texts):
        keys = chance.sample(range(N_KEYS), length // 4)
        pairs = [chr(FIRST + key) + chr(FIRST + N_KEYS + chance.randrange(N_VALUES)) for key in keys]
        # Nothing is before the first token, so what follows it is not asked for; another pair is asked for twice.
        parts += pairs
        parts += chance.sample([*pairs[1:], chance.choice(pairs[1:])], len(pairs))
    return "".join(parts)


def recalled(base):
    """The share of values that are the most likely token, by a file of `tandem perplexity --kl-divergence-base`. The first scored
    token of a text is its first value, so values are every second one from there."""
    n_ctx, n_vocab, n_texts = struct.unpack_from("<8x3i", base)
    tokens = array.array("i", base[20 : 20 + 4 * n_ctx * n_texts])
    n_row = 8 + 2 * (n_vocab + n_vocab % 2)
    n_scored, at = n_ctx - n_ctx // 2 - 1, 20 + 4 * n_ctx * n_texts
    if len(base) != at + n_row * n_scored * n_texts:
        sys.exit(f"the file of predictions has {len(base)} bytes, needed {at + n_row * n_scored * n_texts}")
    n_right = n_all = 0
    for text in range(n_texts):
        for i in range(0, n_scored, 2):
            row = at + n_row * (text * n_scored + i) + 8
            likely = array.array("H", base[row : row + 2 * n_vocab])
            n_right += likely[tokens[text * n_ctx + n_ctx // 2 + 1 + i]] == max(likely)
            n_all += 1
    return n_right / n_all


def scaling(kind, length):
    if length <= TRAINED:
        return []
    return ["--rope-scaling", kind] + ([] if kind == "none" else ["--rope-scale", length / TRAINED])


def accuracy(args, model, scratch, length, options):
    text, base = scratch / "text", scratch / "base"
    text.write_text(texts(length, max(2, args.queries * 4 // length)))
    run(args.binary, "perplexity", "-m", model, "-f", text, "-c", length, "-dev", "none", "-t", args.threads,
        "--kl-divergence-base", base, *options)
    return recalled(base.read_bytes())


def table(title, lengths, rows):
    lines = [title, "", f"| | {' | '.join(f'{n:,} tokens' for n in lengths)} |", "|---|" + "---:|" * len(lengths)]
    return "\n".join(lines + [f"| {name} | {' | '.join(f'{100 * x:.1f}' for x in cells)} |" for name, cells in rows])


def measure(args, model, scratch):
    def rows(settings, kind, options=()):
        for name, setting in settings:
            yield name, [accuracy(args, model, scratch, n, [*scaling(kind, n), *setting, *options]) for n in args.lengths]

    scalings = [(kind, next(rows([("", [])], kind))[1]) for kind in SCALINGS]
    print(table(f"Percent of values recalled, by --rope-scaling beyond {TRAINED} tokens; f16 cache:", args.lengths, scalings))
    print(flush=True)
    print(table("By type of the cache, with YaRN:", args.lengths, rows(SETTINGS, "yarn")))
    print(flush=True)
    sparse = [(f"--sparse-kv {reads}", ["--sparse-kv", reads]) for reads in READS]
    print(table("By what is read, with YaRN and an f16 cache:", args.lengths, rows([("all", []), *sparse], "yarn", ["-ub", 1])))


def self_test():
    made, first_key = tokenizer()
    vocab = made["model"]["vocab"]
    assert sorted(vocab.values()) == list(range(config()["vocab_size"])) and first_key == 257
    assert len(made["model"]["merges"]) == len(set(made["model"]["merges"])) == N_KEYS + N_VALUES
    text = texts(64, 3)
    assert len(text) == 3 * 64 and text == texts(64, 3) != texts(64, 3, seed=8)
    first, second = text[:32], text[32:64]
    pairs = lambda half: sorted(half[i : i + 2] for i in range(0, 32, 2))
    assert set(pairs(first)) - set(pairs(second)) == {first[:2]} and set(pairs(second)) < set(pairs(first))
    assert scaling("yarn", 512) == [] and scaling("none", 1024) == ["--rope-scaling", "none"]
    assert len(code_columns()) == CODE and {c + HEAD // 2 for c in code_columns() if c < HEAD // 2} < set(code_columns())
    made = weights()
    file = safetensors({"a": (2, 3, {(1, 0): 2.0})}, ["b"])
    n_header = struct.unpack("<Q", file[:8])[0]
    assert json.loads(file[8 : 8 + n_header])["b"]["data_offsets"] == [24, 24 + 4 * WIDTH]
    assert struct.unpack("<6f", file[8 + n_header :][:24]) == (0, 0, 0, 2, 0, 0)
    assert abs(sum(made["lm_head.weight"][2][300, 2 * CODE + i] ** 2 for i in range(CODE)) - CODE) < 1e-6
    # Two texts of 8 tokens; the scored ones are 5, 6 and 7, of them values 5 and 7.
    tokens = [0, 1, 2, 3, 0, 1, 2, 3, 4, 1, 0, 3, 4, 1, 0, 3]
    base = b"_logits_" + struct.pack("<3i16i", 8, 5, 2, *tokens)
    for likely in (1, 0, 3, 1, 0, 2):
        base += struct.pack("<2f6H", 1, 0, *(9 if i == likely else 1 for i in range(6)))
    assert recalled(base) == 3 / 4
    try:
        recalled(base[:-1])
    except SystemExit as end:
        assert "bytes, needed" in str(end.code)
    else:
        raise AssertionError("accepted: a file that is too short")
    lines = table("By", [512, 1024], [("f16", [1, 0.5])]).splitlines()
    assert lines[2] == "| | 512 tokens | 1,024 tokens |" and lines[-1] == "| f16 | 100.0 | 50.0 |"
    print("ok")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path, help="the program tandem")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help=f"tokens of a text, multiples of 4 up to {4 * N_KEYS}")
    parser.add_argument("--queries", type=int, default=QUERIES, help="values to recall for each number, about")
    args = parser.parse_args()
    for n in args.lengths:
        if n % 4 or not 8 <= n <= 4 * N_KEYS:
            parser.error(f"--lengths {n}: needed a multiple of 4 from 8 to {4 * N_KEYS}")
    with tempfile.TemporaryDirectory() as scratch:
        folder, model = pathlib.Path(scratch) / "model", pathlib.Path(scratch) / "model.gguf"
        write_model(folder)
        run(args.binary, "convert", folder, "-o", model, "--outtype", "f32")
        measure(args, model, pathlib.Path(scratch))


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        main()
