// The kernels of recurrent layers: every ISA against the scalar reference.
#include <array>
#include <cmath>

#include "ops/near.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::expect_near;
using test::Random;
using test::widened;

constexpr GateKind kGateKinds[] = {GateKind::sigmoid, GateKind::silu, GateKind::product, GateKind::relu};
constexpr ConvActivation kConvActivations[] = {ConvActivation::none, ConvActivation::silu};

TEST(RecurrentKernels, GateIsThatOfTheReference) {
  Random random;
  for (const Isa isa : supported_isas()) {
    for (int64_t n = 1; n <= 70; ++n) {
      for (const GateKind kind : kGateKinds) {
        const std::vector<float> x = random.normals(n), gate = random.normals(n, 4.0f);
        std::vector<float> got(x.size() + 1, 5.0f), want(x.size());
        test::rows_of(Isa::scalar).gate(kind, x.data(), gate.data(), want.data(), n);
        test::rows_of(isa).gate(kind, x.data(), gate.data(), got.data(), n);
        EXPECT_EQ(got.back(), 5.0f);
        got.pop_back();
        for (size_t at = 0; at < got.size(); ++at) {  // a factor near zero is a difference of large numbers
          EXPECT_NEAR(got[at], want[at], 1e-6 * (1 + std::fabs(x[at])) * (1 + std::fabs(gate[at])));
        }
      }
    }
  }
}

TEST(RecurrentKernels, ConvolutionIsThatOfTheReference) {
  Random random;
  for (const Isa isa : supported_isas()) {
    for (int64_t n = 1; n <= 70; ++n) {
      for (const int64_t kernel : {2, 3, 4, 16}) {
        const std::vector<float> x = random.normals(n * kernel), w = random.normals(n * (kernel + 1));
        std::vector<const float*> rows;
        for (int64_t j = 0; j < kernel; ++j) rows.push_back(x.data() + j * n);
        double of_terms = 0;  // which cancel each other in some sums
        for (size_t i = 0; i < w.size(); ++i) of_terms += std::pow(w[i] * (i < x.size() ? x[i] : 1.0), 2);
        for (const ConvActivation act : kConvActivations) {
          std::vector<float> got(static_cast<size_t>(n) + 1, 5.0f), want(static_cast<size_t>(n));
          test::rows_of(Isa::scalar).causal_conv(rows.data(), w.data(), kernel, act, want.data(), n);
          test::rows_of(isa).causal_conv(rows.data(), w.data(), kernel, act, got.data(), n);
          EXPECT_EQ(got.back(), 5.0f);
          got.pop_back();
          expect_near(got, widened(want), 1e-6, std::sqrt(of_terms));
        }
      }
    }
  }
}

TEST(RecurrentKernels, DeltaRuleIsThatOfTheReference) {
  Random random;
  for (const Isa isa : supported_isas()) {
    for (const int64_t n_cols : {1, 3, 7, 8, 9, 15, 16, 17, 31, 32}) {
      for (const int64_t dk : {1, 5, 16, 33, 128}) {
        const int64_t n = 1 + random.below(20), stride = n_cols + 3;
        const std::vector<float> q = random.normals(n * dk, 0.2f), k = random.normals(n * dk, 0.2f),
                                 v = random.normals(n * stride);
        std::vector<float> decay, beta;
        for (int64_t i = 0; i < n; ++i) {
          decay.push_back(0.8f + 0.001f * static_cast<float>(random.below(200)));
          beta.push_back(0.01f * static_cast<float>(random.below(100)));
        }
        const std::vector<float> old = random.normals(dk * stride);
        std::vector<float> state = random.normals(dk * stride), other = state;
        const bool in_place = random.below(2) == 1;
        std::vector<float> y(static_cast<size_t>(n * stride), 7.0f), other_y = y;
        if (in_place) state = other = old;
        DeltaRuleTile tile{};
        tile.state_stride = tile.v_stride = tile.y_stride = stride;
        tile.head_dim_k = dk;
        tile.n_cols = n_cols;
        tile.n_tokens = n;
        tile.q = q.data();
        tile.k = k.data();
        tile.v = v.data();
        tile.decay = decay.data();
        tile.beta = beta.data();
        tile.state = state.data();
        tile.old = in_place ? tile.state : old.data();
        tile.y = y.data();
        test::rows_of(Isa::scalar).delta_rule(tile);
        tile.state = other.data();
        tile.old = in_place ? tile.state : old.data();
        tile.y = other_y.data();
        test::rows_of(isa).delta_rule(tile);
        expect_near(other_y, widened(y), 1e-5);
        expect_near(other, widened(state), 1e-5);  // the columns beside the tile too, which stay
      }
    }
  }
}

