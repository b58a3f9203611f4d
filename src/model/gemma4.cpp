// Gemma 4 (text): as Gemma 3, but layers of full attention have heads of their own size and number. Their values
// are the keys before their norm if there is no attn_v, and only their fastest frequencies rotate: rope_freqs
// divides the others by so much that they stand still. Values are normalized without a weight, scores are not
// scaled, and every layer's result is. The 26B model has a mixture beside the dense unit of each layer. In E2B and
// E4B the last layers read the caches of earlier ones, and every layer has an embedding of its own.
#include <cmath>

#include "base/error.h"
#include "model/decoder_reader.h"

namespace tandem {
namespace {

class Gemma4Reader : public DecoderReader {
 public:
  explicit Gemma4Reader(const ModelSource& source)
      : DecoderReader(source, "gemma4", RopeStyle::half, LayerKinds::resized),
        n_layer_(static_cast<size_t>(hparams().n_layer)),
        width_(integer_or("embedding_length_per_layer_input", 0, 0, kMaxDimension)),
        windows_(windows(6, 512)),
        n_head_kv_(per_layer("attention.head_count_kv", n_layer_, hparams().n_head, 1, kMaxDimension)),
        n_ff_(per_layer("feed_forward_length", n_layer_, 0, 1, kMaxDimension)) {
    read_head_sizes();
    read_shared_caches();
    if (integer_or("expert_count", 0, 0, 65536) > 0) route_ = read_experts(true);
  }

  std::unique_ptr<Architecture> load() {
    DecoderSpec spec = begin();
    spec.embedding_scale = std::sqrt(static_cast<float>(hparams().n_embd));
    if (!spec.rope_factors.any)
      weights().vector("rope_freqs.weight", rope().n_rot / 2);  // says that it is missing
    spec.logit_softcap = number_or("final_logit_softcapping", 0.0f, 0.0f, 1e6f);
    if (width_ == 0 && weights().has("per_layer_token_embd.weight"))
      fail("embedding_length_per_layer_input", "0", "the width of per_layer_token_embd.weight in each layer");
    if (width_ > 0) spec.layer_inputs = layer_inputs();
    for (size_t i = 0; i < n_layer_; ++i) add_layer(spec, i);
    return make_decoder(std::move(spec));
  }

 private:
  bool slides(size_t layer) const { return windows_[layer] > 0; }
  int64_t head_dim(size_t layer) const { return slides(layer) ? head_dim_swa_ : hparams().head_dim_k; }

  void read_head_sizes() {
    const Hparams& h = hparams();
    require_equal("attention.value_length", h.head_dim_v, "attention.key_length", h.head_dim_k);
    head_dim_swa_ = integer_or("attention.key_length_swa", h.head_dim_k, 1, 65536);
    require_equal("attention.value_length_swa",
                  integer_or("attention.value_length_swa", head_dim_swa_, 1, 65536),
                  "attention.key_length_swa", head_dim_swa_);
    for (const int64_t n : n_head_kv_) {
      if (h.n_head % n == 0) continue;
      fail("attention.head_count_kv", std::to_string(n),
           "divisors of attention.head_count, " + std::to_string(h.n_head));
    }
    local_ = rope();
    local_.head_dim = head_dim_swa_;
    local_.n_rot = integer_or("rope.dimension_count_swa", head_dim_swa_, 2, head_dim_swa_);
    if (local_.n_rot % 2 != 0)
      fail("rope.dimension_count_swa", std::to_string(local_.n_rot), "an even number");
    local_.freq_base = number_or("rope.freq_base_swa", 10000.0f, 1.0f, 1e30f);
    local_.freq_scale = 1.0f;
    local_.ext_factor = 0.0f;
    local_.attn_factor = 1.0f;
  }

  void require_equal(const char* key, int64_t found, const char* other, int64_t needed) const {
    if (found != needed) fail(key, std::to_string(found), format("{}, {}", other, needed));
  }

  // The last layers read the cache of the last layer of their kind before them.
  void read_shared_caches() {
    constexpr const char* kKey = "attention.shared_kv_layers";
    const int64_t n_shared = integer_or(kKey, 0, 0, hparams().n_layer - 1);
    const size_t n_own = n_layer_ - static_cast<size_t>(n_shared);
    cache_of_.resize(n_layer_);
    for (size_t i = n_own; i < n_layer_; ++i) {
      size_t from = n_own;
      while (from > 0 && slides(from - 1) != slides(i)) --from;
      if (from == 0) {
        fail(kKey, std::to_string(n_shared),
             format("fewer: layer {} needs an earlier one {} a sliding window with a cache of its own", i,
                    slides(i) ? "with" : "without"));
      }
      cache_of_[i] = static_cast<int>(from - 1);
      n_head_kv_[i] = n_head_kv_[from - 1];
    }
  }

