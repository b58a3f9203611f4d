// The ops of recurrent layers against double precision, for tokens of several sequences in uneven steps.
#include <cmath>

#include "ops/near.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::expect_near;
using test::OpBench;
using test::Random;

TEST(Columns, OfEveryRun) {
  for (const Isa isa : supported_isas()) {
    ShapeClass shape;
    shape.max_tokens = shape.max_outputs = 3;
    OpBench bench(shape);
    const TensorId x = bench.activation(20), y = bench.builder.columns(x, {5, 1, 3});
    bench.finish(y);
    for (int64_t i = 0; i < 60; ++i) bench.data(x)[i] = static_cast<float>(i);
    bench.run(isa, {3, 1}, 2);
    for (int64_t i = 0; i < 36; ++i)
      EXPECT_EQ(bench.data(y)[i], static_cast<float>(i / 12 * 20 + i % 12 / 3 * 5 + 1 + i % 3));
  }
}

// Some sequences, whose tokens come in steps of uneven sizes, a few of each sequence in a step. Each has two
// state slots, which it reads and writes in turn.
struct Texts {
  explicit Texts(std::vector<int64_t> lengths_of_texts) : lengths(std::move(lengths_of_texts)) {}

  // Calls step(tokens): the tokens (text, position) of each step.
  struct Token {
    size_t text;
    int64_t position;
  };
  template <class Step>
  void for_each_step(Random& random, int64_t most, Step&& step) const {
    std::vector<int64_t> done(lengths.size(), 0);
    for (;;) {
      std::vector<Token> tokens;
      for (size_t t = 0; t < lengths.size(); ++t) {
        const int64_t left = std::min(lengths[t] - done[t], most - static_cast<int64_t>(tokens.size()));
        const int64_t n = left > 0 ? 1 + random.below(left) : 0;
        for (int64_t i = 0; i < n; ++i) tokens.push_back({t, done[t]++});
      }
      if (tokens.empty()) return;
      step(tokens);
    }
  }

  std::vector<int64_t> lengths;
};

// Runs one op over texts and collects its rows by text and position.
class TextRunner {
 public:
  static constexpr int64_t kMost = 119;  // tokens of a step

  TextRunner(OpBench& bench, size_t n_texts) : bench_(bench), turn_(n_texts, 0) {}

  static ShapeClass shape(size_t n_texts) {
    ShapeClass shape;
    shape.max_tokens = shape.max_outputs = kMost;
    shape.max_sequences = static_cast<int64_t>(n_texts) + 1;
    return shape;
  }

  // As the parts of steps do (exec/parts.h), a step may begin with a later sequence than the first, and may write the state
  // that it reads.
  // fill(row, token) sets the op's inputs; take(row, token) reads its result.
  template <class Fill, class Take>
  void run(Random& random, const Texts& texts, Isa isa, Fill&& fill, Take&& take) {
    texts.for_each_step(random, 1 + random.below(kMost), [&](const std::vector<Texts::Token>& tokens) {
      auto sequence = static_cast<int32_t>(random.below(2)) - 1;
      if (sequence == 0) bench_.input(Input::states)[0] = bench_.input(Input::states)[1] = turn_[0];
      for (size_t row = 0; row < tokens.size(); ++row) {
        const Texts::Token& token = tokens[row];
        if (row == 0 || tokens[row - 1].text != token.text) {
          ++sequence;
          const auto first = static_cast<int32_t>(2 * token.text);
          bench_.input(Input::states)[2 * sequence] = first + turn_[token.text];
          if (random.below(2) == 0) turn_[token.text] = 1 - turn_[token.text];
          bench_.input(Input::states)[2 * sequence + 1] = first + turn_[token.text];
        }
        bench_.input(Input::sequences)[row] = sequence;
        bench_.input(Input::positions)[row] = static_cast<int32_t>(token.position);
        fill(static_cast<int64_t>(row), token);
      }
      bench_.run(isa, {static_cast<int64_t>(tokens.size()), 1}, 1 + static_cast<int>(random.below(3)));
      for (size_t row = 0; row < tokens.size(); ++row) take(static_cast<int64_t>(row), tokens[row]);
    });
  }

 private:
  OpBench& bench_;
  std::vector<int32_t> turn_;
};

