// The decoder-only transformer that every family here is a variation of, as data. A family's file fills in a
// DecoderSpec with what its paper says; the graph is built from that in one place, in decoder.cpp:
//
//   x = embed(ids) * embedding_scale
//   for each layer:
//     a = attn_norm(x);  q, k, v = a Wq, a Wk, a Wv;  q, k = q_norm(q), k_norm(k), rotated
//     x = x + residual_scale * attn_post_norm(attention(q, k, v) Wo)
//     f = ffn_norm(x)
//     x = x + residual_scale * ffn_post_norm(feed_forward(f))
//   logits = softcap(output_norm(x) Wout * logit_scale)
//
// A norm or bias that is null is left out. Weights are the WeightBinder's and outlive the model.
#pragma once

#include <memory>
#include <vector>

#include "model/architecture.h"

namespace tandem {

struct Linear {
  const Weight* w = nullptr;     // [outputs, inputs]; of experts: [n_expert, outputs, inputs]
  const Weight* bias = nullptr;  // [outputs]; of experts: [n_expert, outputs]; optional
};

struct AttentionPart {
  Linear q, k, v;  // [n_head * head_dim_k | n_head_kv * head_dim_k | n_head_kv * head_dim_v, n_embd]
  const Weight* q_norm =
      nullptr;  // [head_dim_k]: each head by itself; [n_head * head_dim_k]: the row as a whole
  const Weight* k_norm = nullptr;  // likewise, of n_head_kv heads
  bool rotates = true;             // false: this layer knows no positions
  RopeParams rope;                 // n_head is set for q and k when they are rotated
  AttentionParams params;
  const Weight* sinks = nullptr;  // [n_head]
  Linear out;                     // [n_embd, n_head * head_dim_v]
};

// A gated unit, down(act(gate x) * (up x)); or, where there is a router, the mixture of n_expert such units.
struct FeedForward {
  Activation activation = Activation::silu;
  Linear gate, up;  // [n_ff, n_embd]
  Linear down;      // [n_embd, n_ff]

  Linear router;         // [n_expert, n_embd]
  MoeRouteParams route;  // how the mixture's experts are chosen

  // A unit that every token goes through beside the mixture's, times sigmoid(shared_switch x).
  Linear shared_gate, shared_up, shared_down;
  const Weight* shared_switch = nullptr;  // [1, n_embd]
};

struct DecoderLayer {
  const Weight* attn_norm = nullptr;  // [n_embd], as all norms
  AttentionPart attention;
  const Weight* attn_post_norm = nullptr;
  const Weight* ffn_norm = nullptr;
  FeedForward ffn;
  const Weight* ffn_post_norm = nullptr;
};

// What rotations' frequencies are divided by, [n_rot / 2] each or null: `any`; or one for contexts up to
// n_ctx_orig and one for longer ones (LongRoPE, arXiv:2402.13753). A sequence is rotated one way throughout,
// so the choice is by the size of the context, not by how many tokens are in it.
struct RopeFactors {
  const Weight *any = nullptr, *up_to_orig = nullptr, *beyond = nullptr;
  int64_t n_ctx_orig = 0;

  const Weight* at(int64_t n_ctx) const { return any ? any : n_ctx > n_ctx_orig ? beyond : up_to_orig; }
};

struct DecoderSpec {
  Hparams hparams;
  float embedding_scale = 1.0f, residual_scale = 1.0f, logit_scale = 1.0f;
  float logit_softcap = 0.0f;           // 0: none
  const Weight* token_embd = nullptr;   // [n_vocab, n_embd]
  const Weight* output_norm = nullptr;  // [n_embd]
  const Weight* output = nullptr;       // [n_vocab, n_embd]; token_embd where they are tied
  RopeFactors rope_factors;
  std::vector<DecoderLayer> layers;
};

std::unique_ptr<Architecture> make_decoder(DecoderSpec spec);

}  // namespace tandem
