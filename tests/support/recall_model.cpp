#include "support/recall_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/error.h"

namespace tandem::test {
namespace {

constexpr int64_t kCode = 64, kRotated = 32, kHead = kRotated + kCode;
// The residual stream: the codes of the token, of the one before, of the answer; and a constant.
constexpr int64_t kToken = 0, kBefore = kCode, kAnswer = 2 * kCode, kConstant = 3 * kCode;
constexpr int64_t kWidth = 3 * kCode + 32;
constexpr float kConstantValue = 8;  // as large as a code
constexpr float kRopeBase = 10000;
// Scores: of a pair of rotated columns one position back; of a code with itself.
constexpr float kBack = 40, kSame = 40;
// Of a rotated pair that turns by less than a right angle in 512 tokens.
constexpr float kSlow = 30;
constexpr int64_t kSlowPair = 11;

constexpr int64_t kStart = 3, kFirstKey = 4, kKeys = 512, kFirstValue = kFirstKey + kKeys, kValues = 64;
constexpr int64_t kVocabulary = kFirstValue + kValues;

class Matrix {
 public:
  Matrix(int64_t n_rows, int64_t n_cols) : n_cols_(n_cols), values_(static_cast<size_t>(n_rows * n_cols)) {}
  float& at(int64_t row, int64_t col) { return values_[static_cast<size_t>(row * n_cols_ + col)]; }
  // Rows from `row` on take columns from `col` on, times `scale`.
  Matrix& takes(int64_t row, int64_t col, float scale) {
    for (int64_t i = 0; i < kCode; ++i) at(row + i, col + i) = scale;
    return *this;
  }
  TinyTensor tensor() const {
    const auto n = static_cast<int64_t>(values_.size());
    TinyTensor t{DType::F32, {n_cols_, n / n_cols_}, std::vector<std::byte>(values_.size() * sizeof(float))};
    std::memcpy(t.data.data(), values_.data(), t.data.size());
    return t;
  }

 private:
  int64_t n_cols_;
  std::vector<float> values_;
};

TinyTensor ones(int64_t n) {
  TinyTensor t = Matrix(1, n).tensor();
  const std::vector<float> values(static_cast<size_t>(n), 1.0f);
  std::memcpy(t.data.data(), values.data(), t.data.size());
  t.dims = {n};
  return t;
}

// What RMS norm multiplies by, behind n_codes codes and the constant.
float norm_scale(int n_codes) {
  const float sum = static_cast<float>(n_codes * kCode) + kConstantValue * kConstantValue;
  return std::sqrt(static_cast<float>(kWidth) / sum);
}

// Random directions of length sqrt(kCode).
std::vector<std::vector<float>> codes() {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> all(kVocabulary, std::vector<float>(kCode));
  for (std::vector<float>& code : all) {
    for (float& x : code) x = normal(random);
    const float length = std::sqrt(std::inner_product(code.begin(), code.end(), code.begin(), 0.0f));
    for (float& x : code) x *= std::sqrt(static_cast<float>(kCode)) / length;
  }
  return all;
}

}  // namespace

TinyModel recall_model(int64_t n_ctx_train, Distance distance) {
  TinyShape shape;
  shape.n_embd = kWidth;
  shape.n_layer = 2;
  shape.n_head = shape.n_head_kv = 1;
  shape.n_ff = 32;
  shape.n_vocab = kVocabulary;
  TinyModel model = tiny_llama(shape);
  const auto set = [&](const char* key, int64_t value) {
    model.metadata.set(key, Value(static_cast<uint32_t>(value)));
  };
  set("llama.context_length", n_ctx_train);
  set("llama.attention.key_length", kHead);
  set("llama.attention.value_length", kHead);
  set("llama.rope.dimension_count", kRotated);
  model.metadata.set("llama.rope.freq_base", Value(kRopeBase));

  const std::vector<std::vector<float>> code = codes();
  Matrix embedding(kVocabulary, kWidth), output(kVocabulary, kWidth);
  for (int64_t id = 0; id < kVocabulary; ++id) {
    embedding.at(id, kConstant) = kConstantValue;
    for (int64_t i = 0; i < kCode; ++i) {
      embedding.at(id, kToken + i) = code[static_cast<size_t>(id)][static_cast<size_t>(i)];
      output.at(id, kAnswer + i) = code[static_cast<size_t>(id)][static_cast<size_t>(i)];
    }
  }
  model.tensors["token_embd.weight"] = embedding.tensor();
  model.tensors["output.weight"] = output.tensor();
  model.tensors["output_norm.weight"] = ones(kWidth);

  const float root = std::sqrt(static_cast<float>(kHead));  // scores are divided by it
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const float norm = norm_scale(layer + 1);
    Matrix q(kHead, kWidth), k(kHead, kWidth), v(kHead, kWidth), out(kWidth, kHead);
    if (layer == 0) {
      // Rotated by its position, the query is a key one position back: each pair scores cos(turn * (distance - 1)).
      const float size = std::sqrt(kBack * root) / (kConstantValue * norm);
      for (int64_t i = 0; i < kRotated / 2; ++i) {
        const float turn = std::pow(kRopeBase, -2.0f * static_cast<float>(i) / kRotated);
        q.at(2 * i, kConstant) = size * std::cos(turn);
        q.at(2 * i + 1, kConstant) = -size * std::sin(turn);
        k.at(2 * i, kConstant) = size;
      }
    } else {
      const float size = std::sqrt(kSame * root / kCode) / norm;
      q.takes(kRotated, kToken, size);
      k.takes(kRotated, kBefore, size);
      if (distance == Distance::trained) {
        const float slow = std::sqrt(kSlow * root) / (kConstantValue * norm);
        q.at(2 * kSlowPair, kConstant) = k.at(2 * kSlowPair, kConstant) = slow;
      }
    }
    v.takes(0, kToken, 1 / norm);
    out.takes(layer == 0 ? kBefore : kAnswer, 0, 1);
    model.tensors[prefix + "attn_q.weight"] = q.tensor();
    model.tensors[prefix + "attn_k.weight"] = k.tensor();
    model.tensors[prefix + "attn_v.weight"] = v.tensor();
    model.tensors[prefix + "attn_output.weight"] = out.tensor();
    model.tensors[prefix + "attn_norm.weight"] = ones(kWidth);
    model.tensors[prefix + "ffn_down.weight"] = Matrix(kWidth, shape.n_ff).tensor();  // adds nothing
  }
  return model;
}

RecallText recall_text(int64_t n_pairs, uint64_t seed) {
  TANDEM_CHECK(n_pairs <= kKeys);
  std::mt19937_64 random(seed);
  std::vector<int32_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), static_cast<int32_t>(kFirstKey));
  std::shuffle(keys.begin(), keys.end(), random);
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (int64_t i = 0; i < n_pairs; ++i) {
    pairs.emplace_back(keys[static_cast<size_t>(i)], static_cast<int32_t>(kFirstValue + random() % kValues));
  }
  RecallText text{{static_cast<int32_t>(kStart)}, {}};
  for (const auto& [key, value] : pairs) text.pairs.insert(text.pairs.end(), {key, value});
  std::shuffle(pairs.begin(), pairs.end(), random);
  for (const auto& [key, value] : pairs) text.queries.insert(text.queries.end(), {key, value});
  return text;
}

}  // namespace tandem::test
