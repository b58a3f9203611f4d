// The ops: few and coarse, each what a good hand-written kernel does in one pass. Every device implements
// all of them, and models use nothing else. An op holds its parameters and the ids of the tensors that it
// reads. Comments give shapes as [rows, columns]; n is the number of tokens in the step, and "?" marks an
// optional tensor, kNoTensor if absent. Parameters that models pass to GraphBuilder are a struct of their
// own, from which the op derives. inputs() lists the tensors of an op once; all code that walks over inputs
// uses it and its order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "graph/device_id.h"
#include "graph/tensor.h"

namespace tandem {

enum class NormKind : uint8_t { rms, layer };
enum class RopeStyle : uint8_t { pair, half };  // rotates the pairs (2i, 2i+1), or (i, i + n_rot/2)
// The activation of a gated unit: act(gate) * up. swiglu_oai (gpt-oss) is g * sigmoid(1.702 * g) * (u + 1)
// with g = min(gate, 7) and u = clamp(up, -7, 7).
enum class Activation : uint8_t { silu, gelu, gelu_tanh, relu2, swiglu_oai };

// embed: -> x[n, d] F32, rows of the table times scale.
struct EmbedOp {
  TensorId ids = kNoTensor;    // [n]
  TensorId table = kNoTensor;  // [V, d]
  float scale = 1.0f;

  static constexpr std::string_view kName = "embed";
  static auto inputs(auto& op) { return std::tie(op.ids, op.table); }
};

// norm: -> y[n, c]. Normalizes every run of `group` columns separately (group == c, or head_dim for
// per-head norms). Runs take the rows of the weight in turn: it has one row for all of them, or one for each run
// of a row of x.
struct NormParams {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  int64_t group = 0;
};
struct NormOp : NormParams {
  TensorId x = kNoTensor;       // [n, c]
  TensorId weight = kNoTensor;  // [group], or [c / group, group]
  TensorId bias = kNoTensor;    // [group]?

  static constexpr std::string_view kName = "norm";
  static auto inputs(auto& op) { return std::tie(op.x, op.weight, op.bias); }
};

// linear: -> y[n, m] = x W^T + bias + residual.
struct LinearOp {
  TensorId x = kNoTensor;         // [n, k]
  TensorId weight = kNoTensor;    // W[m, k]
  TensorId bias = kNoTensor;      // [m]?
  TensorId residual = kNoTensor;  // [n, m]?

  static constexpr std::string_view kName = "linear";
  static auto inputs(auto& op) { return std::tie(op.x, op.weight, op.bias, op.residual); }
};

// head_linear: -> y[n, H * (m + r)]. Each head h of x has a matrix of its own: its first k columns become the
// m columns x_h W_h^T, and its last r columns follow unchanged.
struct HeadLinearOp {
  TensorId x = kNoTensor;       // [n, H * (k + r)]
  TensorId weight = kNoTensor;  // W[H, m, k]

  static constexpr std::string_view kName = "head_linear";
  static auto inputs(auto& op) { return std::tie(op.x, op.weight); }
};

// rope: rotates n_rot columns of every head of x in place, from column `first` on.
// The angle of pair i at position p is p * freq_scale * freq_base^(-2i / n_rot) / factor[i]. With
// ext_factor != 0 the YaRN ramp mixes it with its unscaled value (arXiv:2309.00071). cos and sin are
// multiplied by attn_factor, and with YaRN also by 1 + 0.1 ln(1 / freq_scale).
// With temperature_scale != 0 (only if n_rot == head_dim) queries are also multiplied by
// 1 + temperature_scale * ln(1 + floor(p / temperature_length)): their softmax sharpens as the context
// grows.
struct RopeParams {
  RopeStyle style = RopeStyle::pair;
  int64_t n_head = 0, head_dim = 0, n_rot = 0;
  int64_t first = 0;
  float freq_base = 10000.0f, freq_scale = 1.0f;
  float ext_factor = 0.0f, attn_factor = 1.0f, beta_fast = 32.0f, beta_slow = 1.0f;
  bool yarn_truncate = true;  // the ramp starts and ends at whole pairs
  int64_t n_ctx_orig = 0;
  float temperature_scale = 0.0f;
  int64_t temperature_length = 1;

