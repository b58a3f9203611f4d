// GraphBuilder: builds the graph of an architecture. Each method appends one op and returns the id of its
// result. Methods check shapes with TANDEM_CHECK: the loader has validated the weights against the
// hyperparameters by then, so a mismatch is a bug.
#pragma once

#include <string>
#include <unordered_map>

#include "graph/graph.h"

namespace tandem {

// Optional weights of moe_ffn.
struct ExpertBiases {
  const Weight *gate = nullptr, *up = nullptr;  // [n_expert, m]
  const Weight* down = nullptr;                 // [n_expert, k]
  const Weight* gate_factors = nullptr;         // [n_expert, 1], of the gates' products; without `gate`
};

// Those of ssm_scan, each [n_head].
struct SsmScanWeights {
  const Weight *decay = nullptr, *dt_bias = nullptr, *skip = nullptr;
};

class GraphBuilder {
 public:
  explicit GraphBuilder(const ShapeClass& shape);

  // Sets the layer of the following nodes: -1 before the first layer, n_layer for the output head.
  void set_layer(int layer) { layer_ = layer; }
  int layer() const { return layer_; }

  TensorId input(Input which);
  TensorId hidden_input(int64_t n_embd);  // Input::hidden
  // Returns kNoTensor for nullptr, an optional weight that this model lacks.
  TensorId weight(const Weight* weight);

  // Factors of matrices (Weight) are those of what their products return: linear and glu then have more ops. Experts' come as
  // gate_factors and expert_scale. Throws Error(bad_file) for other weights with factors, and for a glu whose activation is no
  // GateKind.
  TensorId embed(const Weight* table, float scale = 1.0f);
  TensorId norm(TensorId x, const NormParams& params, const Weight* weight, const Weight* bias = nullptr);
  TensorId linear(TensorId x, const Weight* w, const Weight* bias = nullptr, TensorId residual = kNoTensor);
  TensorId head_linear(TensorId x, const Weight* w);  // w has a matrix for each head
  TensorId rope(TensorId x, const RopeParams& params, const Weight* freq_factors = nullptr,
                Input positions = Input::positions);
  TensorId hadamard(TensorId x, int64_t width);  // width 0: x as it is
  void kv_write(TensorId k, TensorId v);         // v kNoTensor: values are in the keys
  TensorId attention(TensorId q, const AttentionParams& params, const Weight* sinks = nullptr,
                     Input positions = Input::positions);
  TensorId latent_attention(TensorId q, const LatentAttentionParams& params, const Weight* k_up,
                            const Weight* v_up);
  TensorId merge(TensorId a, TensorId b, const MergeParams& params);
  TensorId glu(TensorId x, Activation activation, const Weight* gate, const Weight* up,
               const Weight* gate_bias = nullptr, const Weight* up_bias = nullptr);
  TensorId moe_route(TensorId logits, const MoeRouteParams& params, const Weight* selection_bias = nullptr,
                     const Weight* expert_scale = nullptr);
  // gate nullptr, of relu2 only: experts of one product less. up nullptr: gate has the rows of both.
  TensorId moe_ffn(TensorId x, TensorId route, const MoeFfnParams& params, const Weight* gate,
                   const Weight* up, const Weight* down, TensorId residual = kNoTensor,
                   const ExpertBiases& biases = {});
  TensorId add(TensorId a, TensorId b, float factor = 1.0f, TensorId gate = kNoTensor);
  TensorId scale(TensorId x, float factor);
  TensorId softcap(TensorId x, float cap);
  TensorId top_k(TensorId x, int64_t k);
  TensorId join(TensorId a, TensorId b, TensorId residual = kNoTensor);
  TensorId columns(TensorId x, const ColumnsParams& params);
  TensorId gate(TensorId x, TensorId gate, GateKind kind);
  TensorId causal_conv(TensorId x, const Weight* weight, const Weight* bias = nullptr,
                       ConvActivation activation = ConvActivation::silu);
  TensorId delta_rule(TensorId qkv, TensorId beta, TensorId alpha, const DeltaRuleParams& params,
                      const Weight* decay, const Weight* dt_bias);
  TensorId ssm_scan(TensorId xbc, TensorId dt, const SsmScanParams& params, const SsmScanWeights& weights);
  TensorId gather_outputs(TensorId x);  // selects the rows whose logits are requested

  // Finishes the graph. `logits` is [max_outputs, n_vocab]; `hidden`, if the step returns it, [max_tokens, n_embd]. Adds top_k
  // of the logits if the shape asks for it.
  Graph finish(TensorId logits, TensorId hidden = kNoTensor);

 private:
  TensorId matrix(const Weight* weight);  // whose factors the caller deals with
  TensorId append(Op op, int64_t n_cols, Extent extent, TensorId in_place_of = kNoTensor);
  const Tensor& tensor(TensorId id) const { return graph_.tensor(id); }

  Graph graph_;
  int layer_ = -1;
  std::unordered_map<const Weight*, TensorId> weights_;
};

}  // namespace tandem
