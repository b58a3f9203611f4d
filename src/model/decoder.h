// The decoder-only transformer that all families here vary, as data. A family's file fills in a DecoderSpec
// as its paper describes; decoder.cpp builds the graph from it, for all families:
//
//   x = embed(ids) * embedding_scale
//   for each layer:
//     a = attn_norm(x);  q, k, v = a Wq, a Wk, a Wv;  q, k = q_norm(q), k_norm(k), rotated
//     x = x + residual_scale * attn_post_norm(attention(q, k, v) Wo)
//     f = ffn_norm(x)
//     x = x + residual_scale * ffn_post_norm(feed_forward(f))
//     x = x * output_scale
//   logits = softcap(output_norm(x) Wout * logit_scale)
//
// An MTP layer is a decoder of its own: x begins with both the token and what the model made of the token before it
// (JoinHidden).
//
// Null norms and biases are left out. The WeightBinder owns the weights; they outlive the model.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/architecture.h"

namespace tandem {

struct Linear {
  const Weight* w = nullptr;     // [outputs, inputs]; experts: [n_expert, outputs, inputs]
  const Weight* bias = nullptr;  // [outputs]; experts: [n_expert, outputs]; optional
};

// Multi-head latent attention (arXiv:2405.04434): of keys and values only their common source is cached, a row of
// `rank` columns a token, and behind it n_rot rotated columns of the keys. Each head's k_up maps its query to
// that row's columns, and v_up the attention's mean of such rows to its values ("absorbed" projections).
struct LatentAttention {
  const Weight* q_norm = nullptr;  // [q_rank]; null: queries are made from the layer's input
  Linear q_down;                   // [q_rank, n_embd]
  Linear down, rotated;            // [rank, n_embd], [n_rot, n_embd]
  const Weight* norm = nullptr;    // [rank]
  const Weight* k_up = nullptr;    // [n_head, rank, key columns that are not rotated]
  const Weight* v_up = nullptr;    // [n_head, value columns, rank]; null: no latent attention
};

struct AttentionLayer {
  // [n_head * head_dim_k | n_head_kv * head_dim_k | n_head_kv * head_dim_v, n_embd]. No v: values are the keys
  // before k_norm. Neither k nor v: see cache_of.
  Linear q, k, v;
  const Weight* q_norm = nullptr;  // per head: [head_dim_k]; over the row: [n_head * head_dim_k]
  const Weight* k_norm = nullptr;  // likewise, with n_head_kv heads
  const Weight* v_norm = nullptr;  // per head: [head_dim_v]
  bool rotates = true;             // false: no positions in this layer (NoPE)
  bool rotates_first = false;      // q_norm and k_norm follow the rotation
  RopeParams rope;                 // n_head is set when q and k are rotated
  bool has_rope_factors = true;    // false: those of the model are for other layers
  AttentionParams params;
  const Weight* sinks = nullptr;  // [n_head]
  LatentAttention latent;  // instead of k and v; q then has n_head keys' columns, the rotated ones last
  Linear out;              // [n_embd, n_head * head_dim_v]
  // q has a gate after each head: [n_head * (head_dim_k + head_dim_v), n_embd]. The result is multiplied by its
  // sigmoid.
  bool gated = false;
  std::optional<int> cache_of;  // the earlier layer whose cache this one reads instead of a cache of its own
};

// A layer with the gated delta rule instead of attention (graph/ops.h):
//   qkv = silu(conv(a Wqkv));  y = delta_rule(qkv, a Wbeta, a Walpha)
//   x = x + norm(y) * silu(a Wz) Wout
struct DeltaNetLayer {
  DeltaRuleParams params;
  Linear qkv, z;       // [n_qkv | n_head_v * head_dim_v, n_embd]
  Linear qkvz;         // instead of both: of each key head its q, k, and the v and z of its value heads
  Linear beta, alpha;  // [n_head_v, n_embd]
  Linear beta_alpha;   // instead of both: of each key head all beta, all alpha
  const Weight* conv = nullptr;                       // [n_qkv, kernel]
  const Weight *decay = nullptr, *dt_bias = nullptr;  // [n_head_v]
  const Weight* norm = nullptr;                       // [head_dim_v]
  Linear out;                                         // [n_embd, n_head_v * head_dim_v]
};

// A layer with a gated short convolution instead of attention:
//   x = x + ((a Wc) * conv((a Wb) * (a Wx))) Wout
struct ShortConvLayer {
  Linear b, c, x;                // [n_embd, n_embd]
  const Weight* conv = nullptr;  // [n_embd, kernel]
  Linear out;                    // [n_embd, n_embd]
};

// A layer with the state space of Mamba-2 instead of attention (graph/ops.h):
//   y = ssm_scan(silu(conv(a Wxbc)), a Wdt)
//   x = x + norm(y * silu(a Wz)) Wout
struct Mamba2Layer {
  SsmScanParams params;
  Linear z, xbc, dt;                                                   // [n_inner | n_xbc | n_head, n_embd]
  const Weight *conv = nullptr, *conv_bias = nullptr;                  // [n_xbc, kernel], [n_xbc]
  const Weight *decay = nullptr, *dt_bias = nullptr, *skip = nullptr;  // [n_head]
  const Weight* norm = nullptr;                                        // [n_group, n_inner / n_group]
  Linear out;                                                          // [n_embd, n_inner]
};

// A gated unit, down(act(gate x) * (up x)); without a gate, down(relu(up x)^2). With a router, a mixture of n_expert
// such units.
struct FeedForward {
  Activation activation = Activation::silu;
  Linear gate, up;  // [n_ff, n_embd]; a mixture without up: gate has the rows of both
  Linear down;      // [n_embd, n_ff]