  bool operator==(const RopeParams&) const = default;
};
struct RopeOp : RopeParams {
  TensorId x = kNoTensor;             // [n, n_head * head_dim]
  TensorId positions = kNoTensor;     // [n]
  TensorId freq_factors = kNoTensor;  // [n_rot / 2]?

  static constexpr std::string_view kName = "rope";
  static auto inputs(auto& op) { return std::tie(op.x, op.positions, op.freq_factors); }
};

// hadamard: multiplies every run of `width` columns of x by an orthonormal Hadamard matrix, in place (graph/hadamard.h).
struct HadamardOp {
  TensorId x = kNoTensor;  // [n, c]
  int64_t width = 0;       // a power of two

  static constexpr std::string_view kName = "hadamard";
  static auto inputs(auto& op) { return std::tie(op.x); }
};

// kv_write: writes k and v to the cache of the node's layer, converted to the cache's dtypes. No output.
// Without v where values are in the keys (AttentionParams).
struct KvWriteOp {
  TensorId k = kNoTensor;      // [n, key sets * Hkv * hd_k], set after set
  TensorId v = kNoTensor;      // [n, Hkv * hd_v]?
  TensorId slots = kNoTensor;  // [n]

  static constexpr std::string_view kName = "kv_write";
  static auto inputs(auto& op) { return std::tie(op.k, op.v, op.slots); }
};

// A layer's cache may be split between two devices: the hot cache holds the newest positions of a sequence,
// from hot_from on, and the cold cache the positions before. kv_write and attention use the part on their
// device.
enum class KvPart : uint8_t { whole, cold, hot };

// attention: -> y[n, H * hd_v].
// Token t attends to the cached positions p of its sequence with p <= positions[t] and, if window > 0,
// p > positions[t] - window. Scores are scale * q.k; if softcap > 0, softcap * tanh(score / softcap). Query
// head h reads key-value head h / (H / Hkv). With values_in_keys, the cache has no values of its own: they are
// the first hd_v columns of the keys.
// With part != whole, the op takes hot_from and attends to that part only. block_table then holds the
// part's blocks; the first hot block is the one of position hot_from. The result is y[n, H * hd_v + H]: the
// attention over the part's positions, followed by the natural logarithm of the sum of e^score over them
// for each head; 0 and -infinity for a token that sees no position of the part. Only one of the two parts
// takes the sinks.
//
// With `sparse`, and if the cache has an index (device/kv_index.h), which only those in host memory have, each token
// reads some positions instead of all (SparQ, arXiv:2312.04985); without an index it reads all. For each key-value head:
//   the n_components columns of q with the largest |q|, summed over the head's queries, give approximate scores
//   a_p = scale * q_R . k_p,R / sqrt(|q_R|_1 / |q|_1), and these, softcapped, softmax weights w_p for each query;
//   the n_positions positions with the largest w_p, summed over the queries, are attended to exactly, and besides them
//   the first kSparseFirst positions and the newest();
//   with alpha, the sum of w_p over these, y = alpha * attention + (1 - alpha) * mean of the values of all whole blocks.
// A token that would leave nothing out attends as without `sparse`.
//
// The keys of a layer may be cached more than once, each time with another rotation (KvLayer::n_key_sets); key_set says
// which are read. With gives_logarithms, the result over the whole cache is as that of a part, and a token whose position is
// negative sees nothing.
inline constexpr int64_t kSparseFirst = 4;
struct SparseReads {
  int64_t n_components = 0, n_positions = 0;

