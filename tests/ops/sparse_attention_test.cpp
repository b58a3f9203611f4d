// Sparse reads of an indexed cache: kernels of every ISA against the scalar ones, the op against SparQ in double precision.
#include <cmath>
#include <numeric>

#include "device/cache_dtypes.h"
#include "device/kv_index.h"
#include "gguf/quants.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::OpBench;
using test::Random;

struct SparseCase {
  int64_t n_head = 2, n_head_kv = 2, head_dim_k = 64, head_dim_v = 64, block_size = 32;
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  SparseReads sparse{16, 40};
  float softcap = 0;
  bool sinks = false;
  std::vector<int64_t> positions{299};  // of the tokens, each of a sequence of its own
  bool fragmented = true;               // blocks in any order
};

// A layer's cache with an index, in which nothing but the sequences' rows is usable.
class SparseScene {
 public:
  SparseScene(Random& random, const SparseCase& c)
      : case_(c), bench(ShapeClass{n_tokens(c), 1, n_tokens(c), max_blocks(c)}) {
    AttentionParams op{
        c.n_head, c.n_head_kv, c.head_dim_k, c.head_dim_v, 1.0f / std::sqrt(static_cast<float>(c.head_dim_k)),
        c.softcap};
    scale_ = op.scale;
    if (c.sinks) sinks_ = random.normals(c.n_head, 2.0f);
    const Weight* sinks = c.sinks ? bench.weight(sinks_) : nullptr;
    q_id = bench.activation(c.n_head * c.head_dim_k);
    bench.builder.set_layer(0);
    dense_id = bench.builder.attention(q_id, op, sinks);
    op.sparse = c.sparse;
    y_id = bench.builder.attention(q_id, op, sinks);
    bench.finish(y_id);
    allocate(random);
    fill_inputs(random);
  }

  // Results [n_tokens, n_head * head_dim_v].
  std::vector<float> run(Isa isa, int n_threads, bool sparse = true) {
    const size_t node = bench.graph.nodes.size() - (sparse ? 2 : 3);
    float* y = bench.data(sparse ? y_id : dense_id);
    const size_t size = case_.positions.size() * static_cast<size_t>(row_floats());
    std::fill(y, y + size, std::nanf(""));
    bench.run(isa, {n_tokens(case_), 0}, n_threads, node);
    return {y, y + size};
  }
  int64_t row_floats() const { return case_.n_head * case_.head_dim_v; }

  struct Expected {
    std::vector<double> y;
    bool is_close = false;  // two positions are about as good, so that roundings choose
  };
  Expected expected(int64_t token, int64_t head) const;

  const SparseCase case_;
  OpBench bench;
  TensorId q_id, y_id, dense_id;

 private:
  static int64_t n_tokens(const SparseCase& c) { return static_cast<int64_t>(c.positions.size()); }
  static int64_t max_blocks(const SparseCase& c) {
    return *std::max_element(c.positions.begin(), c.positions.end()) / c.block_size + 2;
  }
  int64_t n_blocks() const { return max_blocks(case_) * n_tokens(case_) + 3; }

