// Files of every family with one fault: a tensor missing or of the wrong shape; a hyperparameter missing,
// zero, out of range, of the wrong type or not a number. Each is rejected with one sentence that names it, or
// is harmless.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "engine/model.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/tiny_model.h"
#include "tools/convert/convert.h"

namespace tandem {
namespace {

using test::TinyModel;
using testing::HasSubstr;

class BadFamily : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    test::family_folder(test::load_family(GetParam())).write(directory_.path("hf"));
    tools::ConvertOptions options;
    options.n_threads = 1;
    const std::string path = directory_.path("good.gguf");
    write_conversion(tools::prepare_conversion(directory_.path("hf"), options), options, path);
    file_.emplace(path, OpenOptions{});
    good_ = test::read_model(*file_);
    prefix_ = file_->metadata().get<std::string>("general.architecture") + ".";
  }

  // The error of loading; empty if the model loads.
  std::string refusal(const TinyModel& model) const {
    const std::string path = directory_.path("bad.gguf");
    model.write(path);
    try {
      const std::unique_ptr<Model> loaded = Model::load(path);
      // Its MTP layer as well.
      ModelOptions mtp;
      mtp.path = path;
      mtp.part = ModelPart::mtp;
      const auto n_mtp = loaded->file().metadata().get_or<int64_t>(prefix_ + "nextn_predict_layers", 0);
      if (GetParam() == "bailing_moe2" && n_mtp > 0) Model::load(mtp);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file) << e.what();
      EXPECT_THAT(e.what(), HasSubstr("bad.gguf"));
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
      return e.what();
    }
    return "";
  }

  template <class T>
  std::string with(const std::string& key, T value) const {
    TinyModel model = good_;
    model.metadata.set(key, Value(value));
    return refusal(model);
  }

  // Keys of the family's hyperparameters whose values are of this type.
  std::vector<std::string> keys(ValueType type) const {
    std::vector<std::string> result;
    for (const Metadata::Entry& e : file_->metadata().entries()) {
      if (e.key.starts_with(prefix_) && e.value.type() == type) result.push_back(e.key);
    }
    return result;
  }

  test::TempDir directory_;
  std::optional<GgufFile> file_;
  TinyModel good_;
  std::string prefix_;
};