  bool on() const { return n_components > 0; }
  int64_t newest() const { return std::clamp<int64_t>(n_positions / 4, 8, 64); }
  int64_t n_read() const { return kSparseFirst + newest() + n_positions; }  // of a long text
  bool operator==(const SparseReads&) const = default;
};
struct AttentionParams {
  int64_t n_head = 0, n_head_kv = 0, head_dim_k = 0, head_dim_v = 0;
  float scale = 1.0f, softcap = 0.0f;
  int64_t window = 0;
  KvPart part = KvPart::whole;
  bool values_in_keys = false;
  SparseReads sparse = {};
  int64_t key_set = 0;
  bool gives_logarithms = false;

  // Whether logarithms follow the heads in the result.
  bool has_logarithms() const { return part != KvPart::whole || gives_logarithms; }
  int64_t n_result_columns() const { return n_head * (head_dim_v + (has_logarithms() ? 1 : 0)); }
};
struct AttentionOp : AttentionParams {
  TensorId q = kNoTensor;            // [n, H * hd_k]
  TensorId positions = kNoTensor;    // [n]
  TensorId sequences = kNoTensor;    // [n]
  TensorId block_table = kNoTensor;  // [s, b]
  TensorId sinks = kNoTensor;        // [H]?
  TensorId hot_from = kNoTensor;     // [s]?

  static constexpr std::string_view kName = "attention";
  static auto inputs(auto& op) {
    return std::tie(op.q, op.positions, op.sequences, op.block_table, op.sinks, op.hot_from);
  }
};

// latent_attention: -> y[n, H * value]. Attention of H heads over a cache whose row of a position is `rank` columns
// c, and n_rot rotated ones r that all heads share (arXiv:2405.04434). Head h has the keys [c k_up_h, r] and the
// values c v_up_h^T. It runs where the cache is, in the cheaper of two forms (graph/latent_form.h) for each sequence:
//   absorbed: [q_h k_up_h^T, q_rot] attends to the rows as they are, and v_up_h multiplies its mean of c;
//   expanded: the head's keys and values are made from the rows, and q_h attends to those.
// The tokens of a sequence are neighbours in the step, in the order of their positions.
enum class LatentForm : uint8_t { cheaper, absorbed, expanded };
struct LatentAttentionParams {
  int64_t n_head = 0, rank = 0, n_rot = 0;
  int64_t key = 0, value = 0;  // columns of a head's keys, with the rotated ones, and values
  float scale = 1.0f, softcap = 0.0f;
  int64_t window = 0;
  LatentForm form = LatentForm::cheaper;
};
struct LatentAttentionOp : LatentAttentionParams {
  TensorId q = kNoTensor;            // [n, H * key]
  TensorId k_up = kNoTensor;         // [H, rank, key - n_rot]
  TensorId v_up = kNoTensor;         // [H, value, rank]
  TensorId positions = kNoTensor;    // [n]
  TensorId sequences = kNoTensor;    // [n]
  TensorId block_table = kNoTensor;  // [s, b]

  static constexpr std::string_view kName = "latent_attention";
  static auto inputs(auto& op) {
    return std::tie(op.q, op.k_up, op.v_up, op.positions, op.sequences, op.block_table);
  }
};

// glu: -> y[n, m] = act(x Wgate^T) * (x Wup^T). Each product includes its bias.
struct GluOp {
  TensorId x = kNoTensor;          // [n, k]
  TensorId gate = kNoTensor;       // Wgate[m, k]
  TensorId up = kNoTensor;         // Wup[m, k]
  TensorId gate_bias = kNoTensor;  // [m]?
  TensorId up_bias = kNoTensor;    // [m]?
  Activation activation = Activation::silu;

