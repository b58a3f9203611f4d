// The ops: few, coarse, each what a good hand-written kernel does in one pass. Devices implement all of them;
// models are described with nothing else. The order of a node's inputs is given with each op; kNoTensor where
// absent. Shapes are [rows, columns], n = tokens of the step.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/tensor.h"

namespace tandem {

enum class NormKind : uint8_t { rms, layer };
enum class RopeStyle : uint8_t { pair, half };  // rotates (2i, 2i+1), or (i, i + n_rot/2)
// How a gated unit joins its halves: act(gate) * up; but swiglu_oai (gpt-oss) is
// g * sigmoid(1.702 * g) * (u + 1) with g = min(gate, 7), u = up within [-7, 7].
enum class Activation : uint8_t { silu, gelu, gelu_tanh, relu2, swiglu_oai };

// embed: ids[n], table[V, d] -> x[n, d] F32, times scale.
struct EmbedOp {
  float scale = 1.0f;
};

// norm: x[n, c], weight[group], bias[group]? -> y[n, c]. Every run of `group` columns is normalized by itself
// (group == c, or head_dim for per-head norms).
struct NormOp {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  int64_t group = 0;
};

// linear: x[n, k], W[m, k], bias[m]?, residual[n, m]? -> y[n, m] = x W^T + bias + residual.
struct LinearOp {};

// rope: x[n, n_head * head_dim], positions[n], freq_factors[n_rot / 2]? -> rotated in place.
// Angle of pair i at position p: p * freq_scale * freq_base^(-2i / n_rot) / factor[i], mixed with its
// unscaled value by the YaRN ramp where ext_factor != 0 (arXiv:2309.00071); cos and sin are multiplied by
// attn_factor, and with YaRN by 1 + 0.1 ln(1 / freq_scale) too. Queries whose softmax shall sharpen as the
// context grows are multiplied by 1 + temperature_scale * ln(1 + floor(p / temperature_length)) as well
// (n_rot == head_dim then).
struct RopeOp {
  RopeStyle style = RopeStyle::pair;
  int64_t n_head = 0, head_dim = 0, n_rot = 0;
  float freq_base = 10000.0f, freq_scale = 1.0f;
  float ext_factor = 0.0f, attn_factor = 1.0f, beta_fast = 32.0f, beta_slow = 1.0f;
  bool yarn_truncate = true;  // the ramp begins and ends at whole pairs
  int64_t n_ctx_orig = 0;
  float temperature_scale = 0.0f;
  int64_t temperature_length = 1;

  bool operator==(const RopeOp&) const = default;
};

// kv_write: k[n, Hkv * hd_k], v[n, Hkv * hd_v], slots[n] -> the cache of the node's layer, converted to its
// dtypes.
struct KvWriteOp {};

// A layer's cache may be in two parts, each on a device of its own: the recent positions of a sequence, those
// from recent_from on, and the old ones before. kv_write and attention of a device work on the part that is
// there.
enum class KvPart : uint8_t { whole, old, recent };

// attention: q[n, H * hd_k], positions[n], sequences[n], block_table[s, b], sinks[H]?, recent_from[s]?
// -> y[n, H * hd_v].
// Token t sees the cached positions p of its sequence with p <= positions[t], and p > positions[t] - window
// where window > 0. Scores are scale * q.k, then softcap * tanh(score / softcap) where softcap > 0. Query
// head h reads key-value head h / (H / Hkv). Over a part only (which takes recent_from), block_table holds
// the part's blocks, the first of the recent one's that of position recent_from, and the result is y[n, H *
// hd_v + H]: behind the attention over the part's positions alone, the natural logarithm of the sum of
// e^score over them for each head; 0 and -infinity where there are none. Sinks are given to one part of the
// two.
struct AttentionOp {
  int64_t n_head = 0, n_head_kv = 0, head_dim_k = 0, head_dim_v = 0;
  float scale = 1.0f, softcap = 0.0f;
  int64_t window = 0;
  KvPart part = KvPart::whole;
};

// merge: a[n, H * hd_v + H], b[n, H * hd_v + H] -> y[n, H * hd_v], the attention over both parts: of each
// head, the mean of the parts' results weighted by e^logarithm (arXiv:2205.14135, the merge of blocks).
struct MergeOp {
  int64_t n_head = 0, head_dim_v = 0;
};

// glu: x[n, k], Wgate[m, k], Wup[m, k], bias_gate[m]?, bias_up[m]? -> y[n, m] = act(x Wgate^T) * (x Wup^T).
struct GluOp {
  Activation activation = Activation::silu;
};

// moe_route: logits[n, E], selection_bias[E]? -> route[n, 2 * n_used] F32: the ids of the chosen experts (I32
// bits) in the first n_used columns, by falling score, their weights in the others. Scores are the softmax or
// the sigmoid of the logits. The n_used best by score + selection_bias are chosen (within the n_group_used
// best of n_group equal groups, judged by the sum of their two best, where n_group > 1); the weights are
// their scores without the bias, divided by their sum if normalize, times scale.
enum class MoeScoring : uint8_t { softmax, sigmoid };
struct MoeRouteOp {
  int64_t n_expert = 0, n_used = 0;
  MoeScoring scoring = MoeScoring::softmax;
  bool normalize = true;
  float scale = 1.0f;
  int64_t n_group = 1, n_group_used = 1;
};

// moe_ffn: x[n, k], route[n, 2 * n_used], Wgate[E, m, k], Wup[E, m, k], Wdown[E, k, m], residual[n, k]?,
// bias_gate[E, m]?, bias_up[E, m]?, bias_down[E, k]? ->
// y[n, k] = residual + sum over the chosen experts e of weight_e * Wdown_e (act(Wgate_e x) * (Wup_e x)),
// every product with its bias added. Only the chosen experts' weights are read.
struct MoeFfnOp {
  int64_t n_expert = 0, n_used = 0;
  Activation activation = Activation::silu;
};

// add: a[n, c], b[n, c], gate[n, 1]? -> a + factor * b, where there is a gate times sigmoid(gate) of the row.
struct AddOp {
  float factor = 1.0f;
};
// scale: x[n, c] -> factor * x.
struct ScaleOp {
  float factor = 1.0f;
};
// softcap: x[n, c] -> cap * tanh(x / cap).
struct SoftcapOp {
  float cap = 1.0f;
};
// join: a[n, p], b[n, q], residual[n, p + q]? -> [a b] + residual.
struct JoinOp {};
// gather_rows: x[n, c], outputs[n_outputs] -> y[n_outputs, c].
struct GatherRowsOp {};

using Op = std::variant<EmbedOp, NormOp, LinearOp, RopeOp, KvWriteOp, AttentionOp, GluOp, MoeRouteOp,
                        MoeFfnOp, AddOp, ScaleOp, SoftcapOp, GatherRowsOp, MergeOp, JoinOp>;

// "linear", "attention", ...
std::string_view op_name(const Op& op);

struct Node {
  Op op;
  std::vector<TensorId> inputs;
  TensorId output = kNoTensor;  // kNoTensor: kv_write
  int layer = -1;               // -1: before the first layer; n_layer: the output head
  int device = -1;              // that runs it, whatever the placement says; -1: as the placement says
};

}  // namespace tandem
