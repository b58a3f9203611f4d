// A cache with random rows and queries on it, for tests of attention: every ISA, kernel and op, against a reference in double
// precision that computes all scores.
#pragma once

#include <array>
#include <cmath>

#include "device/cache_dtypes.h"
#include "gguf/quants.h"
#include "ops/row_harness.h"

namespace tandem::cpu::test {

// A cache of one layer with random rows, several sequences with shuffled blocks, and queries on it.
struct AttentionCase {
  int64_t n_head = 1, n_head_kv = 1, head_dim_k = 64, head_dim_v = 64, block_size = 16;
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  int64_t window = 0;
  float softcap = 0;
  bool sinks = false;
  bool values_in_keys = false;
  bool spills = false;                       // the second half of the blocks is elsewhere
  std::vector<int64_t> lengths{40};          // cached positions of each sequence
  std::vector<std::vector<int32_t>> tokens;  // query positions, by sequence; empty: the last one of each
};

// The cache as floats, and its bytes.
struct CachePool {
  DType dtype;
  int64_t head_dim;
  std::vector<std::byte> bytes;

  CachePool(Random& random, DType t, int64_t dim, int64_t rows) : dtype(t), head_dim(dim) {
    const size_t row = row_bytes(t, dim);
    bytes.assign(row * static_cast<size_t>(rows), std::byte{0xff});  // NaN in unused rows
    for (int64_t r = 0; r < rows; ++r) store(r, random.normals(dim));
  }
  void store(int64_t row, const std::vector<float>& x) {
    quantize_row(dtype, x.data(), bytes.data() + static_cast<size_t>(row) * row_bytes(dtype, head_dim),
                 head_dim);
  }
  std::vector<float> row(int64_t r) const {
    std::vector<float> x(static_cast<size_t>(head_dim));
    dequantize_row(dtype, bytes.data() + static_cast<size_t>(r) * row_bytes(dtype, head_dim), x.data(),
                   head_dim);
    return x;
  }
  void poison(int64_t r) {
    const size_t size = row_bytes(dtype, head_dim);
    std::memset(bytes.data() + static_cast<size_t>(r) * size, 0xff, size);
  }
};

class AttentionScene {
 public:
  AttentionScene(Random& random, const AttentionCase& c)
      : case_(c),
        bench(shape_of(c)),
        k(pool(random, c, c.k_dtype, c.head_dim_k)),
        v(pool(random, c, c.v_dtype, c.head_dim_v)) {
    AttentionParams op{c.n_head,
                       c.n_head_kv,
                       c.head_dim_k,
                       c.head_dim_v,
                       1.0f / std::sqrt(static_cast<float>(c.head_dim_k)),
                       c.softcap,
                       c.window};
    op.values_in_keys = c.values_in_keys;
    if (c.sinks) sinks = random.normals(c.n_head, 2.0f);
    q_id = bench.activation(c.n_head * c.head_dim_k);
    bench.builder.set_layer(0);
    y_id = bench.builder.attention(q_id, op, c.sinks ? bench.weight(sinks) : nullptr);
    bench.finish(y_id);
    const bool own_values = !c.values_in_keys;
    bench.kv.push_back({k.bytes.data(), own_values ? v.bytes.data() : nullptr, c.k_dtype, c.v_dtype,
                        c.n_head_kv, c.head_dim_k, own_values ? c.head_dim_v : 0, c.block_size, n_blocks(c)});
    scale = op.scale;
    fill_inputs(random);
    if (c.spills) spill();
  }

  std::vector<float> run(Isa isa, int n_threads) {
    const int64_t n = static_cast<int64_t>(positions.size());
    float* y = bench.data(y_id);
    const size_t size = static_cast<size_t>(n * case_.n_head * case_.head_dim_v);
    std::fill(y, y + size, std::nanf(""));
    bench.run(isa, {n, 0}, n_threads);
    return {y, y + size};
  }