  static constexpr std::string_view kName = "glu";
  static auto inputs(auto& op) { return std::tie(op.x, op.gate, op.up, op.gate_bias, op.up_bias); }
};

// moe_route: -> route[n, 2 * n_used] F32: ids of the selected experts (I32 bits) in the first n_used
// columns, by descending score, and their weights in the others.
// Scores are the softmax or the sigmoid of the logits. The n_used experts with the highest
// score + selection_bias are selected; if n_group > 1, only within the n_group_used best of n_group equal
// groups, ranked by the sum of their two best or by their best. Weights are the scores without the bias,
// divided by their sum if `normalize`, times `scale` and the expert's own scale.
enum class MoeScoring : uint8_t { softmax, sigmoid };
enum class MoeGroupRank : uint8_t { two_best, best };
struct MoeRouteParams {
  int64_t n_expert = 0, n_used = 0;
  MoeScoring scoring = MoeScoring::softmax;
  bool normalize = true;
  float scale = 1.0f;
  int64_t n_group = 1, n_group_used = 1;
  MoeGroupRank group_rank = MoeGroupRank::two_best;
};
struct MoeRouteOp : MoeRouteParams {
  TensorId logits = kNoTensor;          // [n, E]
  TensorId selection_bias = kNoTensor;  // [E]?
  TensorId expert_scale = kNoTensor;    // [E]?
  // For a device with only the experts from `first` on: their ids then count from 0, and the ids of others are -1.
  // n_here 0: all.
  int64_t first = 0, n_here = 0;

  int64_t id_here(int64_t expert) const {
    if (n_here == 0) return expert;
    return expert >= first && expert < first + n_here ? expert - first : -1;
  }

  static constexpr std::string_view kName = "moe_route";
  static auto inputs(auto& op) { return std::tie(op.logits, op.selection_bias, op.expert_scale); }
};

// moe_ffn: -> y[n, k] = residual + sum over the selected experts e of
// weight_e * Wdown_e (act(factor_e * Wgate_e x) * (Wup_e x)). Each product includes its bias. Only the selected
// experts' weights are read. A negative id in the route leaves its pair out. Without gates (relu2 only), of act(Wup_e x) instead of the product of both.
struct MoeFfnParams {
  int64_t n_expert = 0, n_used = 0;
  Activation activation = Activation::silu;
  bool joins_later = false;  // nothing before the end of the next layer needs the result
};
struct MoeFfnOp : MoeFfnParams {
  TensorId x = kNoTensor;      // [n, k]
  TensorId route = kNoTensor;  // [n, 2 * n_used]
  // Wgate[E, m, k]?; without up [E, 2m, k]: an expert's Wgate, then its Wup
  TensorId gate = kNoTensor;
  TensorId up = kNoTensor;         // Wup[E, m, k]?
  TensorId down = kNoTensor;       // Wdown[E, k, m]
  TensorId residual = kNoTensor;   // [n, k]?
  TensorId gate_bias = kNoTensor;     // [E, m]?
  TensorId up_bias = kNoTensor;       // [E, m]?
  TensorId down_bias = kNoTensor;     // [E, k]?
  TensorId gate_factors = kNoTensor;  // [E, 1]? without gate_bias

  static constexpr std::string_view kName = "moe_ffn";
  static auto inputs(auto& op) {
    return std::tie(op.x, op.route, op.gate, op.up, op.down, op.residual, op.gate_bias, op.up_bias,
                    op.down_bias, op.gate_factors);
  }
};

// cached_route: -> y[n, 2 * n_used], of a route the pairs whose experts a device has in slots (ExpertSlots), with the slots
// as ids; or, given what that returned, the other pairs, with the ids of their experts. The ids of pairs that are left out
// are -1. Runs on the host.
struct CachedRouteOp {
  TensorId route = kNoTensor;  // [n, 2 * n_used]
  TensorId cached =
      kNoTensor;           // [n, 2 * n_used]? the pairs to leave out; without, those to take are asked for
  TensorId x = kNoTensor;  // [n, c]? that the experts are applied to, to tell what the next layer may choose
  const Weight* down = nullptr;  // of the layer's experts