// Optional tensors: a file without them is a valid model without biases, factors or (GLM) norms of heads, or with
// tied embeddings.
bool is_optional(const std::string& name, const std::string& family) {
  if (family == "glm4_moe_qk_norm" && (name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight")))
    return true;
  if (family.starts_with("gemma4") &&  // layers 2 and 5 have full attention
      (name == "blk.2.attn_v.weight" || name == "blk.5.attn_v.weight" ||
       name.ends_with("layer_output_scale.weight") || name.ends_with("ffn_down_exps.scale")))
    return true;
  return name.ends_with(".bias") || name == "output.weight" ||
         (name.starts_with("rope_") && !family.starts_with("gemma4"));
}

// Counts of which 0 says something, and what an error may name instead: the tensors of a layer of another kind.
bool may_be_zero(const std::string& key) {
  for (const char* suffix :
       {".vocab_size", "phi3.attention.sliding_window", "llama.expert_count", "granitehybrid.expert_count",
        ".moe_latent_size", ".expert_gating_func", ".expert_shared_count",
        ".expert_shared_feed_forward_length", ".leading_dense_block_count", ".interleave_moe_layer_step",
        ".expert_group_count", ".nextn_predict_layers", ".shared_kv_layers",
        ".embedding_length_per_layer_input"}) {
    if (key.ends_with(suffix)) return true;
  }
  return false;
}

TEST_P(BadFamily, MissingTensors) {
  EXPECT_EQ(refusal(good_), "");
  for (const auto& [name, tensor] : good_.tensors) {
    TinyModel model = good_;
    model.tensors.erase(name);
    const std::string message = refusal(model);
    if (is_optional(name, GetParam())) continue;
    // If a fused matrix is missing, loading may look for its parts.
    const std::string part = name.ends_with("attn_qkv.weight")            ? "attn_q.weight"
                             : name.ends_with("ssm_ba.weight")            ? "ssm_beta.weight"
                             : name.ends_with("ffn_gate_up_exps.weight")  ? "ffn_gate_exps.weight"
                             : name.ends_with("layer_output_norm.weight") ? "nextn.shared_head_norm.weight"
                                                                          : name;
    EXPECT_THAT(message, testing::AnyOf(HasSubstr(name), HasSubstr(part)));
  }
}

TEST_P(BadFamily, WrongShapes) {
  for (const auto& [name, tensor] : good_.tensors) {
    for (size_t axis = 0; axis < tensor.dims.size(); ++axis) {
      if (name == "token_embd.weight" && axis == 1)
        continue;  // any number of rows that holds the vocabulary is valid
      TinyModel model = good_;
      std::vector<int64_t> dims = tensor.dims;
      dims[axis] += axis == 0 ? 32 : 1;
      model.add(name, DType::F32, dims, 7);
      EXPECT_THAT(refusal(model), HasSubstr(name)) << "axis " << axis;
    }
  }
}

TEST_P(BadFamily, Counts) {
  for (const std::string& key : keys(ValueType::u32)) {
    const std::string zero = with(key, uint32_t{0});
    if (!may_be_zero(key)) {
      EXPECT_THAT(zero, HasSubstr(key));
    }
    if (!zero.empty()) {
      EXPECT_THAT(zero, testing::AnyOf(HasSubstr(key), HasSubstr("tensor blk."))) << key;
    }
    if (key == "llama.expert_count") {
      EXPECT_THAT(zero, HasSubstr("ffn_gate.weight"));
    }
    if (!key.ends_with(".vocab_size")) {
      EXPECT_THAT(with(key, "many"), HasSubstr(key));
    }
    with(key, uint32_t{4000000000u});  // too large for most keys, but valid as a context size
    with(key, uint32_t{1});
    with(key, uint32_t{7});
    TinyModel model = good_;
    model.metadata.remove(key);
    const std::string message = refusal(model);
    // The default may be right, or contradict a tensor or another key.
    if (!message.empty()) {
      EXPECT_THAT(message, testing::AnyOf(HasSubstr("metadata " + prefix_), HasSubstr("tensor"))) << key;
    }
  }
}

TEST_P(BadFamily, Numbers) {
  for (const std::string& key : keys(ValueType::f32)) {
    for (float value : {std::nanf(""), std::numeric_limits<float>::infinity(), -1e30f}) {
      EXPECT_THAT(with(key, value), HasSubstr(key)) << value;
    }
    EXPECT_THAT(with(key, "large"), HasSubstr(key));
  }
  // Keys that tiny models do not have.
  for (const char* suffix : {"rope.scaling.yarn_log_multiplier", "rope.scaling.attn_factor"}) {
    EXPECT_THAT(with(prefix_ + suffix, std::nanf("")), HasSubstr(suffix));
  }
  EXPECT_THAT(with(prefix_ + "rope.scaling.type", "cubic"), HasSubstr("rope.scaling.type"));
}

TEST_P(BadFamily, IndivisibleHeads) {
  EXPECT_THAT(with(prefix_ + "attention.head_count_kv", uint32_t{3}), HasSubstr("divisor"));
  if (!file_->metadata().has(prefix_ + "attention.key_length")) {
    EXPECT_THAT(with(prefix_ + "attention.head_count", uint32_t{5}), HasSubstr("divisor"));
  }
}

// One of each architecture, and both kinds of llama.
INSTANTIATE_TEST_SUITE_P(All, BadFamily,
                         testing::Values("llama_tied_bias", "mixtral", "mistral3", "qwen2", "qwen2_moe",
                                         "qwen3", "qwen3_moe", "gemma2", "gemma3_scaled_rope",
                                         "phi3_longrope_long", "granite", "smollm3", "olmo2", "gpt_oss",
                                         "glm4_moe_qk_norm", "minimax_m2", "qwen3_vl", "qwen3_vl_moe",
                                         "seed_oss", "ernie4_5_moe", "hunyuan_moe", "exaone_moe",
                                         "bailing_moe2", "deepseek_v2_lite", "deepseek_v3", "qwen3_next",
                                         "qwen3_5", "qwen3_5_moe", "lfm2", "lfm2_moe", "granite_hybrid",
                                         "granite_hybrid_dense", "nemotron_h", "nemotron_h_moe", "gemma4_moe",
                                         "gemma4_shared"),
                         [](const auto& param_info) { return param_info.param; });

// Tests of a single family.
class BadOne : public BadFamily {};

TEST_P(BadOne, WindowPatterns) {
  const std::string key = prefix_ + "attention.sliding_window_pattern";
  EXPECT_EQ(with(key, uint32_t{3}), "");
  EXPECT_EQ(with(key, std::vector<uint8_t>(
                          static_cast<size_t>(file_->metadata().get<int64_t>(prefix_ + "block_count")))),
            "");
  EXPECT_THAT(with(key, std::vector<uint8_t>(1)), HasSubstr("sliding_window_pattern"));
  EXPECT_THAT(with(key, std::vector<std::string>{"yes"}), HasSubstr("sliding_window_pattern"));
  EXPECT_THAT(with(key, "every sixth"), HasSubstr("sliding_window_pattern"));
}

INSTANTIATE_TEST_SUITE_P(Windows, BadOne, testing::Values("gemma2", "gemma3", "gpt_oss", "exaone_moe"),
                         [](const auto& param_info) { return param_info.param; });

class BadMixture : public BadFamily {};

TEST_P(BadMixture, Routing) {
  EXPECT_THAT(with(prefix_ + "expert_group_count", uint32_t{3}),
              testing::AllOf(HasSubstr("expert_group_count"), HasSubstr("divisor of expert_count")));
  EXPECT_THAT(with(prefix_ + "expert_group_count", uint32_t{1000}), HasSubstr("expert_group_count"));
  EXPECT_THAT(with(prefix_ + "expert_group_used_count", uint32_t{5}), HasSubstr("expert_group_used_count"));
  EXPECT_THAT(with(prefix_ + "expert_group_count", uint32_t{8}), HasSubstr("expert_group_used_count"));
  EXPECT_THAT(with(prefix_ + "expert_gating_func", uint32_t{9}), HasSubstr("2 (sigmoid)"));
  EXPECT_EQ(with(prefix_ + "expert_gating_func", uint32_t{3}), "");
  EXPECT_THAT(with(prefix_ + "leading_dense_block_count", uint32_t{2}), HasSubstr("blk.1.ffn_gate.weight"));
  EXPECT_THAT(with(prefix_ + "leading_dense_block_count", uint32_t{9}),
              HasSubstr("leading_dense_block_count"));
  EXPECT_THAT(with(prefix_ + "nextn_predict_layers", uint32_t{5}), HasSubstr("nextn_predict_layers"));
  EXPECT_THAT(with(prefix_ + "expert_shared_feed_forward_length", uint32_t{0}), HasSubstr("ffn_gate_shexp"));
}

// What other programs write: a flag for each layer, those that only predict further ahead included or not; a
// width of shared experts that are not there.
TEST_P(BadMixture, VariantsOfOthersAreRead) {
  const auto n_layer = static_cast<size_t>(file_->metadata().get<int64_t>(prefix_ + "block_count"));
  TinyModel model = good_;
  model.metadata.set(prefix_ + "nextn_predict_layers", Value(uint32_t{1}));
  for (const size_t n : {n_layer, n_layer - 1}) {
    model.metadata.set(prefix_ + "attention.sliding_window_pattern", Value(std::vector<uint8_t>(n, 1)));
    EXPECT_EQ(refusal(model), "") << n;
  }
  model = good_;
  std::erase_if(model.tensors, [](const auto& t) { return t.first.find("_shexp.") != std::string::npos; });
  EXPECT_THAT(refusal(model), HasSubstr("_shexp"));
  model.metadata.set(prefix_ + "expert_shared_count", Value(uint32_t{0}));
  EXPECT_EQ(refusal(model), "");
}

INSTANTIATE_TEST_SUITE_P(Groups, BadMixture, testing::Values("exaone_moe", "bailing_moe2"),
                         [](const auto& param_info) { return param_info.param; });

class BadLatent : public BadFamily {};

// Sizes that do not agree with each other or with the tensors.
TEST_P(BadLatent, Sizes) {
  const auto key = [&](const char* suffix) { return prefix_ + "attention." + suffix; };
  EXPECT_THAT(with(key("kv_lora_rank"), uint32_t{31}),
              testing::AllOf(HasSubstr("attention.key_length"), HasSubstr("found 48"), HasSubstr("31 + 16")));
  EXPECT_THAT(with(key("kv_lora_rank"), uint32_t{4000000000u}), HasSubstr("kv_lora_rank"));
  EXPECT_THAT(with(key("key_length"), uint32_t{64}),
              testing::AllOf(HasSubstr("attention.key_length"), HasSubstr("32 + 16")));
  EXPECT_THAT(with(key("value_length"), uint32_t{16}),
              testing::AllOf(HasSubstr("attention.value_length"), HasSubstr("kv_lora_rank, 32")));
  EXPECT_THAT(with(key("head_count_kv"), uint32_t{4}), HasSubstr("head_count_kv"));
  EXPECT_THAT(with(key("key_length_mla"), uint32_t{16}),
              testing::AllOf(HasSubstr("key_length_mla"), HasSubstr("more than rope.dimension_count, 16")));
  EXPECT_THAT(with(key("key_length_mla"), uint32_t{41}), HasSubstr("tensor blk.0.attn_q"));
  EXPECT_THAT(with(key("value_length_mla"), uint32_t{21}), HasSubstr("tensor blk.0.attn_v_b.weight"));
  EXPECT_THAT(with(prefix_ + "rope.dimension_count", uint32_t{14}), HasSubstr("attention.key_length"));
  EXPECT_THAT(with(key("head_count"), uint32_t{5}), HasSubstr("tensor blk.0.attn_q"));
  const bool compressed = file_->metadata().has(key("q_lora_rank"));
  EXPECT_THAT(with(key("q_lora_rank"), uint32_t{7}), HasSubstr("blk.0.attn_q_a.weight"));
  TinyModel model = good_;
  model.metadata.remove(key("q_lora_rank"));
  EXPECT_THAT(refusal(model), HasSubstr(compressed ? "blk.0.attn_q.weight" : ""));
}

// Files from before the heads' matrices were stored apart have them as one.
TEST_P(BadLatent, OlderFiles) {
  TinyModel model = good_;
  model.tensors.erase("blk.0.attn_k_b.weight");
  EXPECT_THAT(refusal(model), HasSubstr("blk.0.attn_k_b.weight"));
  model.add("blk.0.attn_kv_b.weight", DType::F32, {32, 4 * 44}, 7);
  EXPECT_THAT(refusal(model), HasSubstr("convert the model again"));
}

INSTANTIATE_TEST_SUITE_P(Latent, BadLatent, testing::Values("deepseek_v2_lite", "deepseek_v3"),
                         [](const auto& param_info) { return param_info.param; });

class BadMistral3 : public BadFamily {};

TEST_P(BadMistral3, TemperatureNeedsWholeHeads) {
  EXPECT_THAT(with(prefix_ + "rope.dimension_count", uint32_t{16}), HasSubstr("rope.dimension_count"));
  EXPECT_THAT(with(prefix_ + "attention.temperature_length", uint32_t{0}), HasSubstr("temperature_length"));
}

INSTANTIATE_TEST_SUITE_P(One, BadMistral3, testing::Values("mistral3"));

class BadDeltaNet : public BadFamily {};

TEST_P(BadDeltaNet, Sizes) {
  const auto key = [&](const char* name) { return prefix_ + name; };
  for (const uint32_t n : {0u, 1u, 17u, 1000000000u}) {
    EXPECT_THAT(with(key("ssm.conv_kernel"), n), HasSubstr("ssm.conv_kernel: found " + std::to_string(n)))
        << n;
  }
  for (const uint32_t n : {0u, 3u, 8u, 1000000000u}) {  // of 4 heads
    EXPECT_THAT(with(key("ssm.group_count"), n), HasSubstr("ssm.group_count: found " + std::to_string(n)))
        << n;
  }
  for (const uint32_t n : {0u, 97u, 4000000000u}) {
    EXPECT_THAT(with(key("ssm.inner_size"), n), HasSubstr("ssm.inner_size: found " + std::to_string(n))) << n;
  }
  for (const uint32_t n : {0u, 1000000000u}) {
    EXPECT_THAT(with(key("ssm.state_size"), n), HasSubstr("ssm.state_size: found " + std::to_string(n))) << n;
    EXPECT_THAT(with(key("ssm.time_step_rank"), n), HasSubstr("ssm.time_step_rank: found ")) << n;
  }
  EXPECT_THAT(with(key("ssm.state_size"), uint32_t{24}), HasSubstr("blk.0.attn_qkv.weight"));
  EXPECT_THAT(with(key("full_attention_interval"), uint32_t{0}), HasSubstr("full_attention_interval"));
  EXPECT_THAT(with(key("full_attention_interval"), uint32_t{2}), HasSubstr("blk.1.attn_q.weight"));
  EXPECT_THAT(with(key("attention.recurrent_layers"), std::vector<int32_t>{1, 1}),
              HasSubstr("attention.recurrent_layers"));
  EXPECT_EQ(with(key("attention.recurrent_layers"), std::vector<int32_t>{1, 1, 1, 0, 1}), "");
}

class BadShortConv : public BadFamily {};

// Widths that no convolution has, counts that do not agree with the layers.
TEST_P(BadShortConv, Sizes) {
  const std::string width = prefix_ + "shortconv.l_cache", heads = prefix_ + "attention.head_count_kv";
  for (const uint32_t n : {0u, 1u, 17u, 1000000000u}) {
    EXPECT_THAT(with(width, n), testing::AllOf(HasSubstr("shortconv.l_cache"), HasSubstr("from 2 to 16")));
  }
  EXPECT_THAT(with(width, uint32_t{5}), HasSubstr("blk.0.shortconv.conv.weight"));
  EXPECT_THAT(with(heads, std::vector<int32_t>{0, 0, 2, 0}),
              testing::AllOf(HasSubstr("head_count_kv"), HasSubstr("5 layers")));
  EXPECT_THAT(with(heads, std::vector<int32_t>{0, 0, 2, 0, 4}),
              testing::AllOf(HasSubstr("head_count_kv"), HasSubstr("2 and 4")));
  EXPECT_THAT(with(heads, std::vector<int32_t>{0, 0, -2, 0, -2}), HasSubstr("head_count_kv"));
  EXPECT_THAT(with(heads, std::vector<int32_t>{0, 2, 2, 0, 2}), HasSubstr("blk.1.attn_q.weight"));
  EXPECT_THAT(with(heads, std::vector<int32_t>{0, 0, 0, 0, 0}), HasSubstr("blk.2.shortconv"));
  EXPECT_THAT(with(heads, std::vector<std::string>{"2"}), HasSubstr("head_count_kv"));
}

INSTANTIATE_TEST_SUITE_P(ShortConv, BadShortConv, testing::Values("lfm2"));

class BadMamba2 : public BadFamily {};

// Six heads in one group (Granite) or two (Nemotron).
TEST_P(BadMamba2, Sizes) {
  const auto key = [&](const char* name) { return prefix_ + name; };
  const auto expect_found = [&](const char* name, uint32_t n) {
    EXPECT_THAT(with(key(name), n), HasSubstr(format("{}: found {}", name, n)));
  };
  for (const uint32_t n : {0u, 1u, 17u, 1000000000u}) expect_found("ssm.conv_kernel", n);
  for (const uint32_t n : {0u, 4u, 12u, 1000000000u}) expect_found("ssm.group_count", n);
  for (const uint32_t n : {0u, 97u, 4000000000u}) expect_found("ssm.inner_size", n);
  for (const uint32_t n : {0u, 1025u, 1000000000u}) expect_found("ssm.state_size", n);
  for (const uint32_t n : {0u, 1000000000u}) expect_found("ssm.time_step_rank", n);
  EXPECT_THAT(with(key("ssm.time_step_rank"), uint32_t{10}), HasSubstr("ssm.time_step_rank, 10"));
  EXPECT_THAT(with(key("ssm.conv_kernel"), uint32_t{5}), HasSubstr("blk.0.ssm_conv1d.weight"));
  EXPECT_THAT(with(key("ssm.state_size"), uint32_t{24}), HasSubstr("blk.0.ssm_in.weight"));
  EXPECT_THAT(with(key("attention.head_count_kv"), std::vector<int32_t>{0, 2}),
              testing::AllOf(HasSubstr("attention.head_count_kv"), HasSubstr("one for each of")));
}

// What other programs write: one number for each head as a row of its own, or not.
TEST_P(BadMamba2, VectorsAndColumnsAreRead) {
  for (const char* name : {"blk.0.ssm_a", "blk.0.ssm_d"}) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{6}, {1, 6}, {1, 6, 1}}) {
      TinyModel model = good_;
      model.add(name, DType::F32, dims, 7);
      EXPECT_EQ(refusal(model), "") << dims.size();
    }
    TinyModel model = good_;
    model.add(name, DType::F32, {2, 3}, 7);
    EXPECT_THAT(refusal(model), HasSubstr(name));
  }
}