  Linear router;                           // [n_expert, n_embd]
  MoeRouteParams route;                    // how experts are chosen
  const Weight* selection_bias = nullptr;  // [n_expert], added to the scores that choose; optional
  const Weight* expert_scale = nullptr;    // [n_expert], of the weights of chosen experts; optional
  const Weight* gate_factors = nullptr;    // [n_expert, 1], of the gates' products; optional

  // The experts work in a narrower space: between these products.
  Linear latent_down, latent_up;  // [n_latent, n_embd], [n_embd, n_latent]; optional

  // A shared expert that every token passes in addition to the mixture, times sigmoid(shared_expert_gate x) if
  // there is such a gate.
  Linear shared_gate, shared_up, shared_down;
  const Weight* shared_expert_gate = nullptr;  // [1, n_embd]
};

// A mixture beside the dense unit of a layer; both read x:
//   x = x + ffn_post_norm(dense_post_norm(dense(ffn_norm(x))) + post_norm(experts(norm(x))))
// The router reads router_norm(x).
struct ParallelMixture {
  const Weight *router_norm = nullptr, *norm = nullptr, *post_norm = nullptr, *dense_post_norm = nullptr;
  FeedForward experts;
};

// A second embedding, of which every layer reads columns of its own (per-layer embeddings, PLE):
//   inputs = norm(embed(ids) Wproj) + embed_inputs(ids) * embedding_scale     [n, n_layer * width]
// and after its feed-forward part, with the columns `in` of a layer,
//   x = x + post_norm((gelu_tanh(x Wgate) * in) Wout)
struct LayerInputs {
  const Weight* token_embd = nullptr;  // [n_vocab, n_layer * width]; null: there are none
  float embedding_scale = 1.0f;
  Linear proj;                   // [n_layer * width, n_embd]
  const Weight* norm = nullptr;  // [width], of each layer's columns
  float norm_eps = 0.0f;
};
struct LayerInput {
  Linear gate, out;                   // [width, n_embd], [n_embd, width]
  const Weight* post_norm = nullptr;  // [n_embd]
};

// How an MTP layer (multi-token prediction, arXiv:2412.19437) begins, where hidden is output_norm(x) of the model,
// or of the MTP layer itself, for the token before:
//   x = [embedding_norm(embed(ids)), hidden_norm(hidden)] Wproj
struct JoinHidden {
  const Weight *embedding_norm = nullptr, *hidden_norm = nullptr;  // [n_embd]
  const Weight* proj = nullptr;  // [n_embd, 2 * n_embd]; null: this is no MTP layer
};

// Either part may be missing: what mixes tokens, or the feed-forward part.
struct DecoderLayer {
  const Weight* attn_norm = nullptr;  // [n_embd], like all norms here
  AttentionLayer attention;
  std::optional<DeltaNetLayer> delta_net;  // instead of attention, as the following
  std::optional<ShortConvLayer> short_conv;
  std::optional<Mamba2Layer> mamba2;
  const Weight* attn_post_norm = nullptr;
  const Weight* ffn_norm = nullptr;
  FeedForward ffn;
  std::optional<ParallelMixture> mixture;  // in addition
  const Weight* ffn_post_norm = nullptr;
  LayerInput input;  // if the model has LayerInputs
  float output_scale = 1.0f;

  // The last product of the part that mixes tokens; no weight: there is no such part.
  const Linear& mixer_out() const {
    return delta_net ? delta_net->out : short_conv ? short_conv->out : mamba2 ? mamba2->out : attention.out;
  }
};

// Divisors of rotation frequencies, each [n_rot / 2] or null: `any`; or `up_to_orig` for contexts up to
// n_ctx_orig and `beyond` for longer ones (LongRoPE, arXiv:2402.13753). All of a sequence must be rotated the
// same way, so the size of the context decides, not the number of tokens in it.
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
  const Weight* output = nullptr;       // [n_vocab, n_embd]; token_embd if tied
  RopeFactors rope_factors;
  LayerInputs layer_inputs;
  JoinHidden join_hidden;
  std::vector<DecoderLayer> layers;
};

std::unique_ptr<Architecture> make_decoder(DecoderSpec spec);

}  // namespace tandem