  static constexpr std::string_view kName = "cached_route";
  static auto inputs(auto& op) { return std::tie(op.route, op.cached, op.x); }
};

// add: -> a + factor * b. With a gate, b is also multiplied by sigmoid(gate) of its row.
struct AddOp {
  TensorId a = kNoTensor;     // [n, c]
  TensorId b = kNoTensor;     // [n, c]
  TensorId gate = kNoTensor;  // [n, 1]?
  float factor = 1.0f;

  static constexpr std::string_view kName = "add";
  static auto inputs(auto& op) { return std::tie(op.a, op.b, op.gate); }
};

// scale: -> factor * x.
struct ScaleOp {
  TensorId x = kNoTensor;  // [n, c]
  float factor = 1.0f;

  static constexpr std::string_view kName = "scale";
  static auto inputs(auto& op) { return std::tie(op.x); }
};

// softcap: -> cap * tanh(x / cap).
struct SoftcapOp {
  TensorId x = kNoTensor;  // [n, c]
  float cap = 1.0f;

  static constexpr std::string_view kName = "softcap";
  static auto inputs(auto& op) { return std::tie(op.x); }
};

// columns: -> y[n, c / period * width], of every run of `period` columns of x the `width` ones from `first`
// on.
struct ColumnsParams {
  int64_t period = 0, first = 0, width = 0;
};
struct ColumnsOp : ColumnsParams {
  TensorId x = kNoTensor;  // [n, c]

  static constexpr std::string_view kName = "columns";
  static auto inputs(auto& op) { return std::tie(op.x); }
};

// gate: -> y[n, c] = x * act(gate), element by element; with `product`, x * gate. relu is max(gate, 0): with x
// for its gate, x is squared where it is positive.
enum class GateKind : uint8_t { sigmoid, silu, gelu_tanh, product, relu };
struct GateOp {
  TensorId x = kNoTensor;     // [n, c]
  TensorId gate = kNoTensor;  // [n, c]
  GateKind kind = GateKind::sigmoid;

  static constexpr std::string_view kName = "gate";
  static auto inputs(auto& op) { return std::tie(op.x, op.gate); }
};

// The ops of a recurrent layer keep a state for each sequence, in slots of the node's layer. `states` has
// the slot to read and the slot to write for each sequence; they differ, so a step that fails leaves the
// state as it was. Only a later part of a step (exec/parts.h) may name the slot that an earlier one wrote twice.
// At position 0 of a sequence the state is zero and nothing is read. The tokens of a
// sequence are neighbours in the step, in the order of their positions.
//
// causal_conv: -> y[n, c] = act(sum over j of weight[c, j] * x[t - (kernel - 1) + j, c] + bias[c]), each channel
// on its own; the state has the kernel - 1 rows of x before the step.
enum class ConvActivation : uint8_t { none, silu };
struct CausalConvOp {
  ConvActivation activation = ConvActivation::silu;
  TensorId x = kNoTensor;          // [n, c]
  TensorId weight = kNoTensor;     // [c, kernel] F32
  TensorId bias = kNoTensor;       // [c] F32?
  TensorId positions = kNoTensor;  // [n]
  TensorId sequences = kNoTensor;  // [n]
  TensorId states = kNoTensor;     // [s, 2]

  static constexpr std::string_view kName = "causal_conv";
  static auto inputs(auto& op) {
    return std::tie(op.x, op.weight, op.bias, op.positions, op.sequences, op.states);
  }
};

// delta_rule: -> y[n, Hv * dv], the gated delta rule (arXiv:2412.06464). With q and k divided by their length
// and q also by sqrt(dk), each head updates its state S[dk, dv] for every token:
//   S = exp(decay * softplus(alpha + dt_bias)) * S
//   S = S + k (sigmoid(beta) * (v - k^T S))
//   y = q^T S
// Head h of v uses the head of q and k that the order says: grouped, h / (Hv / Hk); tiled, h % Hk.
enum class HeadOrder : uint8_t { grouped, tiled };
struct DeltaRuleParams {
  int64_t n_head_k = 0, n_head_v = 0, head_dim_k = 0, head_dim_v = 0;
  HeadOrder order = HeadOrder::grouped;