  void add_layer(DecoderSpec& spec, size_t i) {
    DecoderLayer& l = next_layer(spec);
    l.attn_norm = norm("attn_norm");
    l.attention = attention_of(i);
    l.attn_post_norm = norm("post_attention_norm");
    l.ffn_norm = norm("ffn_norm");
    l.ffn = gated_ffn(Activation::gelu_tanh, n_ff_[i]);
    if (!route_ && weights().has("ffn_gate_inp.weight"))
      fail("expert_count", "0", format("the number of experts of blk.{}.ffn_gate_inp.weight", i));
    if (route_) l.mixture = parallel_mixture();
    l.ffn_post_norm = norm("post_ffw_norm");
    if (width_ > 0) {
      l.input.gate = linear("inp_gate", width_, hparams().n_embd);
      l.input.out = linear("proj", hparams().n_embd, width_);
      l.input.post_norm = norm("post_norm");
    }
    l.output_scale = output_scale();
  }

  // The mean of both parts times the square root of two. A projection divided by the square root of n_embd before its
  // norm is one with a larger epsilon.
  LayerInputs layer_inputs() {
    const Hparams& h = hparams();
    const int64_t n_cols = h.n_layer * width_;
    const float half = 1.0f / std::sqrt(2.0f);
    LayerInputs in;
    in.token_embd = weights().matrix("per_layer_token_embd.weight", h.n_vocab, n_cols);
    in.embedding_scale = half * std::sqrt(static_cast<float>(width_));
    in.proj = linear("per_layer_model_proj", n_cols, h.n_embd);
    in.norm = weights().scaled_vector("per_layer_proj_norm.weight", width_, half);
    in.norm_eps = h.norm_eps * static_cast<float>(h.n_embd);
    return in;
  }

  AttentionLayer attention_of(size_t i) {
    const Hparams& h = hparams();
    const int64_t dim = head_dim(i), n_q = h.n_head * dim, n_kv = n_head_kv_[i] * dim;
    AttentionLayer a;
    a.q = linear("attn_q", n_q, h.n_embd);
    a.q_norm = weights().vector("attn_q_norm.weight", dim);
    a.cache_of = cache_of_[i];
    if (!a.cache_of) {
      a.k = linear("attn_k", n_kv, h.n_embd);
      if (slides(i) || weights().has("attn_v.weight")) a.v = linear("attn_v", n_kv, h.n_embd);
      a.k_norm = weights().vector("attn_k_norm.weight", dim);
      a.v_norm = weights().ones(dim);
    }
    a.out = linear("attn_output", h.n_embd, n_q);
    a.rope = slides(i) ? local_ : rope();
    a.has_rope_factors = !slides(i);
    a.params = {h.n_head, n_head_kv_[i], dim, dim, 1.0f};
    a.params.window = windows_[i];
    return a;
  }

  // The router reads the layer's input, normalized, times a vector over the square root of the width.
  ParallelMixture parallel_mixture() {
    const Hparams& h = hparams();
    ParallelMixture m;
    const float factor = 1.0f / std::sqrt(static_cast<float>(h.n_embd));
    m.router_norm = weights().scaled_vector("ffn_gate_inp.scale", h.n_embd, factor);
    m.norm = norm("pre_ffw_norm_2");
    m.dense_post_norm = norm("post_ffw_norm_1");
    m.post_norm = norm("post_ffw_norm_2");
    m.experts = mixture(Activation::gelu_tanh, *route_);  // the factors of ffn_down_exps are part of the model
    return m;
  }

  // 1 if the file has none.
  float output_scale() {
    const Weight* w = weights().optional_vector("layer_output_scale.weight", 1);
    return w ? *reinterpret_cast<const float*>(w->data) : 1.0f;
  }

  size_t n_layer_;
  int64_t width_;                             // of each layer's own embeddings; 0: none
  std::vector<int64_t> windows_;              // 0: full attention
  std::vector<int64_t> n_head_kv_, n_ff_;     // of each layer
  std::vector<std::optional<int>> cache_of_;  // AttentionLayer
  int64_t head_dim_swa_ = 0;                  // of layers with a window
  RopeParams local_;                          // likewise
  std::optional<MoeRouteParams> route_;
};

}  // namespace

std::unique_ptr<Architecture> load_gemma4(const ModelSource& source) {
  return Gemma4Reader(source).load();
}

}  // namespace tandem
