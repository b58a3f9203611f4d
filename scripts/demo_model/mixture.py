"""A mixture of experts, with the names of a Qwen3 mixture (arXiv:2505.09388). Of each token's experts the weights sum to 1."""

import torch
from torch import nn
from torch.nn import functional as F


class Mixture(nn.Module):
    """make_expert returns one expert: rows in, rows out.

    forward() leaves in `imbalance` what is 1 if all experts are used alike, and more otherwise (arXiv:2101.03961)."""

    def __init__(self, c, make_expert):
        super().__init__()
        self.n_used, self.imbalance = c["num_experts_per_tok"], None
        self.gate = nn.Linear(c["hidden_size"], c["num_experts"], bias=False)
        self.experts = nn.ModuleList(make_expert() for _ in range(c["num_experts"]))

    def forward(self, x):  # x [batch, token, hidden]
        rows = x.flatten(0, 1)
        shares = self.gate(rows).softmax(-1)  # [row, expert]
        weights, chosen = shares.topk(self.n_used, dim=-1)  # [row, n_used]
        weights = weights / weights.sum(-1, keepdim=True)
        uses = F.one_hot(chosen, len(self.experts)).sum(1).float().mean(0) / self.n_used  # [expert]
        self.imbalance = len(self.experts) * (uses * shares.mean(0)).sum()
        out = torch.zeros_like(rows)
        for e, expert in enumerate(self.experts):  # one without rows gets gradients of zero
            row, rank = (chosen == e).nonzero(as_tuple=True)
            out = out.index_add(0, row, expert(rows[row]) * weights[row, rank, None])
        return out.view_as(x)