  int64_t n_qkv() const { return 2 * n_head_k * head_dim_k + n_head_v * head_dim_v; }
  int64_t key_head(int64_t h) const {
    return order == HeadOrder::grouped ? h / (n_head_v / n_head_k) : h % n_head_k;
  }
};
inline constexpr float kDeltaRuleEps = 1e-6f;  // added to the square of the lengths of q and k
struct DeltaRuleOp : DeltaRuleParams {
  TensorId qkv = kNoTensor;        // [n, Hk * dk + Hk * dk + Hv * dv]
  TensorId beta = kNoTensor;       // [n, Hv]
  TensorId alpha = kNoTensor;      // [n, Hv]
  TensorId decay = kNoTensor;      // [Hv] F32, negative
  TensorId dt_bias = kNoTensor;    // [Hv] F32
  TensorId positions = kNoTensor;  // [n]
  TensorId sequences = kNoTensor;  // [n]
  TensorId states = kNoTensor;     // [s, 2]

  static constexpr std::string_view kName = "delta_rule";
  static auto inputs(auto& op) {
    return std::tie(op.qkv, op.beta, op.alpha, op.decay, op.dt_bias, op.positions, op.sequences, op.states);
  }
};

// ssm_scan: -> y[n, H * d], the selective state space of Mamba-2 (arXiv:2405.21060). Each head updates its state
// S[N, d] for every token, with dt = softplus(dt_in + dt_bias):
//   S = exp(dt * decay) * S + b (dt * x)
//   y = c^T S + skip * x
// Head h uses the b[N] and c[N] of group h / (H / G).
struct SsmScanParams {
  int64_t n_head = 0, head_dim = 0, n_group = 0, n_state = 0;

  int64_t n_inner() const { return n_head * head_dim; }
  int64_t n_xbc() const { return n_inner() + 2 * n_group * n_state; }
};
struct SsmScanOp : SsmScanParams {
  TensorId xbc = kNoTensor;        // [n, H * d + G * N + G * N]
  TensorId dt = kNoTensor;         // [n, H]
  TensorId decay = kNoTensor;      // [H] F32, negative
  TensorId dt_bias = kNoTensor;    // [H] F32
  TensorId skip = kNoTensor;       // [H] F32
  TensorId positions = kNoTensor;  // [n]
  TensorId sequences = kNoTensor;  // [n]
  TensorId states = kNoTensor;     // [s, 2]

  static constexpr std::string_view kName = "ssm_scan";
  static auto inputs(auto& op) {
    return std::tie(op.xbc, op.dt, op.decay, op.dt_bias, op.skip, op.positions, op.sequences, op.states);
  }
};

// gather_rows: -> y[n_outputs, c], the rows of x listed in `outputs`.
struct GatherRowsOp {
  TensorId x = kNoTensor;        // [n, c]
  TensorId outputs = kNoTensor;  // [n_outputs]

  static constexpr std::string_view kName = "gather_rows";
  static auto inputs(auto& op) { return std::tie(op.x, op.outputs); }
};

// top_k: -> y[n, 2 * k] F32: the k columns with the largest values of each row (I32 bits) in the first k columns, by descending
// value, the lower column first where they are equal, and their values in the others. NaN comes first, so the first value tells
// whether all are numbers below infinity.
struct TopKOp {
  TensorId x = kNoTensor;  // [n, c]
  int64_t k = 0;           // at most kMaxTopK and c