INSTANTIATE_TEST_SUITE_P(Mamba2, BadMamba2, testing::Values("granite_hybrid", "nemotron_h", "nemotron_h_moe"),
                         [](const auto& param_info) { return param_info.param; });

class BadNemotron : public BadFamily {};

TEST_P(BadNemotron, KindsOfLayers) {
  const std::string key = prefix_ + "feed_forward_length";
  EXPECT_THAT(with(key, std::vector<int32_t>{0, 96}),
              testing::AllOf(HasSubstr("feed_forward_length"), HasSubstr("one for each of 7 layers")));
  EXPECT_THAT(with(key, std::vector<int32_t>{0, 96, 0, 0, 48, 0, 96}),
              testing::AllOf(HasSubstr("feed_forward_length"), HasSubstr("96 and 48")));
  EXPECT_THAT(with(key, std::vector<int32_t>{0, -96, 0, 0, 0, 0, 0}), HasSubstr("feed_forward_length"));
  EXPECT_THAT(with(key, std::vector<int32_t>{96, 96, 0, 0, 0, 0, 96}), HasSubstr("blk.0.ffn_up.weight"));
  EXPECT_THAT(with(prefix_ + "attention.head_count_kv", std::vector<int32_t>(7)),
              HasSubstr("blk.3.ssm_in.weight"));
}

