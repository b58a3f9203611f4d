// A model to plan for, without a file.
#pragma once

#include <deque>

#include "graph/builder.h"
#include "model/architecture.h"

namespace tandem::test {

// A dense model with the sizes of Phi-3-mini-128k: 32 layers, keys and values of 3072. The weights have no
// data, because planning does not read them.
class PhiLike final : public Architecture {
 public:
  static constexpr int64_t kLayers = 32, kWidth = 3072, kFf = 8192, kVocab = 32064, kHeads = 32;

  PhiLike() {
    hparams_.architecture = "phi-like";
    hparams_.n_vocab = kVocab;
    hparams_.n_ctx_train = 131072;
    hparams_.n_embd = kWidth;
    hparams_.n_layer = kLayers;
    for (int i = -1; i < kLayers; ++i) {
      if (i < 0) {
        add("token_embd", i, kVocab, kWidth), add("output", i, kVocab, kWidth);
        continue;
      }
      for (const char* name : {"q", "k", "v", "o"}) add(name, i, kWidth, kWidth);
      add("gate", i, kFf, kWidth), add("up", i, kFf, kWidth), add("down", i, kWidth, kFf);
    }
  }
  KvShape kv_shape(int) const override { return {kHeads, kWidth / kHeads, kWidth / kHeads}; }

  Graph build(const ShapeClass& shape) const override {
    GraphBuilder g(shape);
    TensorId x = g.embed(&weights[0]);
    for (int i = 0; i < kLayers; ++i) {
      const auto w = [&](size_t n) { return &weights[2 + 7 * static_cast<size_t>(i) + n]; };
      g.set_layer(i);
      const TensorId q = g.linear(x, w(0)), k = g.linear(x, w(1)), v = g.linear(x, w(2));
      g.kv_write(k, v);
      TensorId y = g.attention(q, AttentionParams{kHeads, kHeads, kWidth / kHeads, kWidth / kHeads, 0.1f});
      if (i + 1 == kLayers) y = g.gather_outputs(y), x = g.gather_outputs(x);
      x = g.linear(y, w(3), nullptr, x);
      x = g.linear(g.glu(x, Activation::silu, w(4), w(5)), w(6), nullptr, x);
    }
    g.set_layer(kLayers);
    return g.finish(g.linear(x, &weights[1]));
  }

  std::deque<Weight> weights;

 private:
  void add(const char* name, int layer, int64_t n_rows, int64_t n_cols) {
    weights.push_back({name, DType::Q4_0, 1, n_rows, n_cols, nullptr, layer});
  }
};

}  // namespace tandem::test
