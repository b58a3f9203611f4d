"""Ling 2.0 (BailingMoeV2ForCausalLM) in float64, for reference_logits.py: transformers does not have it. Written from the
published formulas (arXiv:2510.22115), as plainly as possible: no cache, one sequence, every expert in a loop."""

import numpy as np


def shapes(c):
    """name -> shape of every tensor of a checkpoint."""
    width, n_head, n_kv, size = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    out = {"model.word_embeddings.weight": [c["vocab_size"], width], "model.norm.weight": [width],
           "lm_head.weight": [c["vocab_size"], width]}

    def gated(name, n_ff):
        for part, shape in (("gate", [n_ff, width]), ("up", [n_ff, width]), ("down", [width, n_ff])):
            out[f"{name}.{part}_proj.weight"] = shape

    for i in range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]):
        layer = f"model.layers.{i}."
        if i >= c["num_hidden_layers"]:  # an MTP layer
            for norm in ("enorm", "hnorm", "final_layernorm"):
                out[f"{layer}{norm}.weight"] = [width]
            out[layer + "eh_proj.weight"] = [width, 2 * width]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"{layer}{norm}.weight"] = [width]
        for norm in ("query_layernorm", "key_layernorm"):
            out[f"{layer}attention.{norm}.weight"] = [size]
        out[layer + "attention.query_key_value.weight"] = [(n_head + 2 * n_kv) * size, width]
        out[layer + "attention.dense.weight"] = [width, n_head * size]
        if i < c["first_k_dense_replace"]:
            gated(layer + "mlp", c["intermediate_size"])
            continue
        out[layer + "mlp.gate.weight"] = [c["num_experts"], width]
        out[layer + "mlp.gate.expert_bias"] = [c["num_experts"]]
        for expert in range(c["num_experts"]):
            gated(f"{layer}mlp.experts.{expert}", c["moe_intermediate_size"])
        gated(layer + "mlp.shared_experts", c["moe_intermediate_size"] * c["num_shared_experts"])
    return out


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, theta, n_rot):
    """x [n, heads, size]: rotates the first n_rot columns of each head, as halves."""
    position = np.arange(x.shape[0])[:, None, None]
    angle = position * theta ** (-np.arange(0, n_rot, 2) / n_rot)
    a, b, rest = x[..., :n_rot // 2], x[..., n_rot // 2:n_rot], x[..., n_rot:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), rest], -1)


def gated_unit(w, name, x):
    gate = x @ w[name + ".gate_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * (x @ w[name + ".up_proj.weight"].T)) @ w[name + ".down_proj.weight"].T


def attention(c, w, layer, x):
    n, n_head, n_kv, size = len(x), c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    heads = (x @ w[layer + "attention.query_key_value.weight"].T).reshape(n, n_head + 2 * n_kv, size)
    q, k, v = heads[:, :n_head], heads[:, n_head:n_head + n_kv], heads[:, n_head + n_kv:]
    n_rot = int(size * c["partial_rotary_factor"])
    q = rotate(rms_norm(q, w[layer + "attention.query_layernorm.weight"], c["rms_norm_eps"]), c["rope_theta"], n_rot)
    k = rotate(rms_norm(k, w[layer + "attention.key_layernorm.weight"], c["rms_norm_eps"]), c["rope_theta"], n_rot)
    k, v = np.repeat(k, n_head // n_kv, axis=1), np.repeat(v, n_head // n_kv, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
    scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1) @ w[layer + "attention.dense.weight"].T


def chosen_experts(c, scores, bias):
    """Of one token: the best by score plus bias, in the groups whose two best sum to the most."""
    choice = (scores + bias).reshape(c["n_group"], -1)
    best_groups = np.argsort(-np.sort(choice, -1)[:, -2:].sum(-1), kind="stable")[:c["topk_group"]]
    allowed = np.full_like(choice, -np.inf)
    allowed[best_groups] = choice[best_groups]
    return np.argsort(-allowed.reshape(-1), kind="stable")[:c["num_experts_per_tok"]]


def mixture(c, w, layer, x):
    scores = 1 / (1 + np.exp(-(x @ w[layer + "mlp.gate.weight"].T)))
    y = gated_unit(w, layer + "mlp.shared_experts", x)
    for token, row in enumerate(scores):
        experts = chosen_experts(c, row, w[layer + "mlp.gate.expert_bias"])
        weights = row[experts] / row[experts].sum() * c["routed_scaling_factor"]
        for expert, weight in zip(experts, weights):
            y[token] += weight * gated_unit(w, f"{layer}mlp.experts.{expert}", x[token])
    return y


def after_layer(c, w, i, x):
    layer = f"model.layers.{i}."
    x = x + attention(c, w, layer, rms_norm(x, w[layer + "input_layernorm.weight"], c["rms_norm_eps"]))
    h = rms_norm(x, w[layer + "post_attention_layernorm.weight"], c["rms_norm_eps"])
    return x + (gated_unit(w, layer + "mlp", h) if i < c["first_k_dense_replace"] else mixture(c, w, layer, h))


def hidden(c, w, ids):
    x = w["model.word_embeddings.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        x = after_layer(c, w, i, x)
    return rms_norm(x, w["model.norm.weight"], c["rms_norm_eps"])


def logits(c, w, ids):
    """[n, n_vocab] for the weights w: name -> float64 array."""
    return hidden(c, w, ids) @ w["lm_head.weight"].T


def mtp(c, w, ids):
    """As run_mtp of reference_logits.py."""
    layer, eps = f"model.layers.{c['num_hidden_layers']}.", c["rms_norm_eps"]

    def rows(tokens, of_model):
        x = np.concatenate([rms_norm(w["model.word_embeddings.weight"][tokens], w[layer + "enorm.weight"], eps),
                            rms_norm(of_model, w[layer + "hnorm.weight"], eps)], -1) @ w[layer + "eh_proj.weight"].T
        return rms_norm(after_layer(c, w, c["num_hidden_layers"], x), w[layer + "final_layernorm.weight"], eps)

    of_model = hidden(c, w, ids)[:-1]
    made = rows(ids[1:], of_model)
    guess = int((made[-1] @ w["lm_head.weight"].T).argmax())
    return rows(ids[1:] + [guess], np.concatenate([of_model, made[-1:]])) @ w["lm_head.weight"].T