  // Row of the pools for a position of a sequence and head.
  int64_t cache_row(int64_t sequence, int64_t position, int64_t head) const {
    const int64_t block =
        table[static_cast<size_t>(sequence * max_blocks(case_) + position / case_.block_size)];
    return (block * case_.n_head_kv + head) * case_.block_size + position % case_.block_size;
  }

  std::vector<double> expected(int64_t token, int64_t head) const {
    const int64_t kv_head = head / (case_.n_head / case_.n_head_kv),
                  own = positions[static_cast<size_t>(token)];
    const int64_t sequence = sequences[static_cast<size_t>(token)];
    std::vector<double> y(static_cast<size_t>(case_.head_dim_v));
    double total = case_.sinks ? std::exp(static_cast<double>(sinks[static_cast<size_t>(head)])) : 0.0;
    for (int64_t p = 0; p <= own; ++p) {
      if (case_.window > 0 && p <= own - case_.window) continue;
      const std::vector<float> key = k.row(cache_row(sequence, p, kv_head)),
                               value = case_.values_in_keys ? key : v.row(cache_row(sequence, p, kv_head));
      double s = 0;
      for (size_t d = 0; d < key.size(); ++d) {
        s += static_cast<double>(
                 q[static_cast<size_t>((token * case_.n_head + head) * case_.head_dim_k) + d]) *
             key[d];
      }
      s *= scale;
      if (case_.softcap > 0) s = case_.softcap * std::tanh(s / case_.softcap);
      total += std::exp(s);
      for (size_t d = 0; d < y.size(); ++d) y[d] += std::exp(s) * value[d];
    }
    for (double& x : y) x /= total;
    return y;
  }

  void check(const std::vector<float>& y, const std::string& what, double tolerance = 1e-5) {
    if (expected_.empty()) {
      for (size_t t = 0; t < positions.size(); ++t) {
        for (int64_t h = 0; h < case_.n_head; ++h) expected_.push_back(expected(static_cast<int64_t>(t), h));
      }
    }
    double worst = 0, scale_of_y = 0;
    for (size_t t = 0; t < positions.size(); ++t) {
      for (int64_t h = 0; h < case_.n_head; ++h) {
        const std::vector<double>& want =
            expected_[t * static_cast<size_t>(case_.n_head) + static_cast<size_t>(h)];
        for (size_t d = 0; d < want.size(); ++d) {
          const float got =
              y[(t * static_cast<size_t>(case_.n_head) + static_cast<size_t>(h)) * want.size() + d];
          ASSERT_TRUE(std::isfinite(got)) << what << " token " << t << " head " << h << " column " << d;
          worst = std::max(worst, std::fabs(got - want[d]));
          scale_of_y = std::max(scale_of_y, std::fabs(want[d]));
        }
      }
    }
    EXPECT_LE(worst, tolerance * std::max(scale_of_y, 0.1)) << what;
  }

  const AttentionCase case_;
  OpBench bench;
  CachePool k, v;
  TensorId q_id, y_id;
  float scale;
  std::vector<float> q, sinks;
  std::vector<int32_t> positions, sequences, table;

 private:
  static int64_t max_blocks(const AttentionCase& c) {
    return *std::max_element(c.lengths.begin(), c.lengths.end()) / c.block_size + 2;
  }
  static int64_t n_blocks(const AttentionCase& c) {
    return max_blocks(c) * static_cast<int64_t>(c.lengths.size()) + 3;
  }
  static ShapeClass shape_of(const AttentionCase& c) {
    int64_t n = c.tokens.empty() ? static_cast<int64_t>(c.lengths.size()) : 0;
    for (const auto& t : c.tokens) n += static_cast<int64_t>(t.size());
    return {n, 1, static_cast<int64_t>(c.lengths.size()), max_blocks(c)};
  }
  static CachePool pool(Random& random, const AttentionCase& c, DType dtype, int64_t dim) {
    return CachePool(random, dtype, dim, n_blocks(c) * c.n_head_kv * c.block_size);
  }