// A layer whose state slots hold NaN until they are written.
struct StatePool {
  StatePool(int64_t n_conv, int64_t n_recurrence, size_t n_texts)
      : conv(static_cast<size_t>(n_conv) * 2 * n_texts, std::nanf("")),
        recurrence(static_cast<size_t>(n_recurrence) * 2 * n_texts, std::nanf("")),
        layer{reinterpret_cast<std::byte*>(conv.data()),
              reinterpret_cast<std::byte*>(recurrence.data()),
              DType::F32,
              DType::F32,
              1,
              n_conv,
              n_recurrence,
              1,
              static_cast<int64_t>(2 * n_texts)} {}
  std::vector<float> conv, recurrence;
  KvLayer layer;
};

TEST(CausalConv, IsTheConvolutionOfEachTextWhateverTheSteps) {
  Random random;
  const Texts texts({40, 1, 3, 27});
  for (const Isa isa : supported_isas()) {
    for (const int64_t n_channels : {1, 13, 256, 300}) {
      for (const int64_t kernel : {2, 4, 16}) {
        OpBench bench(TextRunner::shape(4));
        const std::vector<float> w = random.normals(n_channels * kernel), bias = random.normals(n_channels);
        const bool has_bias = random.below(2) == 1, is_silu = random.below(2) == 1;
        const TensorId x = bench.activation(n_channels);
        bench.builder.set_layer(0);
        const TensorId y =
            bench.builder.causal_conv(x, bench.weight(w, n_channels), has_bias ? bench.weight(bias) : nullptr,
                                      is_silu ? ConvActivation::silu : ConvActivation::none);
        bench.finish(y);
        StatePool pool((kernel - 1) * n_channels, 1, 4);
        bench.kv = {pool.layer};
        std::vector<std::vector<float>> inputs;
        for (const int64_t n : texts.lengths) inputs.push_back(random.normals(n * n_channels));
        std::vector<float> got;
        std::vector<double> want;
        TextRunner(bench, 4).run(
            random, texts, isa,
            [&](int64_t row, const Texts::Token& t) {
              std::copy_n(inputs[t.text].data() + t.position * n_channels, n_channels,
                          bench.data(x) + row * n_channels);
            },
            [&](int64_t row, const Texts::Token& t) {
              for (int64_t c = 0; c < n_channels; ++c) {
                double sum = has_bias ? bias[static_cast<size_t>(c)] : 0.0f;
                for (int64_t j = std::max<int64_t>(0, kernel - 1 - t.position); j < kernel; ++j) {
                  const int64_t at = t.position - (kernel - 1) + j;
                  sum += static_cast<double>(w[static_cast<size_t>(c * kernel + j)]) *
                         inputs[t.text][static_cast<size_t>(at * n_channels + c)];
                }
                want.push_back(is_silu ? sum / (1 + std::exp(-sum)) : sum);
                got.push_back(bench.data(y)[row * n_channels + c]);
              }
            });
        expect_near(got, want, 1e-5);
      }
    }
  }
}

// In double precision, as the formula says.
class Recurrence {
 public:
  explicit Recurrence(const DeltaRuleParams& p)
      : p_(p), state_(static_cast<size_t>(p.n_head_v * p.head_dim_k * p.head_dim_v), 0.0) {}

  std::vector<double> next(const float* qkv, const float* beta, const float* alpha, const float* decay,
                           const float* dt_bias) {
    std::vector<double> y;
    for (int64_t h = 0; h < p_.n_head_v; ++h) {
      const int64_t key = p_.order == HeadOrder::tiled ? h % p_.n_head_k : h / (p_.n_head_v / p_.n_head_k);
      std::vector<double> q = unit(qkv + key * p_.head_dim_k),
                          k = unit(qkv + (p_.n_head_k + key) * p_.head_dim_k);
      const float* v = qkv + 2 * p_.n_head_k * p_.head_dim_k + h * p_.head_dim_v;
      const double rate = static_cast<double>(alpha[h]) + dt_bias[h];
      const double keep = std::exp(decay[h] * std::log1p(std::exp(rate)));
      for (int64_t j = 0; j < p_.head_dim_v; ++j) {
        double known = 0, out = 0;
        for (int64_t i = 0; i < p_.head_dim_k; ++i)
          known += (at(h, i, j) *= keep) * k[static_cast<size_t>(i)];
        const double correction = (v[j] - known) / (1 + std::exp(-static_cast<double>(beta[h])));
        for (int64_t i = 0; i < p_.head_dim_k; ++i) {
          at(h, i, j) += k[static_cast<size_t>(i)] * correction;
          out += at(h, i, j) * q[static_cast<size_t>(i)];
        }
        y.push_back(out / std::sqrt(static_cast<double>(p_.head_dim_k)));
      }
    }
    return y;
  }

