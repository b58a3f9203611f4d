#!/usr/bin/env python3
"""Checks that llama.cpp reads what `tandem convert` writes for each family of models, and computes the same logits.

    scripts/check_family_interop.py [--tandem build/bin/tandem] [NAME ...]     all of reference_families.py, or only these

Needs the Python packages numpy, torch, transformers, safetensors and llama-cpp-python.

For each family: writes the tiny model of reference_logits.py as a Hugging Face folder, converts it to F32, and feeds its
72 tokens to llama.cpp. Each logit must be within 1e-3 of that of transformers (tests/golden compares tandem with the same
logits), in units of the largest, and the greedy token of each position must be the same. CHANGES has what is made different in a tiny model because
llama.cpp takes it for granted, KNOWN why others are left out. Exits with 1 if a family fails.
"""

import argparse
import contextlib
import copy
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
N_CTX = 256
LIMIT = 1e-3

# What llama.cpp assumes of a family: values are as wide as keys, scores are divided by the root of the head's width, keys
# of the delta rule are normalized with the epsilon of the norms (1e-6 in published models), Granite's Mamba-2 layers are twice as
# wide as the model, and so on.
CHANGES = {
    "gemma2": dict(query_pre_attn_scalar=32),
    "gemma3": dict(query_pre_attn_scalar=32),
    "gemma3_scaled_rope": dict(query_pre_attn_scalar=32),
    "phi3": dict(sliding_window=None),
    "qwen3_next": dict(linear_value_head_dim=16, rms_norm_eps=1e-6),
    "qwen3_5": dict(linear_value_head_dim=16, rms_norm_eps=1e-6),
    "qwen3_5_moe": dict(linear_value_head_dim=16, rms_norm_eps=1e-6),
    "granite_hybrid": dict(mamba_n_heads=4, mamba_expand=2),
    "granite_hybrid_dense": dict(mamba_n_heads=4, mamba_expand=2),
    "bailing_moe2": dict(head_dim=16, partial_rotary_factor=1.0),
}
KNOWN = {
    "phi3_longrope_short": "llama.cpp has no context as small as that of the short factors",
    "gpt_oss": "llama.cpp rounds the ends of YaRN's ramp, transformers does not",
    "gpt_oss_bf16": "the same",
    "deepseek_v2_lite": "llama.cpp tells it by its number of layers, 27",
    "ernie4_5_moe_interval": "llama.cpp takes every layer after the dense ones for a mixture",
}


def tokenizer(n_tokens):
    """A byte-level vocabulary of n_tokens: three special ones, a space, the printable ASCII characters, a merge, fillers."""
    tokens = ["<unk>", "<s>", "</s>", "\u0120", *map(chr, range(33, 127)), "th"]
    tokens += [f"filler{i}" for i in range(n_tokens - len(tokens))]
    special = [dict(id=i, content=t, special=True, lstrip=False, rstrip=False, normalized=False, single_word=False)
               for i, t in enumerate(tokens[:3])]
    return dict(version="1.0", added_tokens=special, normalizer=None, post_processor=None, decoder=dict(type="ByteLevel"),
                pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, use_regex=True),
                model=dict(type="BPE", unk_token=None, byte_fallback=False, merges=["t h"],
                           vocab={t: i for i, t in enumerate(tokens)}))


def changed(config, changes):
    config = copy.deepcopy(config)
    config.get("text_config", config).update(changes)
    return config


