#include "support/recurrent_model.h"

#include <cmath>
#include <cstring>

namespace tandem::test {
namespace {

constexpr int64_t kEmbd = 64, kLayers = 4, kHeads = 8, kHeadsKv = 4, kHeadDim = 8, kFf = 96, kKernel = 4;
constexpr int64_t kKeyHeads = 8, kValueHeads = 16, kKeyDim = 16, kValueDim = 8;
constexpr int64_t kSsmHeads = 16, kSsmDim = 8, kSsmState = 16;

bool has_delta_net(RecurrentKind kind) {
  return kind == RecurrentKind::delta_grouped || kind == RecurrentKind::delta_tiled;
}

class Builder {
 public:
  Builder(RecurrentKind kind, DType dtype) : kind_(kind), dtype_(dtype), model_(vocabulary(dtype)) {}

  TinyModel build() {
    set_hparams();
    if (kind_ == RecurrentKind::short_conv) {
      model_.tensors["token_embd_norm.weight"] = model_.tensors["output_norm.weight"];
      model_.tensors.erase("output_norm.weight");
    }
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      prefix_ = "blk." + std::to_string(layer) + ".";
      vector("attn_norm.weight", kEmbd);
      layer == attention_layer() ? add_attention() : add_recurrence();
      add_feed_forward();
    }
    return std::move(model_);
  }

 private:
  static TinyModel vocabulary(DType dtype) {
    TinyShape shape;
    shape.n_embd = kEmbd;
    shape.n_layer = 0;
    shape.dtype = dtype;
    return tiny_llama(shape, 7);
  }

  int64_t attention_layer() const { return has_delta_net(kind_) ? 3 : 2; }
  int64_t n_group() const { return kind_ == RecurrentKind::mamba_one_group ? 1 : 4; }

  const char* architecture() const {
    switch (kind_) {
      case RecurrentKind::delta_grouped: return "qwen3next";
      case RecurrentKind::delta_tiled: return "qwen35";
      case RecurrentKind::short_conv: return "lfm2";
      default: return "granitehybrid";
    }
  }

  void set(const std::string& key, Value value) {
    model_.metadata.set(architecture() + ("." + key), std::move(value));
  }
  void set(const std::string& key, int64_t value) { set(key, Value(static_cast<uint32_t>(value))); }

  void set_hparams() {
    model_.metadata.set("general.architecture", Value(architecture()));
    set("context_length", 256);
    set("embedding_length", kEmbd);
    set("block_count", kLayers);
    set("feed_forward_length", kFf);
    set("attention.head_count", kHeads);
    set("attention.key_length", kHeadDim);
    set("attention.value_length", kHeadDim);
    set("attention.layer_norm_rms_epsilon", Value(1e-5f));
    set("rope.freq_base", Value(10000.0f));
    set("rope.dimension_count", kHeadDim);
    if (has_delta_net(kind_)) {
      set("attention.head_count_kv", kHeadsKv);
      set("full_attention_interval", 4);
      set_ssm(kKeyDim, kValueHeads, kKeyHeads, kValueHeads * kValueDim);
    } else {
      std::vector<int32_t> n_head_kv(kLayers, 0);
      n_head_kv[static_cast<size_t>(attention_layer())] = kHeadsKv;
      set("attention.head_count_kv", Value(n_head_kv));
    }
    if (kind_ == RecurrentKind::mamba_groups || kind_ == RecurrentKind::mamba_one_group)
      set_ssm(kSsmState, kSsmHeads, n_group(), kSsmHeads * kSsmDim);
    if (kind_ == RecurrentKind::short_conv) set("shortconv.l_cache", kKernel);
    if (kind_ == RecurrentKind::delta_grouped) {
      set("expert_count", 4);
      set("expert_used_count", 2);
      set("expert_feed_forward_length", kFf);
      set("expert_shared_feed_forward_length", kFf);
    }
  }

  void set_ssm(int64_t n_state, int64_t n_head, int64_t n_group, int64_t n_inner) {
    set("ssm.conv_kernel", kKernel);
    set("ssm.state_size", n_state);
    set("ssm.time_step_rank", n_head);
    set("ssm.group_count", n_group);
    set("ssm.inner_size", n_inner);
  }