 private:
  std::vector<double> unit(const float* x) const {
    double squares = 1e-6;
    for (int64_t i = 0; i < p_.head_dim_k; ++i) squares += static_cast<double>(x[i]) * x[i];
    std::vector<double> result;
    for (int64_t i = 0; i < p_.head_dim_k; ++i) result.push_back(x[i] / std::sqrt(squares));
    return result;
  }
  double& at(int64_t h, int64_t i, int64_t j) {
    return state_[static_cast<size_t>((h * p_.head_dim_k + i) * p_.head_dim_v + j)];
  }

  DeltaRuleParams p_;
  std::vector<double> state_;
};

TEST(DeltaRule, IsTheRecurrenceOfEachTextWhateverTheSteps) {
  Random random;
  const Texts texts({170, 1, 38, 73});
  const DeltaRuleParams sizes[] = {
      {1, 1, 1, 1}, {2, 4, 16, 24}, {2, 6, 32, 16, HeadOrder::tiled}, {1, 3, 33, 40}, {2, 2, 128, 128}};
  for (const Isa isa : supported_isas()) {
    for (const DeltaRuleParams& p : sizes) {
      SCOPED_TRACE(std::string(isa_name(isa)) + " keys of " + std::to_string(p.head_dim_k));
      OpBench bench(TextRunner::shape(4));
      std::vector<float> decay = random.normals(p.n_head_v), dt_bias = random.normals(p.n_head_v);
      for (float& d : decay) d = -std::exp(2 * d);
      const TensorId qkv = bench.activation(p.n_qkv()), beta = bench.activation(p.n_head_v),
                     alpha = bench.activation(p.n_head_v);
      bench.builder.set_layer(0);
      const TensorId y =
          bench.builder.delta_rule(qkv, beta, alpha, p, bench.weight(decay), bench.weight(dt_bias));
      bench.finish(y);
      StatePool pool(1, p.n_head_v * p.head_dim_k * p.head_dim_v, 4);
      bench.kv = {pool.layer};
      std::vector<Recurrence> reference(4, Recurrence(p));
      std::vector<float> got;
      std::vector<double> want;
      TextRunner(bench, 4).run(
          random, texts, isa,
          [&](int64_t row, const Texts::Token&) {
            for (const auto& [id, n] :
                 {std::pair(qkv, p.n_qkv()), std::pair(beta, p.n_head_v), std::pair(alpha, p.n_head_v)}) {
              for (int64_t i = 0; i < n; ++i) bench.data(id)[row * n + i] = random.normal();
            }
          },
          [&](int64_t row, const Texts::Token& t) {
            const std::vector<double> out =
                reference[t.text].next(bench.data(qkv) + row * p.n_qkv(), bench.data(beta) + row * p.n_head_v,
                                       bench.data(alpha) + row * p.n_head_v, decay.data(), dt_bias.data());
            want.insert(want.end(), out.begin(), out.end());
            const auto n = static_cast<int64_t>(out.size());
            got.insert(got.end(), bench.data(y) + row * n, bench.data(y) + (row + 1) * n);
          });
      expect_near(got, want, 2e-5);
    }
  }
}

// In double precision, as the formula says.
class Scan {
 public:
  explicit Scan(const SsmScanParams& p) : p_(p), state_(static_cast<size_t>(p.n_inner() * p.n_state), 0.0) {}