  void allocate(Random& random) {
    const SparseCase& c = case_;
    KvLayer layer{nullptr,      nullptr,      c.k_dtype,    c.v_dtype, c.n_head_kv,
                  c.head_dim_k, c.head_dim_v, c.block_size, n_blocks()};
    layer.indexed = true;
    const auto n_rows = static_cast<size_t>(n_blocks() * c.n_head_kv * c.block_size);
    k_.assign(n_rows * row_bytes(c.k_dtype, c.head_dim_k), std::byte{0xff});  // NaN in unused rows
    v_.assign(n_rows * row_bytes(c.v_dtype, c.head_dim_v), std::byte{0xff});
    index_.assign(kv_index_bytes(layer) + 64, std::byte{0xff});
    layer.k = k_.data();
    layer.v = v_.data();
    layer.index = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(index_.data()) + 63) / 64 * 64);
    std::vector<int32_t> blocks(static_cast<size_t>(n_blocks()));
    std::iota(blocks.begin(), blocks.end(), 0);
    if (c.fragmented) random.shuffle(blocks);
    table_.assign(blocks.begin(), blocks.begin() + n_tokens(c) * max_blocks(c));
    bench.kv.push_back(layer);
    for (int64_t s = 0; s < n_tokens(c); ++s) {
      const int64_t length = c.positions[static_cast<size_t>(s)] + 1;
      for (int64_t p = 0; p < length; ++p) {
        for (int64_t h = 0; h < c.n_head_kv; ++h) store(random, s, p, h);
      }
      for (int64_t b = 0; b * c.block_size < length; ++b) {
        index_block(layer, table_[static_cast<size_t>(s * max_blocks(c) + b)],
                    std::min(c.block_size, length - b * c.block_size));
      }
    }
  }
  int64_t row_of(int64_t sequence, int64_t position, int64_t head) const {
    const int64_t block =
        table_[static_cast<size_t>(sequence * max_blocks(case_) + position / case_.block_size)];
    return (block * case_.n_head_kv + head) * case_.block_size + position % case_.block_size;
  }
  std::byte* at(std::vector<std::byte>& pool, DType dtype, int64_t n, int64_t row) const {
    return pool.data() + static_cast<size_t>(row) * row_bytes(dtype, n);
  }
  void store(Random& random, int64_t sequence, int64_t position, int64_t head) {
    const int64_t row = row_of(sequence, position, head);
    quantize_row(case_.k_dtype, random.normals(case_.head_dim_k, 2.0f).data(),
                 at(k_, case_.k_dtype, case_.head_dim_k, row), case_.head_dim_k);
    quantize_row(case_.v_dtype, random.normals(case_.head_dim_v).data(),
                 at(v_, case_.v_dtype, case_.head_dim_v, row), case_.head_dim_v);
  }
  std::vector<float> row(const std::vector<std::byte>& pool, DType dtype, int64_t n, int64_t index) const {
    std::vector<float> x(static_cast<size_t>(n));
    dequantize_row(dtype, pool.data() + static_cast<size_t>(index) * row_bytes(dtype, n), x.data(), n);
    return x;
  }

  void fill_inputs(Random& random) {
    q_ = random.normals(n_tokens(case_) * case_.n_head * case_.head_dim_k);
    std::copy(q_.begin(), q_.end(), bench.data(q_id));
    for (int32_t t = 0; t < n_tokens(case_); ++t) {
      bench.input(Input::positions)[t] = static_cast<int32_t>(case_.positions[static_cast<size_t>(t)]);
      bench.input(Input::sequences)[t] = t;
    }
    std::copy(table_.begin(), table_.end(), bench.input(Input::block_table));
  }
  std::vector<std::byte> k_, v_, index_;
  std::vector<int32_t> table_;
  std::vector<float> q_, sinks_;
  float scale_ = 0;
};

