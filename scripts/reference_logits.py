#!/usr/bin/env python3
"""Writes tests/golden/families/NAME.json: the logits that `transformers` computes for a tiny model of each
architecture.

    scripts/reference_logits.py [--out FOLDER] [NAME ...]     all of reference_families.py, or only these
    scripts/reference_logits.py --folder FOLDER NAME          writes the Hugging Face folder itself, for inspection

Needs the Python packages torch, transformers, safetensors and numpy. The tests need none of them: the weights are a
function of the tensor's name, which the tests reproduce bit for bit (tests/support/hf_folder.h):

    k     = the top `bits` bits of splitmix64(fnv1a(name) + index), as a two's complement number
    value = base + scale * k

Scales are powers of two, so every value is exact in bfloat16. The expert weights of gpt_oss are raw MXFP4 blocks; those
of gpt_oss_bf16 are not, as in fine-tuned models. The values of F8_E4M3 tensors are their bytes, modulo 256.

A file is {name, config (config.json), tensors: [[name, dtype, shape, base, scale, bits], ...], ids: the prompt,
logits: {position: row} for a few positions, and for every position heads: the first few logits, norm: the norm of the
row, argmax; of families with an MTP layer mtp, a few rows of its logits (run_mtp); n_deferred, see DEFERRED}.
"""

import argparse
import json
import math
import pathlib
import sys
import tempfile

from reference_families import FAMILIES

try:
    import numpy as np
    import reference_bailing
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit(0)
    sys.exit(f"reference_logits.py: the Python package {error.name} is missing")

MTP_APART = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
DEFERRED = {"qwen3_moe_deferred": 1}  # of a token's experts, those of the lowest rank that join one layer later
WITHOUT_TRANSFORMERS = {"bailing_moe2": reference_bailing}
N_IDS = 72  # more than two cache blocks of 32, and than every window
FULL_ROWS = (0, 1, 13, 31, 32, 50, 71)
N_HEADS = 6


def splitmix64(x):
    x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv1a(text):
    value = 14695981039346656037
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def values(name, shape, base, scale, bits):
    """float64 [shape]; every element is exact in bfloat16."""
    n = math.prod(shape)
    with np.errstate(over="ignore"):
        h = splitmix64(np.uint64(fnv1a(name)) + np.arange(n, dtype=np.uint64))
    k = h.view(np.int64) >> np.int64(64 - bits)
    return (base + scale * k.astype(np.float64)).reshape(shape)


SIGMOID_ROUTERS = ("glm4_moe", "minimax_m2", "exaone_moe", "bailing_moe_v2", "deepseek_v3", "glm4_moe_lite",
                   "lfm2_moe", "nemotron_h")


def tensor_rule(name, shape, config):
    """The rule [name, dtype, shape, base, scale, bits] of a tensor."""
    if name.endswith("_blocks"):
        return [name, "U8", shape, 128, 1, 8]
    if name.endswith("_scales"):
        return [name, "U8", shape, 122, 1, 1]  # 2^-6 and 2^-5
    if name.endswith("_scale_inv"):
        return [name, "F32", shape, 2.0**-9, 2.0**-14, 5]
    if is_fp8(name, shape, config):
        return [name, "F8_E4M3", shape, 0, 2, 7]  # even bytes: none is NaN
    if "norm" in name:
        # The norms of these add the 1 themselves, but for the one after the delta rule.
        adds_one = config.get("model_type", "").startswith(("gemma2", "gemma3", "qwen3_next", "qwen3_5"))
        base = 0 if adds_one and "linear_attn" not in name else 1
        if config.get("model_type", "").startswith("gemma4"):
            # The scores of Gemma 4 are not divided by anything: smaller ones, which rounding changes less.
            base = 0.5 if name.endswith(("q_norm.weight", "k_norm.weight")) else base
        return [name, "BF16", shape, base, 2.0**-7, 5]
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return [name, "BF16", shape, 1, 2.0**-7, 6]
    if name.endswith("bias") or name.endswith("sinks"):
        return [name, "BF16", shape, 0, 2.0**-9, 8]
    if name.endswith("A_log") and config.get("model_type") in ("granitemoehybrid", "nemotron_h"):
        return [name, "BF16", shape, -3, 2.0**-5, 5]  # states that last for many tokens
    wide = 0.5 if "embed" in name else 1.7 / math.sqrt(shape[-1])
    if "router" in name or name.endswith(("mlp.gate.weight", "moe.gate.weight", "mlp.gate.wg.weight",
                                             "feed_forward.gate.weight", "mixer.gate.weight")):
        # So that rounding never changes the choice of experts; sigmoids of large numbers would all be 1.
        wide *= {"nemotron_h": 4}.get(config.get("model_type"), 2 if config.get("model_type") in SIGMOID_ROUTERS else 8)
        wide *= 8 if config.get("model_type") == "gemma4_text" else 1  # reads a vector of length 1
    return [name, "BF16", shape, 0, 2.0 ** (round(math.log2(wide)) - 7), 8]