  void fill_inputs(Random& random) {
    std::vector<int32_t> blocks(static_cast<size_t>(n_blocks(case_)));
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
    random.shuffle(blocks);
    table.assign(blocks.begin(),
                 blocks.begin() + static_cast<int64_t>(case_.lengths.size()) * max_blocks(case_));
    for (size_t s = 0; s < case_.lengths.size(); ++s) {
      // Unused rows must not be read.
      for (int64_t p = case_.lengths[s]; p < max_blocks(case_) * case_.block_size; ++p) {
        for (int64_t h = 0; h < case_.n_head_kv; ++h) {
          k.poison(cache_row(static_cast<int64_t>(s), p, h));
          v.poison(cache_row(static_cast<int64_t>(s), p, h));
        }
      }
      const std::vector<int32_t> asked =
          case_.tokens.empty() ? std::vector<int32_t>{static_cast<int32_t>(case_.lengths[s] - 1)}
                               : case_.tokens[s];
      for (int32_t p : asked) {
        positions.push_back(p);
        sequences.push_back(static_cast<int32_t>(s));
      }
    }
    // The tokens of a step may be in any order.
    std::vector<size_t> order(positions.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (case_.lengths.size() > 1) random.shuffle(order);
    std::vector<int32_t> p, s;
    for (size_t i : order) {
      p.push_back(positions[i]);
      s.push_back(sequences[i]);
    }
    positions = p;
    sequences = s;
    q = random.normals(static_cast<int64_t>(positions.size()) * case_.n_head * case_.head_dim_k);
    std::copy(q.begin(), q.end(), bench.data(q_id));
    std::copy(positions.begin(), positions.end(), bench.input(Input::positions));
    std::copy(sequences.begin(), sequences.end(), bench.input(Input::sequences));
    std::copy(table.begin(), table.end(), bench.input(Input::block_table));
  }

  void spill() {
    auto& layer = bench.kv.back();
    layer.n_spilled = layer.n_blocks / 2;
    layer.n_blocks -= layer.n_spilled;
    const auto cut = [&](const CachePool& pool, std::array<std::vector<std::byte>, 2>& halves) {
      const auto at = static_cast<ptrdiff_t>(pool.bytes.size()) / n_blocks(case_) * layer.n_blocks;
      halves = {std::vector(pool.bytes.begin(), pool.bytes.begin() + at),
                std::vector(pool.bytes.begin() + at, pool.bytes.end())};
    };
    cut(k, k_halves_);
    cut(v, v_halves_);
    layer.k = k_halves_[0].data(), layer.k_spilled = k_halves_[1].data();
    layer.v = v_halves_[0].data(), layer.v_spilled = v_halves_[1].data();
  }

  std::array<std::vector<std::byte>, 2> k_halves_, v_halves_;
  std::vector<std::vector<double>> expected_;  // [token * n_head + head], filled by the first check
};

inline std::vector<int32_t> range(int32_t first, int32_t last) {
  std::vector<int32_t> r;
  for (int32_t p = first; p < last; ++p) r.push_back(p);
  return r;
}

inline void check_all_isas(Random& random, const AttentionCase& c, const std::string& what) {
  AttentionScene scene(random, c);
  for (Isa isa : supported_isas()) {
    const std::string name = what + " " + std::string(isa_name(isa));
    const std::vector<float> one = scene.run(isa, 1);
    AttentionCall call;
    call.k_dtype = c.k_dtype;
    call.v_dtype = c.v_dtype;
    call.values_in_keys = c.values_in_keys;
    size_t n_tokens = 1;
    for (const auto& tokens : c.tokens) n_tokens = std::max(n_tokens, tokens.size());
    call.n_queries = c.n_head / c.n_head_kv * static_cast<int64_t>(n_tokens);
    scene.check(one, name, attention_tolerance(isa, call));
    for (int threads = 2; threads <= 4; ++threads) {
      const std::vector<float> more = scene.run(isa, threads);
      EXPECT_EQ(std::memcmp(one.data(), more.data(), one.size() * sizeof(float)), 0)
          << name << " threads " << threads;
    }
  }
}

}  // namespace tandem::cpu::test