SparseScene::Expected SparseScene::expected(int64_t token, int64_t head) const {
  const SparseCase& c = case_;
  const int64_t group = c.n_head / c.n_head_kv, head_kv = head / group;
  const int64_t own = c.positions[static_cast<size_t>(token)];
  const int64_t n = own + 1;
  const auto q_of = [&](int64_t h) {
    return std::span(q_).subspan(static_cast<size_t>((token * c.n_head + h) * c.head_dim_k),
                                 static_cast<size_t>(c.head_dim_k));
  };
  const auto capped = [&](double s) { return c.softcap > 0 ? c.softcap * std::tanh(s / c.softcap) : s; };
  std::vector<int64_t> columns(static_cast<size_t>(c.head_dim_k));
  std::iota(columns.begin(), columns.end(), 0);
  std::vector<double> magnitude(columns.size());
  for (int64_t g = 0; g < group; ++g) {
    for (size_t i = 0; i < magnitude.size(); ++i) magnitude[i] += std::fabs(q_of(head_kv * group + g)[i]);
  }
  std::ranges::sort(columns, [&](int64_t a, int64_t b) {
    return magnitude[static_cast<size_t>(a)] > magnitude[static_cast<size_t>(b)];
  });
  const auto n_components = static_cast<size_t>(std::min(c.sparse.n_components, c.head_dim_k));

  const KvIndex index(bench.kv[0]);
  std::vector<std::vector<double>> weights;  // of the group's heads
  std::vector<double> total(static_cast<size_t>(n));
  for (int64_t g = 0; g < group; ++g) {
    const auto q = q_of(head_kv * group + g);
    double all = 0, chosen = 0;
    for (const float x : q) all += std::fabs(x);
    for (size_t i = 0; i < n_components; ++i) chosen += std::fabs(q[static_cast<size_t>(columns[i])]);
    std::vector<double> w(static_cast<size_t>(n));
    double max = -INFINITY, sum = 0;
    for (int64_t p = 0; p < n; ++p) {
      const int64_t slot =
          static_cast<int64_t>(table_[static_cast<size_t>(token * max_blocks(c) + p / c.block_size)]) *
              c.block_size +
          p % c.block_size;
      double s = 0;
      for (size_t i = 0; i < n_components; ++i)
        s += static_cast<double>(q[static_cast<size_t>(columns[i])]) *
             index.component(head_kv, columns[i])[slot] * index.scales_of(head_kv)[slot];
      w[static_cast<size_t>(p)] = capped(s * scale_ / std::sqrt(chosen / all));
      max = std::max(max, w[static_cast<size_t>(p)]);
    }
    for (double& x : w) sum += x = std::exp(x - max);
    for (size_t p = 0; p < w.size(); ++p) total[p] += w[p] /= sum;
    weights.push_back(std::move(w));
  }
  std::vector<int64_t> rest, read;
  for (int64_t p = 0; p < n; ++p) {
    const bool is_always = p < kSparseFirst || p + c.sparse.newest() > own;
    (is_always ? read : rest).push_back(p);
  }
  std::ranges::sort(rest, [&](int64_t a, int64_t b) {
    return total[static_cast<size_t>(a)] > total[static_cast<size_t>(b)];
  });
  Expected result;
  const auto n_chosen = static_cast<size_t>(c.sparse.n_positions);
  if (rest.size() <= n_chosen) {  // the token attends densely
    result.is_close = true;
    return result;
  }
  const double last = total[static_cast<size_t>(rest[n_chosen - 1])],
               next = total[static_cast<size_t>(rest[n_chosen])];
  result.is_close = last - next < 1e-4 * last;
  read.insert(read.end(), rest.begin(), rest.begin() + static_cast<int64_t>(n_chosen));

  double share = 0, sum = 0;
  result.y.assign(static_cast<size_t>(c.head_dim_v), 0);
  for (const int64_t p : read) {
    share += weights[static_cast<size_t>(head % group)][static_cast<size_t>(p)];
    const int64_t at = row_of(token, p, head_kv);
    const std::vector<float> key = row(k_, c.k_dtype, c.head_dim_k, at),
                             value = row(v_, c.v_dtype, c.head_dim_v, at);
    double s = 0;
    for (size_t i = 0; i < key.size(); ++i) s += static_cast<double>(q_of(head)[i]) * key[i];
    const double e = std::exp(capped(s * scale_));
    sum += e;
    for (size_t i = 0; i < value.size(); ++i) result.y[i] += e * value[i];
  }
  const int64_t n_whole = n / c.block_size * c.block_size;
  std::vector<double> mean(result.y.size());
  for (int64_t p = 0; p < n_whole; ++p) {
    const std::vector<float> value = row(v_, c.v_dtype, c.head_dim_v, row_of(token, p, head_kv));
    for (size_t i = 0; i < value.size(); ++i) mean[i] += value[i] / static_cast<double>(n_whole);
  }
  const double all = sum / share;
  const double divisor =
      all + (c.sinks ? std::exp(static_cast<double>(sinks_[static_cast<size_t>(head)])) : 0.0);
  for (size_t i = 0; i < mean.size(); ++i)
    result.y[i] = (result.y[i] + (1 - share) * all * mean[i]) / divisor;
  return result;
}

// Compares all heads whose choice is clear; returns how many those are.
int compare(SparseScene& scene, const std::vector<float>& got, const std::string& what) {
  const SparseCase& c = scene.case_;
  int n_compared = 0;
  for (int64_t t = 0; t < static_cast<int64_t>(c.positions.size()); ++t) {
    for (int64_t h = 0; h < c.n_head; ++h) {
      const SparseScene::Expected want = scene.expected(t, h);
      if (want.is_close) continue;
      ++n_compared;
      double worst = 0, largest = 0.05;
      for (size_t i = 0; i < want.y.size(); ++i) {
        const float y = got[static_cast<size_t>(t * scene.row_floats() + h * c.head_dim_v) + i];
        EXPECT_TRUE(std::isfinite(y)) << what;
        worst = std::max(worst, std::fabs(y - want.y[i]));
        largest = std::max(largest, std::fabs(want.y[i]));
      }
      EXPECT_LT(worst / largest, 2e-3)
          << what << " token " << t << " head " << h;  // the means are half floats
    }
  }
  return n_compared;
}

