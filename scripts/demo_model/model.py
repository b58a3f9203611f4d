"""A minimal Llama model, or Qwen3 mixture. Modules have the names of a Hugging Face checkpoint."""

import torch
from torch import nn
from torch.nn import functional as F

from mixture import Mixture


def is_mixture(config):
    return "num_experts" in config


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):  # x [batch, head, token, head_dim]; element i pairs with element i + head_dim / 2
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.head_dim = c["hidden_size"] // c["num_attention_heads"]
        kv_width = c["num_key_value_heads"] * self.head_dim
        self.q_proj = nn.Linear(c["hidden_size"], c["hidden_size"], bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], kv_width, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], kv_width, bias=False)
        self.o_proj = nn.Linear(c["hidden_size"], c["hidden_size"], bias=False)
        norm = lambda: RMSNorm(self.head_dim, c["rms_norm_eps"]) if is_mixture(c) else nn.Identity()
        self.q_norm, self.k_norm = norm(), norm()

    def forward(self, x, cos, sin):  # x [batch, token, hidden]
        heads = lambda y: y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = (
            rotate(self.q_norm(heads(self.q_proj(x))), cos, sin),
            rotate(self.k_norm(heads(self.k_proj(x))), cos, sin),
            heads(self.v_proj(x)),
        )
        n_shared = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(n_shared, 1), v.repeat_interleave(n_shared, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, n_in, n_inside):
        super().__init__()
        self.gate_proj = nn.Linear(n_in, n_inside, bias=False)
        self.up_proj = nn.Linear(n_in, n_inside, bias=False)
        self.down_proj = nn.Linear(n_inside, n_in, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        if is_mixture(c):
            self.mlp = Mixture(c, lambda: MLP(c["hidden_size"], c["moe_intermediate_size"]))
        else:
            self.mlp = MLP(c["hidden_size"], c["intermediate_size"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """config: a dict with the keys of config.json. The output head is tied to the embedding."""

    def __init__(self, config):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.model.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        turns = config["rope_theta"] ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.arange(config["max_position_embeddings"])[:, None] * turns  # [position, head_dim / 2]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:  # matrices that add to the residual stream start smaller in deeper models
                into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * config["num_hidden_layers"]) ** (0.5 * into_stream))

    def forward(self, ids):  # ids [batch, token] -> logits [batch, token, vocab]
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def imbalance(self):
        """How unevenly the last forward() used the experts: the mean of the layers; 0 without experts."""
        layers = [m.imbalance for m in self.modules() if isinstance(m, Mixture)]
        return sum(layers) / max(1, len(layers))
