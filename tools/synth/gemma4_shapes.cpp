#include "tools/synth/gemma4_shapes.h"

#include <algorithm>

#include "base/error.h"
#include "tools/synth/tensor_list.h"

namespace tandem::tools {
namespace {

bool is_full(const Shape& s, int layer) {
  return (layer + 1) % s.gemma4.period == 0;
}
int head_dim_of(const Shape& s, int layer) {
  return is_full(s, layer) ? s.gemma4.head_dim_full : s.head_dim;
}
int n_head_kv_of(const Shape& s, int layer) {
  return is_full(s, layer) ? s.gemma4.n_head_kv_full : s.n_head_kv;
}
// A shape with fewer layers than the model may have none of each kind before the shared ones.
int n_shared_of(const Shape& s) {
  return s.n_layer - s.gemma4.n_shared >= s.gemma4.period ? s.gemma4.n_shared : 0;
}
bool is_shared(const Shape& s, int layer) {
  return layer >= s.n_layer - n_shared_of(s);
}
int64_t n_ff_of(const Shape& s, int layer) {
  return int64_t{s.n_ff} * (is_shared(s, layer) ? s.gemma4.shared_width : 1);
}

void add_attention(const Shape& s, int layer, const std::string& block, TensorList& list) {
  const int64_t dim = head_dim_of(s, layer), n_q = s.n_head * dim, n_kv = n_head_kv_of(s, layer) * dim;
  list.vector(block + "attn_norm.weight", TensorRole::norm, s.n_embd);
  list.matrix(block + "attn_q.weight", s.n_embd, n_q);
  list.vector(block + "attn_q_norm.weight", TensorRole::norm, dim);
  if (!is_shared(s, layer)) {
    list.matrix(block + "attn_k.weight", s.n_embd, n_kv);
    list.vector(block + "attn_k_norm.weight", TensorRole::norm, dim);
    if (!is_full(s, layer) || !s.gemma4.values_are_keys) list.matrix(block + "attn_v.weight", s.n_embd, n_kv);
  }
  list.matrix(block + "attn_output.weight", n_q, s.n_embd);
  list.vector(block + "post_attention_norm.weight", TensorRole::norm, s.n_embd);
}

void add_gemma4_feed_forward(const Shape& s, int layer, const std::string& block, TensorList& list) {
  const int64_t n_ff = n_ff_of(s, layer);
  list.vector(block + "ffn_norm.weight", TensorRole::norm, s.n_embd);
  list.matrix(block + "ffn_gate.weight", s.n_embd, n_ff);
  list.matrix(block + "ffn_up.weight", s.n_embd, n_ff);
  list.matrix(block + "ffn_down.weight", n_ff, s.n_embd);
  if (s.n_expert > 0) {
    list.router(block + "ffn_gate_inp.weight", s.n_embd, s.n_expert);
    list.vector(block + "ffn_gate_inp.scale", TensorRole::norm, s.n_embd);
    for (const char* norm : {"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"}) {
      list.vector(block + norm + ".weight", TensorRole::norm, s.n_embd);
    }
    list.matrix(block + "ffn_gate_up_exps.weight", s.n_embd, int64_t{2} * s.n_ff_expert, s.n_expert);
    list.matrix(block + "ffn_down_exps.weight", s.n_ff_expert, s.n_embd, s.n_expert);
    list.vector(block + "ffn_down_exps.scale", TensorRole::norm, s.n_expert);
  }
  list.vector(block + "post_ffw_norm.weight", TensorRole::norm, s.n_embd);
}

void add_input(const Shape& s, const std::string& block, TensorList& list) {
  list.matrix(block + "inp_gate.weight", s.n_embd, s.gemma4.n_input);
  list.matrix(block + "proj.weight", s.gemma4.n_input, s.n_embd);
  list.vector(block + "post_norm.weight", TensorRole::norm, s.n_embd);
}

}  // namespace

std::vector<ShapeTensor> gemma4_tensors_of(const Shape& s) {
  TensorList list;
  list.matrix("token_embd.weight", s.n_embd, s.n_vocab);
  if (s.gemma4.n_input > 0) {
    const int64_t n_inputs = int64_t{s.n_layer} * s.gemma4.n_input;
    list.matrix("per_layer_token_embd.weight", n_inputs, s.n_vocab);
    list.matrix("per_layer_model_proj.weight", s.n_embd, n_inputs);
    list.vector("per_layer_proj_norm.weight", TensorRole::norm, s.gemma4.n_input);
  }
  list.vector("rope_freqs.weight", TensorRole::rope_factors, s.gemma4.head_dim_full / 2);
  for (int i = 0; i < s.n_layer; ++i) {
    const std::string block = format("blk.{}.", i);
    add_attention(s, i, block, list);
    add_gemma4_feed_forward(s, i, block, list);
    if (s.gemma4.n_input > 0) add_input(s, block, list);
    list.vector(block + "layer_output_scale.weight", TensorRole::norm, 1);
  }
  list.vector("output_norm.weight", TensorRole::norm, s.n_embd);
  return list.take();
}

void add_gemma4_hyperparameters(const Shape& s, Metadata& metadata) {
  const auto set = [&](const char* key, Value value) {
    metadata.set("gemma4." + std::string(key), std::move(value));
  };
  const auto set_count = [&](const char* key, int n) { set(key, Value(static_cast<uint32_t>(n))); };
  std::vector<int32_t> n_head_kv, n_ff;
  std::vector<bool> slides;
  for (int i = 0; i < s.n_layer; ++i) {
    n_head_kv.push_back(n_head_kv_of(s, i));
    n_ff.push_back(static_cast<int32_t>(n_ff_of(s, i)));
    slides.push_back(!is_full(s, i));
  }
  set("attention.head_count_kv", Value(n_head_kv));
  if (s.gemma4.shared_width > 1) set("feed_forward_length", Value(n_ff));
  set("attention.sliding_window_pattern", Value(slides));
  for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    set_count(key, s.gemma4.head_dim_full);
    set_count((std::string(key) + "_swa").c_str(), s.head_dim);
  }
  set("rope.freq_base_swa", Value(10000.0f));
  set("final_logit_softcapping", Value(30.0f));
  set_count("attention.shared_kv_layers", n_shared_of(s));
  set_count("embedding_length_per_layer_input", s.gemma4.n_input);
}

std::vector<float> gemma4_rope_factors(const Shape& s) {
  std::vector<float> factors(static_cast<size_t>(s.gemma4.head_dim_full) / 2, 1e30f);
  std::fill_n(factors.begin(), factors.size() / 4, 1.0f);
  return factors;
}

}  // namespace tandem::tools