TEST(SparseAttention, IsSparqOfEveryIsa) {
  Random random;
  std::vector<SparseCase> cases;
  cases.push_back({});
  cases.push_back({.fragmented = false});
  cases.push_back({.n_head = 4, .n_head_kv = 1, .head_dim_k = 128, .head_dim_v = 96, .positions = {700}});
  cases.push_back({.n_head = 12, .n_head_kv = 2, .head_dim_k = 40, .sparse = {7, 33}, .softcap = 30});
  cases.push_back({.sparse = {64, 1}, .sinks = true, .positions = {100, 511, 64, 319}});
  cases.push_back({.n_head = 3,
                   .n_head_kv = 3,
                   .block_size = 16,
                   .k_dtype = DType::Q8_0,
                   .v_dtype = DType::Q4_0,
                   .sparse = {5, 290},
                   .positions = {600, 333}});
  cases.push_back({.k_dtype = DType::F32, .v_dtype = DType::BF16, .sparse = {9, 300}, .positions = {5000}});
  int n_compared = 0, n_all = 0;
  for (const SparseCase& c : cases) {
    SparseScene scene(random, c);
    for (const Isa isa : supported_isas()) {
      const std::string what = std::string(isa_name(isa)) + " case " + std::to_string(&c - cases.data());
      const std::vector<float> one = scene.run(isa, 1);
      n_compared += compare(scene, one, what);
      n_all += static_cast<int>(c.n_head) * static_cast<int>(c.positions.size());
      EXPECT_EQ(scene.run(isa, 3), one) << what << ": three threads";
    }
  }
  EXPECT_GT(n_compared, n_all / 2);  // not left out because of close choices
}

TEST(SparseAttention, WhatLeavesNothingOutIsDenseAttention) {
  Random random;
  // 299 + 1 positions: the first 4, the newest 59 and 239 chosen are all.
  for (const int64_t n : {239, 1000}) {
    SparseScene scene(random, {.n_head = 8, .n_head_kv = 2, .sparse = {16, n}, .positions = {299, 40}});
    for (const Isa isa : supported_isas())
      EXPECT_EQ(scene.run(isa, 2), scene.run(isa, 2, false)) << isa_name(isa);
  }
  SparseScene scene(random, {.sparse = {16, 200}, .positions = {299}});
  EXPECT_NE(scene.run(Isa::scalar, 1), scene.run(Isa::scalar, 1, false));
}

TEST(SparseAttention, EveryTypeOfTheCacheIsIndexed) {
  Random random;
  for (const DType dtype : kCacheDTypes) {
    SparseScene scene(random, {.k_dtype = dtype, .v_dtype = dtype, .sparse = {32, 100}});
    compare(scene, scene.run(best_isa(), 2), std::string(dtype_name(dtype)));
  }
}

TEST(SparseAttention, EqualWeightsChooseTheFirstPositions) {
  Random random;
  SparseScene scene(random, {.n_head = 1, .n_head_kv = 1, .sparse = {4, 20}});
  std::fill_n(scene.bench.data(scene.q_id), 64, 0.0f);  // all scores are 0
  const std::vector<float> y = scene.run(Isa::scalar, 1);
  for (const Isa isa : supported_isas()) {
    const std::vector<float> got = scene.run(isa, 1);
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(got[i], y[i], 1e-5) << isa_name(isa);
  }
}

TEST(SparseAttention, AKeyThatIsZeroOrNotFiniteHasNoWeightInTheIndex) {
  KvLayer layer{nullptr, nullptr, DType::F32, DType::F32, 1, 32, 32, 4, 1};
  layer.indexed = true;
  std::vector<float> k(4 * 32, 1.0f), v(4 * 32, 1.0f);
  for (int i = 0; i < 32; ++i) k[static_cast<size_t>(i)] = 0;
  k[32 + 3] = INFINITY;
  k[64 + 5] = std::nanf("");
  std::vector<std::byte> index(kv_index_bytes(layer), std::byte{0x55});
  layer.k = reinterpret_cast<std::byte*>(k.data());
  layer.v = reinterpret_cast<std::byte*>(v.data());
  layer.index = index.data();
  index_block(layer, 0, 4);
  const KvIndex read(layer);
  EXPECT_EQ(read.scales_of(0)[0], 0);
  EXPECT_EQ(read.scales_of(0)[1], 0);
  EXPECT_EQ(read.scales_of(0)[3], 1.0f / 127);
  EXPECT_EQ(read.component(0, 31)[3], 127);
  EXPECT_EQ(fp16_to_fp32(read.mean(0, 0)[7]), 1.0f);
}

}  // namespace
}  // namespace tandem::cpu