def is_fp8(name, shape, config):
    """Published FP8 models keep embeddings, output, norms and routers as floats."""
    return "quantization_config" in config and ".layers." in name and len(shape) == 2 and ".gate." not in name


def scale_shapes(shapes, config):
    """A scale for each block of the FP8 matrices."""
    block = config["quantization_config"]["weight_block_size"]
    return {name + "_scale_inv": [-(-size // b) for size, b in zip(shape, block)] for name, shape in shapes.items()
            if is_fp8(name, shape, config)}


def fp8_e4m3(byte):
    """float64 of E4M3 bytes."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    x = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0**(exponent - 10.0))
    return np.where(byte & 128, -x, x)


def dequantize_fp8(byte, scales, block):
    """Each block [rows, cols] of the matrix has a scale."""
    spread = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)
    return fp8_e4m3(byte) * spread[:byte.shape[0], :byte.shape[1]]


def text_config(config):
    return config.get("text_config", config)


def saved_shapes(config, folder):
    """name -> shape of the tensors as transformers saves them. Also writes config.json to the folder."""
    import transformers
    from safetensors import safe_open
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    (folder / "config.json").write_text(json.dumps(config))
    cfg = transformers.AutoConfig.from_pretrained(folder)
    if is_text_alone(config):  # describe() adds the prefix of the whole model's names
        model = transformers.AutoModelForCausalLM.from_config(cfg.text_config)
    else:
        model = getattr(transformers, config["architectures"][0])(cfg)
    model.save_pretrained(folder / "saved")
    with safe_open(folder / "saved" / "model.safetensors", "np") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys() if is_kept(name)}


def is_kept(name):
    """Of the vision tensors one is enough, to see that convert leaves it out."""
    if "vision_tower." in name or "embed_vision." in name:
        return name.endswith(("patch_embedder.input_proj.weight", "embedding_projection.weight"))
    return ".visual." not in name or name.endswith("merger.norm.bias")


def qwen3_vl_moe_shapes(shapes):
    """The published models have the experts' matrices transposed."""
    return {name: [shape[0], shape[2], shape[1]] if ".experts." in name else shape for name, shape in shapes.items()}


def mtp_apart_shapes(shapes, config):
    """The MTP layer of Qwen's published models: like the last layer with attention, under names of its own."""
    n = max(i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention")
    prefix = next(name for name in shapes if f"layers.{n}." in name).split(f"layers.{n}.")[0] + f"layers.{n}."
    out = {"mtp.layers.0." + name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
    width = config["hidden_size"]
    out["mtp.fc.weight"] = [width, 2 * width]
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        out[f"mtp.{name}.weight"] = [width]
    return out


def mtp_shapes(shapes, config):
    """The MTP layer of the published models: one more layer like the last, and what joins it to the model."""
    n, width, n_vocab = config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]
    last, mtp = f"model.layers.{n - 1}.", f"model.layers.{n}."
    out = {mtp + name.removeprefix(last): shape for name, shape in shapes.items() if name.startswith(last)}
    for name in ("enorm", "hnorm", "shared_head.norm"):
        out[mtp + name + ".weight"] = [width]
    out[mtp + "eh_proj.weight"] = [width, 2 * width]
    for name in ("embed_tokens", "shared_head.head"):
        out[mtp + name + ".weight"] = [n_vocab, width]
    return out


def shared_cache_shapes(config):
    """The published models have keys and values in the layers that read those of others, too."""
    out, width = {}, config["hidden_size"]
    for i in range(config["num_hidden_layers"] - config["num_kv_shared_layers"], config["num_hidden_layers"]):
        full = config["layer_types"][i] == "full_attention"
        head_dim = config["global_head_dim"] if full else config["head_dim"]
        for name in ("k_proj", "v_proj"):
            out[f"model.layers.{i}.self_attn.{name}.weight"] = [config["num_key_value_heads"] * head_dim, width]
        out[f"model.layers.{i}.self_attn.k_norm.weight"] = [head_dim]
    return out


def is_text_alone(config):
    """Whether the reference is made of the text model only."""
    return "text_config" in config and "vision_config" not in config


def gpt_oss_shapes(shapes):
    """Replaces the experts by those of the published models: blocks of 32 four-bit numbers, and their scales."""
    out = {}
    for name, shape in shapes.items():
        if name.endswith(("gate_up_proj", "down_proj")) and ".experts." in name:
            n_expert, n_in, n_out = shape
            out[name + "_blocks"] = [n_expert, n_out, n_in // 32, 16]
            out[name + "_scales"] = [n_expert, n_out, n_in // 32]
        else:
            out[name] = shape
    return out


MXFP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def unpack_mxfp4(blocks, scales):
    """[E, out, in / 32, 16] and [E, out, in / 32] -> [E, in, out], the layout of the dense parameter."""
    pairs = np.stack([MXFP4[blocks & 15], MXFP4[blocks >> 4]], -1)  # two neighbors per byte
    e, n_out, n_block, _ = blocks.shape
    dense = pairs.reshape(e, n_out, n_block, 32) * 2.0 ** (scales.astype(np.float64) - 127)[..., None]
    return dense.reshape(e, n_out, n_block * 32).transpose(0, 2, 1)


def write_weights(path, rules, dense, block=None):
    """Writes the safetensors file. dense: unpack MXFP4 and FP8 to F32, because transformers may lack its kernels."""
    import torch
    from safetensors.torch import save_file
    out = {}
    for name, dtype, shape, base, scale, bits in rules:
        if name.endswith(("_scales", "_scale_inv")) and dense:
            continue
        v = values(name, shape, base, scale, bits)
        if name.endswith("_blocks") and dense:
            scales = next(r for r in rules if r[0] == name.replace("_blocks", "_scales"))
            v = unpack_mxfp4(v.astype(np.uint8), values(*scales[:1], *scales[2:]).astype(np.uint8))
            name, dtype = name.removesuffix("_blocks"), "F32"
        if dtype == "F8_E4M3":
            v = v.astype(np.int64).astype(np.uint8)
        if dtype == "F8_E4M3" and dense:
            scale = next(r for r in rules if r[0] == name + "_scale_inv")
            v, dtype = dequantize_fp8(v.astype(np.int64), values(*scale[:1], *scale[2:]), block), "F32"
        if dtype == "F8_E4M3":
            out[name] = torch.from_numpy(v).view(torch.float8_e4m3fn)
            continue
        torch_dtype = {"U8": torch.uint8, "BF16": torch.bfloat16, "F32": torch.float32}[dtype]
        if dense and dtype == "BF16":
            torch_dtype = torch.float32
        out[name] = torch.from_numpy(np.ascontiguousarray(v)).to(torch_dtype)
    save_file(out, path, metadata={"format": "pt"})


def describe(name, config):
    """The rules of all tensors, with the names of the published models."""
    if name in WITHOUT_TRANSFORMERS:
        return [tensor_rule(n, s, config) for n, s in sorted(WITHOUT_TRANSFORMERS[name].shapes(config).items())]
    with tempfile.TemporaryDirectory() as folder:
        shapes = saved_shapes(config, pathlib.Path(folder))
    if name == "gpt_oss":
        shapes = gpt_oss_shapes(shapes)
    if name == "qwen3_vl_moe":
        shapes = qwen3_vl_moe_shapes(shapes)
    if "quantization_config" in config:
        shapes.update(scale_shapes(shapes, config))
    if config.get("num_kv_shared_layers", 0) > 0:
        shapes.update(shared_cache_shapes(config))
    if config.get("num_nextn_predict_layers", 0) > 0:
        shapes.update(mtp_shapes(shapes, config))
    if name in MTP_APART:
        shapes.update(mtp_apart_shapes(shapes, text_config(config)))
    prefix = "language_model." if is_text_alone(config) else ""
    return [tensor_rule(prefix + n, s, config) for n, s in sorted(shapes.items())]


def run_mtp(load, folder, ids):
    """float64 logits [n_ids, n_vocab] of the MTP layer: row i joins what the model made of token i with token i + 1, and the last
    row what the layer made of the row before with the token that it guesses there. The layer is one of the model's own, which
    `load` reads with the weights of the MTP layer; how it begins and ends is that of transformers' MtpLayer."""
    import torch
    from safetensors.torch import load_file, save_file
    path = folder / "model.safetensors"
    weights = load_file(path)
    model = load()
    text = model.config.get_text_config()
    n = text.num_hidden_layers
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * n
    like = max(i for i, kind in enumerate(kinds) if kind == "full_attention")
    inner = next(name for name in weights if f"layers.{like}." in name).split(f"layers.{like}.")[0] + "layers."
    apart = "mtp.fc.weight" in weights
    outer = "mtp.layers.0." if apart else f"{inner}{n}."
    names = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm") if apart else tuple(
        outer + part for part in ("enorm", "hnorm", "eh_proj", "shared_head.norm"))
    enorm, hnorm, proj, post = (weights[name + ".weight"].double() for name in names)
    hidden = model.get_decoder()(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    # Files may have copies of embedding and head; here they are other numbers, to see that they are used.
    embed = weights.get(outer + "embed_tokens.weight", model.get_input_embeddings().weight).double()
    head = weights.get(outer + "shared_head.head.weight", model.lm_head.weight).double()
    swapped = {f"{inner}{like}." + name.removeprefix(outer): t for name, t in weights.items() if name.startswith(outer)}
    weights.update({name: t.clone() for name, t in swapped.items() if name in weights})
    save_file(weights, path, metadata={"format": "pt"})
    base = load().get_decoder()

    def norm(x, weight):
        module = type(base.norm)(len(weight), text.rms_norm_eps).double()
        module.weight.data = weight
        return module(x)

    def rows(tokens, hidden):
        x = torch.cat([norm(embed[tokens], enorm), norm(hidden, hnorm)], -1) @ proj.T
        positions = torch.arange(1, len(tokens) + 1)[None]
        mask = torch.full((len(tokens), len(tokens)), -1e300, dtype=torch.float64).triu(1)
        y = base.layers[like](x[None], attention_mask=mask[None, None], position_ids=positions,
                              position_embeddings=base.rotary_emb(x[None], positions))
        return norm(y[0] if isinstance(y, tuple) else y, post).reshape(x.shape)

    made = rows(ids[1:], hidden[:-1])
    guess = int((made[-1] @ head.T).argmax())
    chained = rows(ids[1:] + [guess], torch.cat([hidden[:-1], made[-1:]]))
    return (chained @ head.T).numpy()


def defer_experts(model, n):
    """Of each token's experts the n of the lowest rank no longer add to their layer's output but to that of the layer after;
    in the last layer all add at once."""
    layers = model.get_decoder().layers
    for layer, later in zip(layers, layers[1:]):
        experts, deferred = layer.mlp.experts, []
        forward = experts.forward

        def first_ones(x, chosen, weights, forward=forward, deferred=deferred):
            deferred.append(forward(x, chosen[:, -n:], weights[:, -n:]))
            return forward(x, chosen[:, :-n], weights[:, :-n])

        experts.forward = first_ones
        later.register_forward_hook(lambda module, args, y, deferred=deferred: y + deferred.pop().reshape(y.shape))
    return model


def run_reference(config, rules, ids, n_deferred=0):
    """float64 logits [n_ids, n_vocab], and those of the MTP layer, if there is one."""
    import torch
    import transformers
    text = text_config(config)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        alone = {**text, "architectures": config["architectures"]} if text is config else text
        alone = {key: value for key, value in alone.items() if key != "quantization_config"}
        stripped = [[r[0].removeprefix("language_model."), *r[1:]] for r in rules]
        with_values = folder / "model.safetensors"
        block = config.get("quantization_config", {}).get("weight_block_size")
        write_weights_as(with_values, rules, stripped, block)
        model_class = transformers.AutoModelForCausalLM
        if "vision_config" in config:
            alone = config
            model_class = getattr(transformers, config["architectures"][0])
        (folder / "config.json").write_text(json.dumps(alone))

        def load():
            return model_class.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager",
                                               experts_implementation="eager").eval()
        with torch.no_grad():
            model = defer_experts(load(), n_deferred) if n_deferred else load()
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()
            has_mtp = any(".eh_proj." in r[0] or r[0] == "mtp.fc.weight" for r in rules)
            return logits, run_mtp(load, folder, ids) if has_mtp else None


def write_weights_as(path, rules, stripped, block):
    """Writes the tensors of `rules` with the names of `stripped`."""
    from safetensors.numpy import load_file, save_file
    with tempfile.TemporaryDirectory() as folder:
        original = pathlib.Path(folder) / "w.safetensors"
        write_weights(original, rules, dense=True, block=block)
        new_name = {old[0]: new[0] for old, new in zip(rules, stripped)}
        save_file({new_name.get(n, n): t for n, t in load_file(original).items()}, path, metadata={"format": "pt"})


def rounded(x):
    return float(f"{x:.6g}")


def make(name):
    config = FAMILIES[name]
    rules = describe(name, config)
    n_vocab = text_config(config)["vocab_size"]
    with np.errstate(over="ignore"):
        ids = splitmix64(np.uint64(fnv1a(name + ".ids")) + np.arange(N_IDS, dtype=np.uint64)) % np.uint64(n_vocab)
    ids = [int(i) for i in ids]
    if name in WITHOUT_TRANSFORMERS:
        weights = {r[0]: values(r[0], *r[2:]) for r in rules}
        logits, mtp = (part(config, weights, ids)
                       for part in (WITHOUT_TRANSFORMERS[name].logits, WITHOUT_TRANSFORMERS[name].mtp))
    else:
        logits, mtp = run_reference(config, rules, ids, DEFERRED.get(name, 0))
    data = {
        "name": name, "config": config, "tensors": rules, "ids": ids,
        "logits": {str(p): [rounded(x) for x in logits[p]] for p in FULL_ROWS},
        "heads": [[rounded(x) for x in row[:N_HEADS]] for row in logits],
        "norm": [rounded(np.linalg.norm(row)) for row in logits],
        "argmax": [int(row.argmax()) for row in logits],
    }
    if name in DEFERRED:
        data["n_deferred"] = DEFERRED[name]
    if mtp is not None:
        data["mtp"] = {str(p): [rounded(x) for x in mtp[p]] for p in (*FULL_ROWS[:-1], N_IDS - 2, N_IDS - 1)}
    return data


def write_json(path, data):
    """Writes one line per part, for readable diffs."""
    def lines(items):
        return "[\n" + ",\n".join("  " + json.dumps(i) for i in items) + "\n]"
    parts = [f'"name": {json.dumps(data["name"])}', f'"config": {json.dumps(data["config"])}',
             f'"tensors": {lines(data["tensors"])}', f'"ids": {json.dumps(data["ids"])}',
             '"logits": {\n' + ",\n".join(f'  "{p}": {json.dumps(r)}' for p, r in data["logits"].items()) + "\n}",
             f'"heads": {json.dumps(data["heads"])}', f'"norm": {json.dumps(data["norm"])}',
             f'"argmax": {json.dumps(data["argmax"])}']
    if "n_deferred" in data:
        parts.append(f'"n_deferred": {data["n_deferred"]}')
    if "mtp" in data:
        parts.append('"mtp": {\n' + ",\n".join(f'  "{p}": {json.dumps(r)}' for p, r in data["mtp"].items()) + "\n}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "families"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="names in reference_families.py (default: all)")
    parser.add_argument("--out", type=pathlib.Path, default=default, help="folder for the JSON files")
    parser.add_argument("--folder", type=pathlib.Path, help="write the Hugging Face folder of one NAME here instead")
    options = parser.parse_args()
    unknown = [n for n in options.names if n not in FAMILIES]
    if unknown:
        parser.error(f"unknown names: {', '.join(unknown)}; the names are {', '.join(FAMILIES)}")
    if options.folder:
        if len(options.names) != 1:
            parser.error("--folder needs one NAME")
        config = FAMILIES[options.names[0]]
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / "config.json").write_text(json.dumps(config, indent=2))
        write_weights(options.folder / "model.safetensors", describe(options.names[0], config), dense=False)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.names or FAMILIES:
        try:
            data = make(name)
        except Exception as error:  # continue with the other families
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed += 1
            continue
        path = options.out / f"{name}.json"
        write_json(path, data)
        spread = max(data["norm"]) / math.sqrt(len(data["logits"]["0"]))
        print(f"{name}: {len(data['tensors'])} tensors, {path.stat().st_size} bytes, logits about {spread:.3g}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