  void vector(const std::string& name, int64_t n) { model_.add(prefix_ + name, DType::F32, {n}, ++seed_); }
  void matrix(const std::string& name, int64_t n_cols, int64_t n_rows) {
    model_.add(prefix_ + name, dtype_, {n_cols, n_rows}, ++seed_);
  }
  void floats(const std::string& name, int64_t n_cols, int64_t n_rows) {
    model_.add(prefix_ + name, DType::F32, {n_cols, n_rows}, ++seed_);
  }
  // Below zero, and different from head to head.
  void decay(int64_t n) {
    vector("ssm_a", n);
    std::vector<std::byte>& data = model_.tensors[prefix_ + "ssm_a"].data;
    for (int64_t i = 0; i < n; ++i) {
      const float value = -0.05f * static_cast<float>(i + 1);
      std::memcpy(data.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
    }
  }

  void add_attention() {
    matrix("attn_q.weight", kEmbd, kHeads * kHeadDim * (has_delta_net(kind_) ? 2 : 1));
    matrix("attn_k.weight", kEmbd, kHeadsKv * kHeadDim);
    matrix("attn_v.weight", kEmbd, kHeadsKv * kHeadDim);
    matrix("attn_output.weight", kHeads * kHeadDim, kEmbd);
    if (!has_delta_net(kind_) && kind_ != RecurrentKind::short_conv) return;
    vector("attn_q_norm.weight", kHeadDim);
    vector("attn_k_norm.weight", kHeadDim);
  }

  void add_recurrence() {
    if (has_delta_net(kind_)) return add_delta_net();
    if (kind_ == RecurrentKind::short_conv) {
      matrix("shortconv.in_proj.weight", kEmbd, 3 * kEmbd);
      floats("shortconv.conv.weight", kKernel, kEmbd);
      return matrix("shortconv.out_proj.weight", kEmbd, kEmbd);
    }
    const int64_t n_inner = kSsmHeads * kSsmDim, n_xbc = n_inner + 2 * n_group() * kSsmState;
    matrix("ssm_in.weight", kEmbd, n_inner + n_xbc + kSsmHeads);
    floats("ssm_conv1d.weight", kKernel, n_xbc);
    vector("ssm_conv1d.bias", n_xbc);
    decay(kSsmHeads);
    vector("ssm_dt.bias", kSsmHeads);
    vector("ssm_d", kSsmHeads);
    floats("ssm_norm.weight", n_inner / n_group(), n_group());
    matrix("ssm_out.weight", n_inner, kEmbd);
  }

  void add_delta_net() {
    const int64_t n_v = kValueHeads * kValueDim, n_qkv = 2 * kKeyHeads * kKeyDim + n_v;
    if (kind_ == RecurrentKind::delta_grouped) {
      matrix("ssm_in.weight", kEmbd, n_qkv + n_v);
      matrix("ssm_ba.weight", kEmbd, 2 * kValueHeads);
    } else {
      matrix("attn_qkv.weight", kEmbd, n_qkv);
      matrix("attn_gate.weight", kEmbd, n_v);
      matrix("ssm_beta.weight", kEmbd, kValueHeads);
      matrix("ssm_alpha.weight", kEmbd, kValueHeads);
    }
    floats("ssm_conv1d.weight", kKernel, n_qkv);
    decay(kValueHeads);
    vector("ssm_dt.bias", kValueHeads);
    vector("ssm_norm.weight", kValueDim);
    matrix("ssm_out.weight", n_v, kEmbd);
  }

  void add_feed_forward() {
    vector(has_delta_net(kind_) ? "post_attention_norm.weight" : "ffn_norm.weight", kEmbd);
    if (kind_ != RecurrentKind::delta_grouped) return add_unit("");
    floats("ffn_gate_inp.weight", kEmbd, 4);
    floats("ffn_gate_inp_shexp.weight", kEmbd, 1);
    model_.add(prefix_ + "ffn_gate_exps.weight", dtype_, {kEmbd, kFf, 4}, ++seed_);
    model_.add(prefix_ + "ffn_up_exps.weight", dtype_, {kEmbd, kFf, 4}, ++seed_);
    model_.add(prefix_ + "ffn_down_exps.weight", dtype_, {kFf, kEmbd, 4}, ++seed_);
    add_unit("_shexp");
  }

  void add_unit(const std::string& suffix) {
    matrix("ffn_gate" + suffix + ".weight", kEmbd, kFf);
    matrix("ffn_up" + suffix + ".weight", kEmbd, kFf);
    matrix("ffn_down" + suffix + ".weight", kFf, kEmbd);
  }

  RecurrentKind kind_;
  DType dtype_;
  TinyModel model_;
  std::string prefix_;
  uint64_t seed_ = 100;
};

}  // namespace

const char* name_of(RecurrentKind kind) {
  switch (kind) {
    case RecurrentKind::delta_grouped: return "delta_grouped";
    case RecurrentKind::delta_tiled: return "delta_tiled";
    case RecurrentKind::mamba_groups: return "mamba_groups";
    case RecurrentKind::mamba_one_group: return "mamba_one_group";
    case RecurrentKind::short_conv: return "short_conv";
  }
  return "";
}

TinyModel recurrent_model(RecurrentKind kind, DType dtype) {
  return Builder(kind, dtype).build();
}

}  // namespace tandem::test
