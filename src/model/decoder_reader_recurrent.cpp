// The layers whose state has a fixed size: delta rule, Mamba-2, short convolutions.
#include "base/error.h"
#include "model/decoder_reader.h"

namespace tandem {
namespace {

constexpr int64_t kMaxConvKernel = 16, kMaxHeads = 4096, kMaxHeadDim = 1024;

}  // namespace

int64_t DecoderReader::inner_head_dim(int64_t n_head, int64_t n_group) const {
  const int64_t n_inner = integer("ssm.inner_size", 1, kMaxHeads * kMaxHeadDim);
  if (n_head % n_group != 0) {
    fail("ssm.group_count", std::to_string(n_group),
         "a divisor of ssm.time_step_rank, " + std::to_string(n_head));
  }
  if (n_inner % n_head != 0) {
    fail("ssm.inner_size", std::to_string(n_inner),
         "a multiple of ssm.time_step_rank, " + std::to_string(n_head));
  }
  if (n_inner / n_head > kMaxHeadDim) {
    fail("ssm.inner_size", std::to_string(n_inner),
         format("at most {} for each of the {} heads", kMaxHeadDim, n_head));
  }
  return n_inner / n_head;
}

std::vector<bool> DecoderReader::read_delta_net() {
  DeltaRuleParams& p = delta_rule_;
  n_conv_ = integer("ssm.conv_kernel", 2, kMaxConvKernel);
  p.head_dim_k = integer("ssm.state_size", 1, kMaxHeadDim);
  p.n_head_v = integer("ssm.time_step_rank", 1, kMaxHeads);
  p.n_head_k = integer("ssm.group_count", 1, kMaxHeads);
  p.head_dim_v = inner_head_dim(p.n_head_v, p.n_head_k);
  if (source_.part == ModelPart::mtp) return {false};
  const std::string_view suffix = "attention.recurrent_layers";
  if (is_array(suffix)) return layer_flags(suffix);
  const int64_t interval = integer_or("full_attention_interval", 4, 1, INT32_MAX);
  std::vector<bool> recurrent;
  for (int64_t i = 1; i <= hparams_.n_layer; ++i) recurrent.push_back(i % interval != 0);
  return recurrent;
}

DeltaNetLayer DecoderReader::delta_net(HeadOrder order) {
  const int64_t n_embd = hparams_.n_embd;
  DeltaNetLayer d;
  d.params = delta_rule_;
  d.params.order = order;
  const int64_t n_qkv = d.params.n_qkv(), n_head = d.params.n_head_v, n_v = n_head * d.params.head_dim_v;
  if (w_.has("ssm_in.weight")) {
    d.qkvz = linear("ssm_in", n_qkv + n_v, n_embd);
  } else {
    d.qkv = linear("attn_qkv", n_qkv, n_embd);
    d.z = linear("attn_gate", n_v, n_embd);
  }
  if (w_.has("ssm_ba.weight")) {
    d.beta_alpha = linear("ssm_ba", 2 * n_head, n_embd);
  } else {
    d.beta = linear("ssm_beta", n_head, n_embd);
    d.alpha = linear("ssm_alpha", n_head, n_embd);
  }
  d.conv = w_.vectors("ssm_conv1d.weight", n_qkv, n_conv_);
  d.decay = w_.vector("ssm_a", n_head);
  d.dt_bias = w_.vector("ssm_dt.bias", n_head);
  d.norm = w_.vector("ssm_norm.weight", d.params.head_dim_v);
  d.out = linear("ssm_out", n_embd, n_v);
  return d;
}

void DecoderReader::read_short_conv() {
  n_conv_ = integer("shortconv.l_cache", 2, kMaxConvKernel);
}

ShortConvLayer DecoderReader::short_conv() {
  const int64_t n = hparams_.n_embd;
  const auto third = [&](int64_t i) {
    return Linear{w_.rows_of("shortconv.in_proj.weight", {3 * n, i * n, n}, n), nullptr};
  };
  ShortConvLayer s;
  s.b = third(0);
  s.c = third(1);
  s.x = third(2);
  s.conv = w_.vectors("shortconv.conv.weight", n, n_conv_);
  s.out = linear("shortconv.out_proj", n, n);
  return s;
}

void DecoderReader::read_ssm() {
  SsmScanParams& p = ssm_;
  n_conv_ = integer("ssm.conv_kernel", 2, kMaxConvKernel);
  p.n_state = integer("ssm.state_size", 1, kMaxHeadDim);
  p.n_head = integer("ssm.time_step_rank", 1, kMaxHeads);
  p.n_group = integer("ssm.group_count", 1, kMaxHeads);
  p.head_dim = inner_head_dim(p.n_head, p.n_group);
}

Mamba2Layer DecoderReader::mamba2() {
  const int64_t n_embd = hparams_.n_embd, n_inner = ssm_.n_inner(), n_xbc = ssm_.n_xbc(),
                n_head = ssm_.n_head;
  const auto rows = [&](int64_t first, int64_t n) {
    return Linear{w_.rows_of("ssm_in.weight", {n_inner + n_xbc + n_head, first, n}, n_embd), nullptr};
  };
  Mamba2Layer m;
  m.params = ssm_;
  m.z = rows(0, n_inner);
  m.xbc = rows(n_inner, n_xbc);
  m.dt = rows(n_inner + n_xbc, n_head);
  m.conv = w_.vectors("ssm_conv1d.weight", n_xbc, n_conv_);
  m.conv_bias = w_.optional_vector("ssm_conv1d.bias", n_xbc);
  m.decay = w_.vector_or_column("ssm_a", n_head);
  m.dt_bias = w_.vector("ssm_dt.bias", n_head);
  m.skip = w_.vector_or_column("ssm_d", n_head);
  m.norm = w_.vectors("ssm_norm.weight", ssm_.n_group, n_inner / ssm_.n_group);
  m.out = linear("ssm_out", n_embd, n_inner);
  return m;
}

}  // namespace tandem
