// Valid GGUF files with an invalid model: each gives one sentence that names the file and the fault, and exit
// code 3.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "support/gguf_bytes.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using test::TinyModel;
using testing::HasSubstr;

class BadModel : public testing::Test {
 protected:
  // The error message of loading.
  std::string refusal(const TinyModel& model, ErrorCode code = ErrorCode::bad_file) {
    const std::string path = directory_.path("model.gguf");
    model.write(path);
    try {
      Model::load(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_THAT(e.what(), HasSubstr("model.gguf"));
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
      return e.what();
    }
    ADD_FAILURE() << "the model was loaded";
    return "";
  }

  // The error of the tiny model with one changed metadata value.
  template <class T>
  std::string with(const char* key, T value) {
    TinyModel model = test::tiny_llama();
    model.metadata.set(key, Value(value));
    return refusal(model);
  }

  std::string without(const char* key) {
    TinyModel model = test::tiny_llama();
    model.metadata.remove(key);
    return refusal(model);
  }

  test::TempDir directory_;
};

TEST_F(BadModel, TheTinyModelIsGood) {
  const std::string path = directory_.path("good.gguf");
  test::tiny_llama().write(path);
  const auto model = Model::load(path);
  const auto device = cpu::make_cpu_device({1, 1});
  Session session(*model, {device.get()}, {});
  EXPECT_EQ(session.append(std::vector<int32_t>{1, 260, 270}).size(), 300u);
}

// Files of NVFP4 have them: one for a matrix, or for each expert's.
TEST_F(BadModel, ScalesOfWholeMatrices) {
  const auto with_scale = [&](TinyModel model, const std::string& name, const std::vector<float>& values,
                              DType dtype = DType::F32) {
    model.add(name, DType::F32, {static_cast<int64_t>(values.size())}, 1);
    model.tensors.at(name).dtype = dtype;
    std::memcpy(model.tensors.at(name).data.data(), values.data(), values.size() * sizeof(float));
    return refusal(model);
  };
  for (const std::vector<float>& values : {std::vector<float>{1, 1}, {0}, {NAN}, {INFINITY}}) {
    EXPECT_THAT(with_scale(test::tiny_llama(), "blk.1.ffn_up.scale", values), HasSubstr("blk.1.ffn_up.scale")) << values[0];
  }
  EXPECT_THAT(with_scale(test::tiny_llama(), "blk.1.ffn_up.scale", {1}, DType::I32), HasSubstr("blk.1.ffn_up.scale"));
  const TinyModel mixture = test::tiny_llama({.n_expert = 4, .n_expert_used = 2});
  for (const std::vector<float>& values : {std::vector<float>{1, 1, 1}, {1, 1, 1, 1, 1}, {1, 1, NAN, 1}}) {
    EXPECT_THAT(with_scale(mixture, "blk.0.ffn_down_exps.scale", values), HasSubstr("blk.0.ffn_down_exps.scale"));
  }
  TinyModel biased = mixture;
  biased.add("blk.0.ffn_up_exps.bias", DType::F32, {96, 4}, 1);
  EXPECT_THAT(with_scale(biased, "blk.0.ffn_up_exps.scale", {1, 1, 1, 1}), HasSubstr("blk.0.ffn_up_exps.bias"));
}

TEST_F(BadModel, ScalesThatAreNoNumbers) {
  TinyModel model = test::tiny_llama({.n_ff = 128, .dtype = DType::NVFP4});
  const std::string path = directory_.path("nan.gguf");
  for (std::byte& scale : std::span(model.tensors.at("blk.0.attn_output.weight").data).first(4)) scale = std::byte{0x7f};
  model.write(path);
  const auto loaded = Model::load(path);
  const auto device = cpu::make_cpu_device({1, 1});
  Session session(*loaded, {device.get()}, {});
  try {
    session.append(std::vector<int32_t>{1, 260, 270});
    FAIL() << "logits of NaN";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::numeric) << e.what();
  }
}

TEST_F(BadModel, Hyperparameters) {
  EXPECT_THAT(with("general.architecture", "mamba9"), HasSubstr("llama"));
  EXPECT_THAT(without("general.architecture"), HasSubstr("general.architecture"));
  EXPECT_THAT(without("llama.block_count"), HasSubstr("llama.block_count"));
  EXPECT_THAT(with("llama.block_count", uint32_t{0}), HasSubstr("llama.block_count"));
  EXPECT_THAT(with("llama.block_count", uint32_t{4000000000u}), HasSubstr("llama.block_count"));
  EXPECT_THAT(with("llama.block_count", "two"), HasSubstr("llama.block_count"));
  EXPECT_THAT(with("llama.attention.head_count", uint32_t{0}), HasSubstr("head_count"));
  EXPECT_THAT(with("llama.attention.head_count", uint32_t{5}), HasSubstr("head_count"));
  EXPECT_THAT(with("llama.attention.head_count_kv", uint32_t{3}), HasSubstr("divisor"));
  EXPECT_THAT(with("llama.attention.layer_norm_rms_epsilon", std::nanf("")), HasSubstr("epsilon"));
  EXPECT_THAT(with("llama.attention.layer_norm_rms_epsilon", -1.0f), HasSubstr("epsilon"));
  EXPECT_THAT(with("llama.embedding_length", uint32_t{96}), HasSubstr("token_embd.weight"));
  EXPECT_THAT(with("llama.feed_forward_length", uint32_t{97}), HasSubstr("ffn_"));
  EXPECT_THAT(with("llama.context_length", uint32_t{0}), HasSubstr("context_length"));
  EXPECT_THAT(with("llama.context_length", uint32_t{1} << 31),
              HasSubstr("context_length"));  // positions are int32
  EXPECT_THAT(with("llama.rope.dimension_count", uint32_t{7}), HasSubstr("rope.dimension_count"));
  EXPECT_THAT(with("llama.rope.freq_base", std::numeric_limits<float>::infinity()), HasSubstr("freq_base"));
  EXPECT_THAT(with("llama.rope.scaling.type", "cubic"), HasSubstr("scaling.type"));
}

