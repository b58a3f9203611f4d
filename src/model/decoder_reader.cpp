#include "model/decoder_reader.h"

#include <cmath>

#include "base/error.h"

namespace tandem {
namespace {

constexpr std::string_view kMtpLayers = "nextn_predict_layers";

}  // namespace

DecoderReader::DecoderReader(const ModelSource& source, const std::string& architecture, RopeStyle style,
                             LayerKinds kinds)
    : HparamReader(source.file.metadata(), architecture),
      source_(source),
      w_(source.weights),
      hparams_(transformer("attention.layer_norm_rms_epsilon", kinds)),
      rope_(HparamReader::rope(hparams_, style, source.rope)),
      has_part_(source.part == ModelPart::main),
      n_ff_dense_(hparams_.n_ff) {
  check_self_extend(source.rope.self_extend);
  hparams_.self_extend = source.rope.self_extend;
}

DecoderSpec DecoderReader::begin(const std::string& output_norm) {
  DecoderSpec spec;
  w_.set_layer(-1);
  spec.token_embd = w_.matrix("token_embd.weight", WeightBinder::kAnySize, hparams_.n_embd);
  hparams_.n_vocab = spec.token_embd->n_rows;
  if (source_.part == ModelPart::mtp) begin_mtp(spec);
  w_.set_layer(-1);
  if (!spec.output_norm) spec.output_norm = norm(output_norm);
  if (!spec.output) spec.output = w_.optional_matrix("output.weight", hparams_.n_vocab, hparams_.n_embd);
  if (!spec.output) spec.output = spec.token_embd;  // tied
  const int64_t n_pairs = rope_.n_rot / 2;
  spec.rope_factors.any = w_.optional_vector("rope_freqs.weight", n_pairs);
  spec.rope_factors.up_to_orig = w_.optional_vector("rope_factors_short.weight", n_pairs);
  spec.rope_factors.beyond = w_.optional_vector("rope_factors_long.weight", n_pairs);
  spec.rope_factors.n_ctx_orig = rope_.n_ctx_orig;
  spec.hparams = hparams_;
  return spec;
}

// An MTP layer brings what joins it to the model, a norm, and in some files a copy of the embedding and of the output head.
void DecoderReader::begin_mtp(DecoderSpec& spec) {
  const int64_t n_embd = hparams_.n_embd;
  if (!has_part_) {
    throw_error(ErrorCode::usage, "{}: {}", source_.file.path(),
                source_.file.metadata().has(key(kMtpLayers))
                    ? format("guessing by the MTP layers of {} is not supported", hparams_.architecture)
                    : "the file has no MTP layers, which guess tokens");
  }
  first_layer_ = static_cast<int>(hparams_.n_layer);
  hparams_.n_layer = 1;
  w_.set_layer(-1, first_layer_);
  const Weight* own = w_.optional_matrix("nextn.embed_tokens.weight", hparams_.n_vocab, n_embd);
  if (own) spec.token_embd = own;
  const bool is_named_apart = w_.has("layer_output_norm.weight");  // bailingmoe2
  spec.output_norm = norm(is_named_apart ? "layer_output_norm" : "nextn.shared_head_norm");
  spec.output = w_.optional_matrix("nextn.shared_head_head.weight", hparams_.n_vocab, n_embd);
  w_.set_layer(0, first_layer_);
  spec.join_hidden = {norm("nextn.enorm"), norm("nextn.hnorm"),
                      w_.matrix("nextn.eh_proj.weight", n_embd, 2 * n_embd)};
}

DecoderLayer& DecoderReader::next_layer(DecoderSpec& spec) {
  w_.set_layer(n_layers_read_, first_layer_ + n_layers_read_);
  ++n_layers_read_;
  return spec.layers.emplace_back();
}

const Weight* DecoderReader::norm(const std::string& name) {
  return w_.vector(name + ".weight", hparams_.n_embd);
}

const Weight* DecoderReader::head_norm(const std::string& name) {
  return w_.vector(name + ".weight", hparams_.head_dim_k);
}

const Weight* DecoderReader::optional_head_norm(const std::string& name) {
  return w_.optional_vector(name + ".weight", hparams_.head_dim_k);
}

const Weight* DecoderReader::row_norm(const std::string& name, int64_t n_head) {
  return w_.vector(name + ".weight", n_head * hparams_.head_dim_k);
}

const Weight* DecoderReader::per_head(const std::string& name) {
  return w_.vector(name + ".weight", hparams_.n_head);
}

Linear DecoderReader::linear(const std::string& name, int64_t n_rows, int64_t n_cols) {
  const Weight* matrix = w_.matrix(name + ".weight", n_rows, n_cols);
  return {matrix, w_.optional_bias(name + ".bias", *matrix)};
}

AttentionLayer DecoderReader::attention() {
  const Hparams& h = hparams_;
  const int64_t n_q = h.n_head * h.head_dim_k, n_k = h.n_head_kv * h.head_dim_k,
                n_v = h.n_head_kv * h.head_dim_v;
  AttentionLayer a;
  if (w_.has("attn_qkv.weight")) {
    const WeightBinder::Rows all{n_q + n_k + n_v, 0, n_q};
    const WeightBinder::Rows keys{all.n_total, n_q, n_k}, values{all.n_total, n_q + n_k, n_v};
    const auto rows_of = [&](const WeightBinder::Rows& rows) {
      const Weight* matrix = w_.rows_of("attn_qkv.weight", rows, h.n_embd);
      return Linear{matrix, w_.optional_rows_of("attn_qkv.bias", rows, *matrix)};
    };
    a.q = rows_of(all);
    a.k = rows_of(keys);
    a.v = rows_of(values);
  } else {
    a.q = linear("attn_q", n_q, h.n_embd);
    a.k = linear("attn_k", n_k, h.n_embd);
    a.v = linear("attn_v", n_v, h.n_embd);
  }
  a.out = linear("attn_output", h.n_embd, h.n_head * h.head_dim_v);
  a.rope = rope_;
  a.params = {h.n_head, h.n_head_kv, h.head_dim_k, h.head_dim_v,
              1.0f / std::sqrt(static_cast<float>(h.head_dim_k))};
  return a;
}

AttentionLayer DecoderReader::latent_attention(const LatentSizes& s) {
  const Hparams& h = hparams_;
  if (!w_.has("attn_k_b.weight") && w_.has("attn_kv_b.weight")) {
    fail("attention.kv_lora_rank", "layers with attn_kv_b, as in older files",
         "attn_k_b and attn_v_b: convert the model again");
  }
  AttentionLayer a;
  LatentAttention& latent = a.latent;
  if (s.q_rank > 0) {
    latent.q_down = linear("attn_q_a", s.q_rank, h.n_embd);
    latent.q_norm = w_.vector("attn_q_a_norm.weight", s.q_rank);
    a.q = linear("attn_q_b", h.n_head * s.key, s.q_rank);
  } else {
    a.q = linear("attn_q", h.n_head * s.key, h.n_embd);
  }
  const WeightBinder::Rows down{s.rank + rope_.n_rot, 0, s.rank}, rotated{down.n_total, s.rank, rope_.n_rot};
  latent.down.w = w_.rows_of("attn_kv_a_mqa.weight", down, h.n_embd);
  latent.rotated.w = w_.rows_of("attn_kv_a_mqa.weight", rotated, h.n_embd);
  latent.norm = w_.vector("attn_kv_a_norm.weight", s.rank);
  latent.k_up = w_.experts("attn_k_b.weight", h.n_head, s.rank, s.key - rope_.n_rot);
  latent.v_up = w_.experts("attn_v_b.weight", h.n_head, s.value, s.rank);
  for (const Weight* up : {latent.k_up, latent.v_up}) {
    if (!up->factors.empty()) w_.refuse(*up, "scales of the heads' matrices are");
  }
  a.out = linear("attn_output", h.n_embd, h.n_head * s.value);
  a.rope = rope_;
  a.params = {h.n_head, 1, h.head_dim_k, h.head_dim_v, s.scale};
  a.params.values_in_keys = true;
  return a;
}

LatentSizes DecoderReader::read_latent_sizes() {
  const Hparams& h = hparams_;
  LatentSizes s;
  s.rank = integer("attention.kv_lora_rank", 1, kMaxDimension);
  s.q_rank = integer_or("attention.q_lora_rank", 0, 1, kMaxDimension);
  s.key = integer("attention.key_length_mla", 1, 65536);
  s.value = integer("attention.value_length_mla", 1, 65536);
  if (h.n_head_kv != 1)
    fail("attention.head_count_kv", std::to_string(h.n_head_kv), "1: all heads share a latent row");
  if (h.head_dim_k != s.rank + rope_.n_rot) {
    fail("attention.key_length", std::to_string(h.head_dim_k),
         format("attention.kv_lora_rank + rope.dimension_count, {} + {}", s.rank, rope_.n_rot));
  }
  if (h.head_dim_v != s.rank) {
    fail("attention.value_length", std::to_string(h.head_dim_v),
         format("attention.kv_lora_rank, {}", s.rank));
  }
  if (s.key <= rope_.n_rot) {
    fail("attention.key_length_mla", std::to_string(s.key),
         format("more than rope.dimension_count, {}", rope_.n_rot));
  }
  // With YaRN, cos and sin stay as they are and scores are multiplied by the square of 1 + 0.1 m ln(factor)
  // instead. Files hold 0.1 m, where HparamReader::rope() expects m.
  const float multiplier = number_or("rope.scaling.yarn_log_multiplier", 0.0f, 0.0f, 1e3f);
  float magnitude = 1.0f;
  if (multiplier > 0.0f && rope_.ext_factor != 0.0f && rope_.freq_scale < 1.0f) {
    const float log_factor = -std::log(rope_.freq_scale);
    rope_.attn_factor *= (1.0f + 0.1f * multiplier * log_factor) / (1.0f + 0.1f * log_factor);
    magnitude = 1.0f + multiplier * log_factor;
  }
  s.scale = magnitude * magnitude / std::sqrt(static_cast<float>(s.key));
  return s;
}

AttentionLayer DecoderReader::gated_attention() {
  const Hparams& h = hparams_;
  AttentionLayer a;
  a.q = linear("attn_q", h.n_head * (h.head_dim_k + h.head_dim_v), h.n_embd);
  a.k = linear("attn_k", h.n_head_kv * h.head_dim_k, h.n_embd);
  a.v = linear("attn_v", h.n_head_kv * h.head_dim_v, h.n_embd);
  a.out = linear("attn_output", h.n_embd, h.n_head * h.head_dim_v);
  a.gated = true;
  a.rope = rope_;
  a.params = {h.n_head, h.n_head_kv, h.head_dim_k, h.head_dim_v,
              1.0f / std::sqrt(static_cast<float>(h.head_dim_k))};
  return a;
}

void DecoderReader::choose_part() {
  skip_mtp_layers();
  has_part_ |= n_mtp_ > 0;
}

void DecoderReader::skip_mtp_layers() {
  n_mtp_ = integer_or(kMtpLayers, 0, 0, hparams_.n_layer - 1);
  hparams_.n_layer -= n_mtp_;
}

float DecoderReader::scale_or(std::string_view suffix, float fallback) const {
  return number_or(suffix, fallback, 1e-9f, 1e9f);
}

float DecoderReader::read_granite_scales(DecoderSpec& spec) const {
  spec.embedding_scale = scale_or("embedding_scale", 1.0f);
  spec.residual_scale = scale_or("residual_scale", 1.0f);
  spec.logit_scale = 1.0f / scale_or("logit_scale", 1.0f);
  return scale_or("attention.scale", 1.0f / std::sqrt(static_cast<float>(hparams_.head_dim_k)));
}

std::vector<int64_t> DecoderReader::windows(int64_t period, int64_t fallback) const {
  const int64_t window = integer_or("attention.sliding_window", fallback, fallback == 0 ? 0 : 1, INT32_MAX);
  const std::vector<bool> sliding = sliding_layers(period);
  std::vector<int64_t> result;
  for (bool slides : sliding) result.push_back(slides ? window : 0);
  return result;
}

std::vector<bool> DecoderReader::layers_with(std::string_view suffix) const {
  if (is_array(suffix)) return layer_flags(suffix);
  return std::vector<bool>(static_cast<size_t>(hparams_.n_layer), true);
}

// One for each layer; an array may have the MTP layers or not.
std::vector<bool> DecoderReader::layer_flags(std::string_view suffix) const {
  const auto n = static_cast<size_t>(hparams_.n_layer), n_in_file = n + static_cast<size_t>(n_mtp_);
  const bool has_all = source_.file.metadata().find(key(suffix))->size() == n_in_file;
  std::vector<bool> result = flags(suffix, has_all ? n_in_file : n);
  result.resize(n);
  return result;
}

std::vector<bool> DecoderReader::sliding_layers(int64_t period) const {
  const std::string_view suffix = "attention.sliding_window_pattern";
  if (is_array(suffix)) return layer_flags(suffix);
  period = integer_or(suffix, period, 0, INT32_MAX);
  std::vector<bool> result;
  for (int64_t i = 1; i <= hparams_.n_layer; ++i) result.push_back(period == 0 || i % period != 0);
  return result;
}

}  // namespace tandem