// Decays from those that keep everything to those that leave nothing, a kind for each chunk.
std::vector<float> random_decays(Random& random, int64_t n) {
  const float slowest = std::array{1.0f, 0.99f, 0.5f, 1e-6f}[static_cast<size_t>(random.below(4))];
  std::vector<float> decays;
  for (int64_t i = 0; i < n; ++i)
    decays.push_back(
        random.below(8) == 0 ? 1e-6f : std::min(1.0f, slowest + 0.01f * random.normal() * random.normal()));
  for (float& d : decays) d = std::max(d, 0.0f);
  return decays;
}

void make_unit_rows(std::vector<float>& x, int64_t n) {
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(n)) {
    float squares = 1e-9f;
    for (size_t i = at; i < at + static_cast<size_t>(n); ++i) squares += x[i] * x[i];
    for (size_t i = at; i < at + static_cast<size_t>(n); ++i) x[i] /= std::sqrt(squares);
  }
}

constexpr int64_t kPanel = 64;  // columns
constexpr int64_t kChunkLengths[] = {1, 2, 3, 5, 6, 7, 13, 16, 17, 25, 31, 32};
static_assert(kChunkLengths[std::size(kChunkLengths) - 1] == kStateChunk);

TEST(RecurrentKernels, LowerProductsAreThoseOfTheReference) {
  Random random;
  for (const Isa isa : supported_isas()) {
    for (const int64_t n_rows : kChunkLengths) {
      for (const int64_t n : {1, 5, 16, 33, 128}) {
        const int64_t stride = n + random.below(4), to_stride = n_rows + random.below(3);
        const std::vector<float> a = random.normals(n_rows * stride), b = random.normals(n_rows * stride);
        std::vector<float> got(static_cast<size_t>(n_rows * to_stride), 7.0f), want = got;
        test::rows_of(Isa::scalar)
            .lower_products({a.data(), b.data(), stride, n_rows, n, want.data(), to_stride});
        test::rows_of(isa).lower_products({a.data(), b.data(), stride, n_rows, n, got.data(), to_stride});
        expect_near(got, widened(want), 1e-5, 1.0);  // the rest too, which stays
      }
    }
  }
}

// Products that no kernel needs are NaN.
std::vector<float> products_of_rows(const std::vector<float>& a, const std::vector<float>& b, int64_t n_rows,
                                    int64_t n) {
  std::vector<float> to(static_cast<size_t>(n_rows * kStateChunk), std::nanf(""));
  test::rows_of(Isa::scalar).lower_products({a.data(), b.data(), n, n_rows, n, to.data(), kStateChunk});
  return to;
}