TEST_P(BadNemotron, EitherNameOfTheEpsilonIsRead) {
  const std::string usual = prefix_ + "attention.layer_norm_rms_epsilon",
                    other = prefix_ + "attention.layer_norm_epsilon";
  EXPECT_TRUE(good_.metadata.has(usual) && good_.metadata.has(other));
  TinyModel model = good_;
  model.metadata.remove(usual);
  EXPECT_EQ(refusal(model), "");
  model.metadata.remove(other);
  EXPECT_THAT(refusal(model), HasSubstr(usual));
}

INSTANTIATE_TEST_SUITE_P(Nemotron, BadNemotron, testing::Values("nemotron_h"));

INSTANTIATE_TEST_SUITE_P(DeltaNet, BadDeltaNet, testing::Values("qwen3_next"));

class BadGemma4 : public BadFamily {};

TEST_P(BadGemma4, SizesOfLayers) {
  const auto key = [&](const char* name) { return prefix_ + name; };
  for (const uint32_t n : {6u, 4000000000u}) {  // of 6 layers
    EXPECT_THAT(with(key("attention.shared_kv_layers"), n),
                HasSubstr("attention.shared_kv_layers: found " + std::to_string(n)));
  }
  EXPECT_THAT(with(key("attention.shared_kv_layers"), uint32_t{5}),
              HasSubstr("layer 2 needs an earlier one"));
  EXPECT_THAT(with(key("attention.shared_kv_layers"), uint32_t{2}), HasSubstr("blk.3.attn_k.weight"));
  for (const uint32_t n : {31u, 33u}) {
    EXPECT_THAT(with(key("embedding_length_per_layer_input"), n), HasSubstr("per_layer_token_embd.weight"));
  }
  EXPECT_THAT(with(key("embedding_length_per_layer_input"), uint32_t{0}),
              HasSubstr("embedding_length_per_layer_input: found 0"));
  EXPECT_THAT(with(key("attention.value_length_swa"), uint32_t{64}), HasSubstr("attention.value_length_swa"));
  EXPECT_THAT(with(key("attention.value_length"), uint32_t{32}), HasSubstr("attention.value_length"));
  for (const uint32_t n : {0u, 5u, 64u}) {  // of heads of 32
    EXPECT_THAT(with(key("rope.dimension_count_swa"), n), HasSubstr("rope.dimension_count_swa"));
  }
  const auto sizes = [&](const char* name, const std::vector<int32_t>& values) {
    return with(key(name), values);
  };
  EXPECT_THAT(sizes("attention.head_count_kv", {2, 2, 3, 2, 2, 2}), HasSubstr("divisor"));
  EXPECT_THAT(sizes("attention.head_count_kv", {2, 2, 1, 2, 2, 2}), HasSubstr("blk.2.attn_k.weight"));
  EXPECT_THAT(sizes("attention.head_count_kv", {2, 2, 2, 2, 2}), HasSubstr("one for each of 6 layers"));
  EXPECT_THAT(sizes("attention.head_count_kv", {2, 2, 0, 2, 2, 2}),
              HasSubstr("attention.head_count_kv: found 0"));
  EXPECT_THAT(sizes("feed_forward_length", {96, 96}), HasSubstr("one for each of 6 layers"));
  EXPECT_THAT(sizes("feed_forward_length", {96, 96, 96, 96, 192, 192}), HasSubstr("blk.3.ffn_gate.weight"));
  EXPECT_THAT(sizes("attention.sliding_window_pattern", {1, 1, 0}), HasSubstr("sliding_window_pattern"));
}

INSTANTIATE_TEST_SUITE_P(Shared, BadGemma4, testing::Values("gemma4_shared"));

class BadGemma4Moe : public BadFamily {};

TEST_P(BadGemma4Moe, ExpertsThatAreNotCounted) {
  TinyModel model = good_;
  model.metadata.remove(prefix_ + "expert_count");
  EXPECT_THAT(refusal(model), HasSubstr("expert_count: found 0"));
}

INSTANTIATE_TEST_SUITE_P(One, BadGemma4Moe, testing::Values("gemma4_moe"));

}  // namespace
}  // namespace tandem