  static constexpr std::string_view kName = "top_k";
  static auto inputs(auto& op) { return std::tie(op.x); }
};

// merge: -> y[n, H * hd_v], attention over both parts of a cache, or over two sets of positions. For each head it is the mean of the
// two results, weighted by e^logarithm (arXiv:2205.14135, merging of blocks).
struct MergeParams {
  int64_t n_head = 0, head_dim_v = 0;
};
struct MergeOp : MergeParams {
  TensorId a = kNoTensor;  // [n, H * hd_v + H]
  TensorId b = kNoTensor;  // [n, H * hd_v + H]

  static constexpr std::string_view kName = "merge";
  static auto inputs(auto& op) { return std::tie(op.a, op.b); }
};

// join: -> [a b] + residual, with the columns of b after those of a.
struct JoinOp {
  TensorId a = kNoTensor;         // [n, p]
  TensorId b = kNoTensor;         // [n, q]
  TensorId residual = kNoTensor;  // [n, p + q]?

  static constexpr std::string_view kName = "join";
  static auto inputs(auto& op) { return std::tie(op.a, op.b, op.residual); }
};

// collective: what several devices do together. Each has a node of its own with the same `number`, one behind the
// other; a pass adds them (exec/tensor_parallel.h), and a command of the schedule carries them out (src/collectives/), not
// a device.
//   all_reduce: -> y[n, c], the sum of x of all nodes. A node without x adds nothing.
//   all_gather: -> y[n, C], the columns of x of all nodes side by side. A node without x has none.
// A node without an output has no use for the result.
enum class CollectiveKind : uint8_t { all_reduce, all_gather };
struct CollectiveOp {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int32_t number = 0;
  TensorId x = kNoTensor;  // [n, c]?

  static constexpr std::string_view kName = "collective";
  static auto inputs(auto& op) { return std::tie(op.x); }
};

using Op = std::variant<EmbedOp, NormOp, LinearOp, HeadLinearOp, RopeOp, KvWriteOp, AttentionOp,
                        LatentAttentionOp, GluOp, MoeRouteOp, CachedRouteOp, MoeFfnOp, AddOp, ScaleOp,
                        SoftcapOp, GatherRowsOp, MergeOp, JoinOp, ColumnsOp, GateOp, CausalConvOp,
                        DeltaRuleOp, SsmScanOp, HadamardOp, TopKOp, CollectiveOp>;

// Returns "linear", "attention", ...
std::string_view op_name(const Op& op);

// Whether the op works on the cache of its layer, so that it runs on the device that holds the cache.
bool uses_cache(const Op& op);

// Calls f(id) for every tensor that the op reads, in order. For a non-const op, f may take a TensorId& and
// replace it.
template <class AnyOp, class F>
void for_each_input(AnyOp& op, F&& f) {
  const auto visit_present = [&](auto&... ids) { ((ids == kNoTensor ? void() : void(f(ids))), ...); };
  std::visit([&](auto& alternative) { std::apply(visit_present, alternative.inputs(alternative)); }, op);
}

template <class... Alternative>
constexpr size_t max_inputs(const std::variant<Alternative...>*) {
  return std::max({std::tuple_size_v<decltype(Alternative::inputs(std::declval<Alternative&>()))>...});
}

// The inputs of an op as a list: for (const TensorId id : inputs_of(op)).
class InputList {
 public:
  explicit InputList(const Op& op) {
    for_each_input(op, [this](TensorId id) { ids_[n_++] = id; });
  }
  const TensorId* begin() const { return ids_.data(); }
  const TensorId* end() const { return ids_.data() + n_; }

 private:
  std::array<TensorId, max_inputs(static_cast<const Op*>(nullptr))> ids_;
  size_t n_ = 0;
};
InputList inputs_of(const Op& op);

struct Node {
  Op op;
  TensorId output = kNoTensor;     // kNoTensor for kv_write, and where a collective's result is not used
  int layer = -1;                  // -1: before the first layer; n_layer: the output head
  std::optional<DeviceId> device;  // overrides the placement; none: the placement decides
};

}  // namespace tandem