def write_folder(folder, name, config, reference):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(reference.text_config(config)["vocab_size"])))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(bos_token="<s>", eos_token="</s>")))
    rules = reference.describe(name, config)
    reference.write_weights(folder / "model.safetensors", rules, dense=False)
    return rules


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def print_logits(path, ids):
    """Runs in a process of its own, which llama.cpp may abort. Prints llama.cpp's logits, [n_ids, n_vocab]."""
    import llama_cpp as api
    import numpy as np
    errors = []

    @api.llama_log_callback
    def log(level, text, _):
        if level >= 4:
            errors.append(text.decode(errors="replace").strip())
    api.llama_log_set(log, ctypes.c_void_p(0))
    api.llama_backend_init()

    def needed(value, what):
        if not value:
            sys.exit(errors[0] if errors else what)
        return value
    params = api.llama_model_default_params()
    params.n_gpu_layers = 0
    model = needed(api.llama_model_load_from_file(os.fsencode(path), params), "not loaded")
    context_params = api.llama_context_default_params()
    context_params.n_ctx = context_params.n_batch = context_params.n_ubatch = N_CTX
    context_params.n_threads = context_params.n_threads_batch = 1
    context_params.type_k = context_params.type_v = 0  # F32
    context_params.swa_full = True
    context_params.flash_attn_type = 0  # which would round to F16
    context = needed(api.llama_init_from_model(model, context_params), "no context")
    batch = api.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    needed(api.llama_decode(context, batch) == 0, "llama_decode failed")
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(api.llama_get_logits_ith(context, i), shape=(n_vocab,)).tolist() for i in range(len(ids))]
    json.dump(rows, sys.stdout)


def output_of(command):
    """Its stdout; raises ValueError with the last line of stderr."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{command[1] if done.returncode > 0 else 'aborted'}: {last_line(done.stderr)}")
    return done.stdout


def check(name, tandem, reference, folder):
    """A line about the family; raises ValueError if it fails."""
    import numpy as np
    golden = json.loads((ROOT / "tests/golden/families" / f"{name}.json").read_text())
    config, ids = changed(golden["config"], CHANGES.get(name, {})), golden["ids"]
    source, model = folder / "tiny", folder / "tiny.gguf"  # llama.cpp does things for some names
    rules = write_folder(source, name, config, reference)
    output_of([tandem, "convert", source, "-o", model, "--outtype", "f32"])
    if name in CHANGES and name not in reference.WITHOUT_TRANSFORMERS:
        rows = {i: row for i, row in enumerate(reference.run_reference(config, rules, ids))}
        greedy = [int(row.argmax()) for row in rows.values()]
    elif name in CHANGES:
        weights = {r[0]: reference.values(r[0], *r[2:]) for r in rules}
        rows = {i: row for i, row in enumerate(reference.WITHOUT_TRANSFORMERS[name].logits(config, weights, ids))}
        greedy = [int(row.argmax()) for row in rows.values()]
    else:
        rows, greedy = {int(i): row for i, row in golden["logits"].items()}, golden["argmax"]
    got = np.array(json.loads(output_of([sys.executable, __file__, "--logits-of", model, *ids])))
    largest = max(np.abs(row).max() for row in rows.values())
    error = max(np.abs(got[i] - np.array(row)).max() for i, row in rows.items()) / largest
    n_same = int((got.argmax(axis=1) == np.array(greedy)).sum())
    said = f"largest difference {error:.1e}, {n_same} of {len(ids)} greedy tokens"
    if not error < LIMIT or n_same != len(ids):
        raise ValueError(said)
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", type=pathlib.Path, default=ROOT / "build/bin/tandem", help="the program to check")
    parser.add_argument("names", nargs="*", metavar="NAME", help="families (default: all)")
    parser.add_argument("--logits-of", type=pathlib.Path, help=argparse.SUPPRESS)  # of this model; the names are ids
    options = parser.parse_args()
    if options.logits_of:
        print_logits(options.logits_of, [int(i) for i in options.names])
        return 0
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import llama_cpp
        import reference_logits as reference
    except ImportError as error:
        parser.error(f"the Python package {error.name} is missing")
    unknown = [n for n in options.names if n not in reference.FAMILIES]
    if unknown:
        parser.error(f"unknown names: {', '.join(unknown)}")
    print(f"llama-cpp-python {llama_cpp.__version__}")
    n_failed = 0
    for name in options.names or reference.FAMILIES:
        if name in KNOWN:
            print(f"{name:24} left out: {KNOWN[name]}")
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
                said = check(name, options.tandem, reference, pathlib.Path(folder))
            print(f"{name:24} {said}{', with ' + str(CHANGES[name]) if name in CHANGES else ''}", flush=True)
        except Exception as error:  # continue with the other families
            n_failed += 1
            print(f"{name:24} FAILED: {last_line(str(error))[:200]}", flush=True)
    print(f"{n_failed} failed" if n_failed else "all the same")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