TEST_F(BadModel, MissingWeights) {
  for (const auto& [name, tensor] : test::tiny_llama().tensors) {
    if (name == "output.weight") continue;  // tied embeddings then
    TinyModel model = test::tiny_llama();
    model.tensors.erase(name);
    EXPECT_THAT(refusal(model), HasSubstr(name));
  }
}

TEST_F(BadModel, WrongShapes) {
  for (const auto& [name, tensor] : test::tiny_llama().tensors) {
    TinyModel model = test::tiny_llama();
    std::vector<int64_t> dims = tensor.dims;
    dims[0] += 32;
    model.add(name, DType::F32, dims, 7);
    EXPECT_THAT(refusal(model), HasSubstr(name));
  }
}

TEST_F(BadModel, WrongTypes) {
  TinyModel model = test::tiny_llama();
  model.add("blk.1.attn_norm.weight", DType::Q8_0, {64}, 7);
  EXPECT_THAT(refusal(model), HasSubstr("blk.1.attn_norm.weight"));
  model = test::tiny_llama();
  test::TinyTensor& q = model.tensors["blk.1.attn_q.weight"];
  q.dtype = DType::I32;  // a valid dtype, but not for weights
  const std::string message = refusal(model);
  EXPECT_THAT(message, HasSubstr("blk.1.attn_q.weight"));
  EXPECT_THAT(message, HasSubstr("I32"));
}

TEST_F(BadModel, Vocabulary) {
  EXPECT_THAT(without("tokenizer.ggml.tokens"), HasSubstr("tokenizer.ggml.tokens"));
  EXPECT_THAT(with("tokenizer.ggml.tokens", uint32_t{3}), HasSubstr("tokenizer.ggml.tokens"));
  EXPECT_THAT(with("tokenizer.ggml.tokens", std::vector<int32_t>(300, 1)),
              HasSubstr("tokenizer.ggml.tokens"));
  EXPECT_THAT(with("tokenizer.ggml.scores", std::vector<float>(299, 0.0f)),
              HasSubstr("tokenizer.ggml.scores"));
  EXPECT_THAT(with("tokenizer.ggml.scores", std::vector<int32_t>(300, 0)),
              HasSubstr("tokenizer.ggml.scores"));
  EXPECT_THAT(with("tokenizer.ggml.token_type", std::vector<int32_t>(1, 1)), HasSubstr("token_type"));
  EXPECT_THAT(with("tokenizer.ggml.bos_token_id", uint32_t{300}), HasSubstr("bos_token_id"));
  EXPECT_THAT(with("tokenizer.ggml.eos_token_id", uint32_t{4000000}), HasSubstr("eos_token_id"));
  EXPECT_THAT(with("tokenizer.ggml.model", "rwkv"), HasSubstr("tokenizer.ggml.model"));
  TinyModel small = test::tiny_llama({.tied = true});
  small.add("token_embd.weight", DType::F32, {64, 299}, 7);
  EXPECT_THAT(refusal(small), HasSubstr("token_embd.weight"));
}

TEST_F(BadModel, AVocabularyOnlyFile) {
  TinyModel model = test::tiny_llama();
  model.tensors.clear();
  EXPECT_THAT(refusal(model), HasSubstr("vocabulary"));
}

TEST_F(BadModel, NanWeightsGiveAnErrorWithThePosition) {
  TinyModel model = test::tiny_llama();
  auto* row = reinterpret_cast<float*>(model.tensors["blk.0.ffn_norm.weight"].data.data());
  row[3] = std::nanf("");
  const std::string path = directory_.path("nan.gguf");
  model.write(path);
  const auto loaded = Model::load(path);
  const auto device = cpu::make_cpu_device({1, 1});
  Session session(*loaded, {device.get()}, {});
  try {
    session.append(std::vector<int32_t>{1, 260, 270});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::numeric);
    EXPECT_THAT(e.what(), HasSubstr("position 2"));
  }
}

}  // namespace
}  // namespace tandem