  std::vector<double> next(const float* xbc, const float* dt_in, const float* decay, const float* dt_bias,
                           const float* skip) {
    std::vector<double> result;
    for (int64_t h = 0; h < p_.n_head; ++h) {
      const float* b = xbc + p_.n_inner() + h / (p_.n_head / p_.n_group) * p_.n_state;
      const float* c = b + p_.n_group * p_.n_state;
      const double dt = std::log1p(std::exp(static_cast<double>(dt_in[h]) + dt_bias[h]));
      const double keep = std::exp(decay[h] * dt);
      for (int64_t j = 0; j < p_.head_dim; ++j) {
        const double x = xbc[h * p_.head_dim + j];
        double y = skip[h] * x;
        for (int64_t i = 0; i < p_.n_state; ++i) {
          double& s = state_[static_cast<size_t>((h * p_.n_state + i) * p_.head_dim + j)];
          s = keep * s + b[i] * dt * x;
          y += s * c[i];
        }
        result.push_back(y);
      }
    }
    return result;
  }

 private:
  SsmScanParams p_;
  std::vector<double> state_;
};

TEST(SsmScan, IsTheRecurrenceOfEachTextWhateverTheSteps) {
  Random random;
  const Texts texts({170, 1, 38, 73});
  const SsmScanParams sizes[] = {{1, 1, 1, 1}, {4, 24, 2, 16}, {3, 40, 1, 33}, {6, 64, 3, 128}};
  for (const Isa isa : supported_isas()) {
    for (const SsmScanParams& p : sizes) {
      SCOPED_TRACE(std::string(isa_name(isa)) + " states of " + std::to_string(p.n_state));
      OpBench bench(TextRunner::shape(4));
      const std::vector<float> dt_bias = random.normals(p.n_head), skip = random.normals(p.n_head);
      std::vector<float> decay = random.normals(p.n_head);
      for (float& d : decay) d = -std::exp(2 * d);
      const TensorId xbc = bench.activation(p.n_xbc()), dt = bench.activation(p.n_head);
      bench.builder.set_layer(0);
      const TensorId y = bench.builder.ssm_scan(
          xbc, dt, p, {bench.weight(decay), bench.weight(dt_bias), bench.weight(skip)});
      bench.finish(y);
      StatePool pool(1, p.n_inner() * p.n_state, 4);
      bench.kv = {pool.layer};
      std::vector<Scan> reference(4, Scan(p));
      std::vector<float> got;
      std::vector<double> want;
      TextRunner(bench, 4).run(
          random, texts, isa,
          [&](int64_t row, const Texts::Token&) {
            for (const auto& [id, n] : {std::pair(xbc, p.n_xbc()), std::pair(dt, p.n_head)}) {
              for (int64_t i = 0; i < n; ++i) bench.data(id)[row * n + i] = random.normal();
            }
          },
          [&](int64_t row, const Texts::Token& t) {
            const std::vector<double> out =
                reference[t.text].next(bench.data(xbc) + row * p.n_xbc(), bench.data(dt) + row * p.n_head,
                                       decay.data(), dt_bias.data(), skip.data());
            want.insert(want.end(), out.begin(), out.end());
            got.insert(got.end(), bench.data(y) + row * p.n_inner(), bench.data(y) + (row + 1) * p.n_inner());
          });
      expect_near(got, want, 2e-5);
    }
  }
}

// A weight with a row for each group of a row of x.
TEST(Norms, OfGroupsWithWeightsOfTheirOwn) {
  Random random;
  for (const Isa isa : supported_isas()) {
    for (const int64_t group : {5, 16, 40}) {
      ShapeClass shape;
      shape.max_tokens = shape.max_outputs = 3;
      OpBench bench(shape);
      const std::vector<float> w = random.normals(4 * group), values = random.normals(3 * 4 * group);
      const TensorId x = bench.activation(4 * group);
      const TensorId y = bench.builder.norm(x, {NormKind::rms, 1e-5f, group}, bench.weight(w, 4));
      bench.finish(y);
      std::copy(values.begin(), values.end(), bench.data(x));
      bench.run(isa, {3, 1}, 2);
      std::vector<double> want;
      for (int64_t at = 0; at < 12 * group; at += group) {
        double squares = 0;
        for (int64_t i = 0; i < group; ++i) squares += std::pow(values[static_cast<size_t>(at + i)], 2);
        for (int64_t i = 0; i < group; ++i) {
          want.push_back(values[static_cast<size_t>(at + i)] * w[static_cast<size_t>(at % (4 * group) + i)] /
                         std::sqrt(squares / static_cast<double>(group) + 1e-5));
        }
      }
      expect_near(std::span(bench.data(y), static_cast<size_t>(12 * group)), want, 1e-5);
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