TEST(RecurrentKernels, ChunksOfTheDeltaRuleAreThoseOfTheReference) {
  Random random;
  for (const Isa isa : supported_isas()) {
    for (const int64_t n_cols : {1, 7, 8, 9, 15, 16, 17, 31, 33, 48, 63, 64}) {
      for (const int64_t dk : {1, 5, 16, 33, 128}) {
        const int64_t n = kChunkLengths[random.below(std::size(kChunkLengths))], stride = n_cols + 3;
        SCOPED_TRACE(format("{}: {} tokens, {} rows, {} columns", isa_name(isa), n, dk, n_cols));
        std::vector<float> q = random.normals(n * dk), k = random.normals(n * dk);
        const std::vector<float> v = random.normals(n * stride), decay = random_decays(random, n);
        make_unit_rows(q, dk);
        make_unit_rows(k, dk);
        std::vector<float> beta, scratch(kStateScratch, std::nanf(""));
        for (int64_t i = 0; i < n; ++i) beta.push_back(0.01f * static_cast<float>(random.below(101)));
        const std::vector<float> keys = products_of_rows(k, k, n, dk),
                                 queries = products_of_rows(q, k, n, dk);
        std::vector<float> state(static_cast<size_t>(dk * kPanel), 0.0f);
        for (int64_t i = 0; i < dk * n_cols; ++i)
          state[static_cast<size_t>(i / n_cols * kPanel + i % n_cols)] = random.normal();
        std::vector<float> other = state, y(static_cast<size_t>(n * stride), 7.0f), other_y = y;
        DeltaRuleTile tile{};
        tile.state_stride = kPanel;
        tile.v_stride = tile.y_stride = stride;
        tile.head_dim_k = dk;
        tile.n_cols = n_cols;
        tile.n_tokens = n;
        tile.q = q.data();
        tile.k = k.data();
        tile.v = v.data();
        tile.decay = decay.data();
        tile.beta = beta.data();
        tile.keys = keys.data();
        tile.queries = queries.data();
        tile.scratch = scratch.data();
        tile.old = tile.state = state.data();
        tile.y = y.data();
        test::rows_of(Isa::scalar).delta_rule_chunk(tile);
        tile.old = tile.state = other.data();
        tile.y = other_y.data();
        test::rows_of(isa).delta_rule_chunk(tile);
        expect_near(other_y, widened(y), 1e-5, 1.0);
        expect_near(other, widened(state), 1e-5, 1.0);  // the columns beside the tile too, which are zero
      }
    }
  }
}

// States that decay fast and slowly. Token by token in any place; chunks in a panel.
TEST(RecurrentKernels, ScanIsThatOfTheReference) {
  Random random;
  for (const Isa isa : supported_isas()) {
    for (const int64_t n_cols : {1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64}) {
      for (const int64_t n_state : {1, 5, 16, 33, 128}) {
        for (const bool is_chunk : {false, true}) {
          const int64_t n = kChunkLengths[random.below(std::size(kChunkLengths))];
          SCOPED_TRACE(format("{}: {} tokens, {} rows, {} columns", isa_name(isa), n, n_state, n_cols));
          const int64_t stride = n_cols + 3, row = 2 * n_state + stride,
                        state_stride = is_chunk ? kPanel : stride;
          const std::vector<float> xbc = random.normals(n * row, 0.5f), decay = random_decays(random, n);
          std::vector<float> dt, scratch(kStateScratch, std::nanf(""));
          for (int64_t i = 0; i < n; ++i) dt.push_back(0.01f * static_cast<float>(random.below(300)));
          std::vector<float> products(static_cast<size_t>(n * kStateChunk), std::nanf(""));
          const std::vector<float> old = random.normals(n_state * state_stride);
          std::vector<float> state = random.normals(n_state * state_stride), other = state;
          const bool in_place = is_chunk || random.below(2) == 1;
          if (in_place) state = other = old;
          std::vector<float> y(static_cast<size_t>(n * stride), 7.0f), other_y = y;
          SsmScanTile tile{};
          tile.state_stride = state_stride;
          tile.y_stride = stride;
          tile.n_state = n_state;
          tile.n_cols = n_cols;
          tile.n_tokens = n;
          tile.x = xbc.data();
          tile.b = xbc.data() + stride;
          tile.c = tile.b + n_state;
          tile.stride = tile.bc_stride = row;
          tile.decay = decay.data();
          tile.dt = dt.data();
          tile.skip = random.normal();
          tile.products = products.data();
          tile.scratch = scratch.data();
          test::rows_of(Isa::scalar)
              .lower_products({tile.c, tile.b, row, n, n_state, products.data(), kStateChunk});
          tile.state = state.data();
          tile.old = in_place ? tile.state : old.data();
          tile.y = y.data();
          test::rows_of(Isa::scalar).ssm_scan(tile);
          tile.state = other.data();
          tile.old = in_place ? tile.state : old.data();
          tile.y = other_y.data();
          is_chunk ? test::rows_of(isa).ssm_scan_chunk(tile) : test::rows_of(isa).ssm_scan(tile);
          expect_near(other_y, widened(y), 1e-5, 1.0);
          if (is_chunk) {  // the columns beside the tile may change, up to a whole vector
            for (size_t i = 0; i < state.size(); ++i) {
              if (static_cast<int64_t>(i) % kPanel >= n_cols) state[i] = other[i] = 0.0f;
            }
          }
          expect_near(other, widened(state), 1e-5, 1.0);  // in any place the other columns too, which stay
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
