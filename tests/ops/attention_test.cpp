// Attention of every ISA, kernel and op, against a reference in double precision that computes all scores.
#include <array>
#include <cmath>

#include "device/cache_dtypes.h"
#include "gguf/quants.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::OpBench;
using test::Random;

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
struct Pool {
  DType dtype;
  int64_t head_dim;
  std::vector<std::byte> bytes;

  Pool(Random& random, DType t, int64_t dim, int64_t rows) : dtype(t), head_dim(dim) {
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
  Pool k, v;
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
  static Pool pool(Random& random, const AttentionCase& c, DType dtype, int64_t dim) {
    return Pool(random, dtype, dim, n_blocks(c) * c.n_head_kv * c.block_size);
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
    const auto cut = [&](const Pool& pool, std::array<std::vector<std::byte>, 2>& halves) {
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

std::vector<int32_t> range(int32_t first, int32_t last) {
  std::vector<int32_t> r;
  for (int32_t p = first; p < last; ++p) r.push_back(p);
  return r;
}

void check_all_isas(Random& random, const AttentionCase& c, const std::string& what) {
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
    scene.check(one, name, test::attention_tolerance(isa, call));
    for (int threads = 2; threads <= 4; ++threads) {
      const std::vector<float> more = scene.run(isa, threads);
      EXPECT_EQ(std::memcmp(one.data(), more.data(), one.size() * sizeof(float)), 0)
          << name << " threads " << threads;
    }
  }
}

TEST(Attention, EveryPairOfCacheDTypes) {
  Random random;
  for (DType k : kCacheDTypes) {
    for (DType v : kCacheDTypes) {
      AttentionCase c;
      c.n_head = 4;
      c.n_head_kv = 2;
      c.k_dtype = k;
      c.v_dtype = v;
      c.lengths = {75};
      c.tokens = {range(50, 75)};
      const std::string what = std::string(dtype_name(k)) + "/" + std::string(dtype_name(v));
      check_all_isas(random, c, what + " prefill");
      c.tokens = {{74}};
      check_all_isas(random, c, what + " decode");
    }
  }
}

TEST(Attention, EveryHeadSize) {
  Random random;
  for (int64_t hd_k : {8, 64, 80, 96, 128, 256, 24, 17}) {
    for (int64_t hd_v : {hd_k, hd_k == 8 ? int64_t{40} : hd_k / 2}) {
      AttentionCase c;
      c.n_head = 2;
      c.n_head_kv = 1;
      c.head_dim_k = hd_k;
      c.head_dim_v = hd_v;
      c.lengths = {130};
      c.tokens = {range(100, 130)};
      const std::string what = std::to_string(hd_k) + "x" + std::to_string(hd_v);
      check_all_isas(random, c, what + " prefill");
      c.tokens = {};
      check_all_isas(random, c, what + " decode");
    }
  }
}

TEST(Attention, EveryGroupOfQueryHeads) {
  Random random;
  for (int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 71}) {
    AttentionCase c;
    c.n_head = 2 * group;
    c.n_head_kv = 2;
    c.head_dim_k = c.head_dim_v = 32;
    c.lengths = {90, 33};
    check_all_isas(random, c, "decode, group " + std::to_string(group));
    c.tokens = {range(60, 90), range(0, 33)};
    check_all_isas(random, c, "prefill, group " + std::to_string(group));
  }
}

TEST(Attention, FewQueriesOfAnySizes) {
  Random random;
  const int64_t dims[] = {16, 32, 48, 64, 96, 112, 128, 160};
  const DType floats[] = {DType::F32, DType::F16, DType::BF16, DType::Q8_0};
  const DType coded[] = {DType::Q8_0, DType::Q5_1, DType::Q5_0, DType::Q4_1, DType::Q4_0, DType::IQ4_NL};
  for (int i = 0; i < 120; ++i) {
    AttentionCase c;
    c.n_head_kv = 1 + random.below(2);
    const int64_t group = 1 + i / 2 % 9;
    c.n_head = group * c.n_head_kv;
    c.k_dtype = i % 2 == 0 ? floats[random.below(4)] : coded[random.below(6)];
    c.v_dtype = i % 2 == 0 ? floats[random.below(4)] : coded[random.below(6)];
    const auto dim = [&](DType dtype) {
      return dtype_info(dtype).block_elements > 1 ? 32 * (1 + random.below(8)) : dims[random.below(8)];
    };
    c.head_dim_k = dim(c.k_dtype);
    c.head_dim_v = dim(c.v_dtype);
    const int64_t blocks[] = {8, 16, 32, 48};
    c.block_size = blocks[random.below(4)];
    c.lengths = {1 + random.below(700), 1 + random.below(70)};
    if (random.below(3) == 0) c.window = 1 + random.below(300);
    if (random.below(3) == 0) c.softcap = 5;
    check_all_isas(random, c,
                   format("group {} of {}x{}, blocks of {}, K {}, V {}", static_cast<int>(group),
                          static_cast<int>(c.head_dim_k), static_cast<int>(c.head_dim_v),
                          static_cast<int>(c.block_size), dtype_name(c.k_dtype), dtype_name(c.v_dtype)));
  }
}

TEST(Attention, WindowSoftcapAndSinks) {
  Random random;
  for (int64_t window : {0, 1, 5, 16, 64, 100, 1000}) {
    for (float softcap : {0.0f, 3.0f}) {
      AttentionCase c;
      c.n_head = 4;
      c.n_head_kv = 2;
      c.window = window;
      c.softcap = softcap;
      c.sinks = random.below(2) != 0;
      c.lengths = {300, 7};
      c.tokens = {range(200, 300), {6}};
      const std::string what = "window " + std::to_string(window) + " softcap " + std::to_string(softcap);
      check_all_isas(random, c, what + " prefill");
      c.tokens = {};
      check_all_isas(random, c, what + " decode");
    }
  }
}

TEST(Attention, ValuesInKeys) {
  Random random;
  struct Sizes {
    int64_t n_head, hd_k, hd_v;
  };
  for (const Sizes& size : {Sizes{1, 576, 512},
                            {5, 48, 32},
                            {16, 96, 64},
                            {3, 17, 9},
                            {8, 64, 64},
                            {70, 40, 24},
                            {2, 288, 256}}) {
    for (DType dtype : kCacheDTypes) {
      if (size.hd_k % dtype_info(dtype).block_elements != 0) continue;
      AttentionCase c;
      c.values_in_keys = true;
      c.n_head = size.n_head;
      c.head_dim_k = size.hd_k;
      c.head_dim_v = size.hd_v;
      c.k_dtype = dtype;
      c.v_dtype = DType::F16;  // of no cache
      c.block_size = random.below(2) ? 32 : 10;
      c.lengths = {130 + random.below(20), 1, 65};
      const std::string what =
          format("{} heads of {}x{} {}", size.n_head, size.hd_k, size.hd_v, dtype_name(dtype));
      check_all_isas(random, c, what + " decode");
      c.tokens = {range(100, 130), {0}, {64, 3}};
      check_all_isas(random, c, what + " prefill");
    }
  }
  AttentionCase c;
  c.values_in_keys = true;
  c.n_head = 4;
  c.head_dim_k = 96;
  c.lengths = {2000 + random.below(200)};
  c.sinks = true;
  check_all_isas(random, c, "split");
  c.window = 300;
  c.softcap = 5;
  check_all_isas(random, c, "window and softcap");
}

TEST(Attention, UnevenBlocksAndLengths) {
  Random random;
  for (int64_t block_size : {1, 3, 10, 32, 64, 100, 256}) {
    AttentionCase c;
    c.n_head = 3;
    c.n_head_kv = 1;
    c.head_dim_k = c.head_dim_v = 16;
    c.block_size = block_size;
    const int64_t n = 600 + random.below(100);
    c.lengths = {1, n, 64, 65};
    c.tokens = {{0}, {0, static_cast<int32_t>(n - 1), 63, 64, 65, 300}, {63}, {64, 1}};
    check_all_isas(random, c, "block size " + std::to_string(block_size));
    c.tokens = {};
    check_all_isas(random, c, "decode, block size " + std::to_string(block_size));
  }
}

TEST(Attention, LongContextsAreSplitAndMerged) {
  Random random;
  for (int64_t n_head : {1, 8}) {
    AttentionCase c;
    c.n_head = n_head;
    c.n_head_kv = 1;
    c.lengths = {2000 + random.below(200)};
    c.sinks = true;
    c.k_dtype = DType::Q8_0;
    check_all_isas(random, c, "decode");
    c.window = 700;
    check_all_isas(random, c, "decode in a window");
    c.window = 0;
    const int32_t n = static_cast<int32_t>(c.lengths[0]);
    c.tokens = {range(n - 11, n)};
    check_all_isas(random, c, "small batch");
  }
}

// Items of a long text's step are chunks of all heads, whose rows in a block are neighbours; more heads than are read at a
// time, and few queries of each.
TEST(Attention, HeadsOfALongTextAreReadTogether) {
  AttentionCall two;
  two.k_dtype = two.v_dtype = DType::F16;
  two.head_dim_k = two.head_dim_v = 64;
  two.block_size = 32;
  two.n_queries = 2;
  for (const Isa isa : supported_isas()) {
    const AttentionKernels& kernels = test::attention_of(isa);
    EXPECT_EQ(kernels.takes_heads && kernels.takes_heads(two), isa != Isa::scalar) << isa_name(isa);
  }
  Random random;
  const DType dtypes[] = {DType::F16, DType::BF16, DType::F32};
  const int64_t dims[] = {16, 48, 64, 128, 272}, blocks[] = {16, 32, 48, 64};
  for (int round = 0; round < 10; ++round) {
    AttentionCase c;
    c.n_head_kv = round == 0 ? 35 : 1 + random.below(5);
    c.n_head = c.n_head_kv * (1 + random.below(4));
    c.head_dim_k = round == 0 ? 16 : dims[random.below(5)];
    c.head_dim_v = round == 0 ? 16 : dims[random.below(5)];
    c.block_size = blocks[random.below(4)];
    c.k_dtype = dtypes[random.below(3)];
    c.v_dtype = dtypes[random.below(3)];
    c.softcap = random.below(3) == 0 ? 20.0f : 0.0f;
    c.sinks = random.below(2) != 0;
    c.lengths = {random.below(4) == 0 ? 8191 : 8192 + random.below(1000)};
    const auto n = static_cast<int32_t>(c.lengths[0]);
    const auto n_tokens = static_cast<int32_t>(1 + random.below(5 - c.n_head / c.n_head_kv));
    c.tokens = {range(n - n_tokens, n)};
    c.spills = round % 2 != 0;
    check_all_isas(random, c, "round " + std::to_string(round));
  }
}

// The long text is cut into chunks that are merged, short ones are not, and one tile has several queries.
TEST(Attention, ALongTextAmongManyShortOnes) {
  Random random;
  for (const DType dtype : {DType::F16, DType::Q8_0}) {
    AttentionCase c;
    c.n_head = 4;
    c.n_head_kv = 2;
    c.k_dtype = c.v_dtype = dtype;
    c.block_size = 32;
    c.lengths.clear();
    for (int64_t i = 0; i < 70; ++i) c.lengths.push_back(1 + random.below(40));
    c.lengths[33] = 3000 + random.below(100);
    c.sinks = true;
    check_all_isas(random, c, "decode");
    for (const int64_t n : c.lengths) c.tokens.push_back({static_cast<int32_t>(n - 1)});
    c.tokens[33] = range(static_cast<int32_t>(c.lengths[33]) - 5, static_cast<int32_t>(c.lengths[33]));
    check_all_isas(random, c, "several tokens of the long text");
  }
}

TEST(Attention, AWholePrompt) {
  Random random;
  AttentionCase c;
  c.n_head = 8;
  c.n_head_kv = 2;
  c.head_dim_k = c.head_dim_v = 32;
  c.lengths = {257};
  c.tokens = {range(0, 257)};
  check_all_isas(random, c, "prompt");
}

// Scores far apart: weights that underflow, and maxima that change late. A score of some hundreds has a
// relative error of 1e-5 in single precision, and so has its weight.
TEST(Attention, LargeScores) {
  Random random;
  for (int n_head : {1, 16}) {
    AttentionCase c;
    c.n_head = n_head;
    c.k_dtype = c.v_dtype = DType::F32;
    c.lengths = {500};
    AttentionScene scene(random, c);
    for (float& x : scene.q) x *= 40.0f;
    std::copy(scene.q.begin(), scene.q.end(), scene.bench.data(scene.q_id));
    for (Isa isa : supported_isas()) scene.check(scene.run(isa, 2), std::string(isa_name(isa)), 1e-4);
  }
}

// Scores of queries and keys in halves are sums of 128 products with a deviation of 40, exact to far more than the 8 bits
// of bf16, whose error would be 0.1. Those of integers of 16 bits have an error of 6e-3 (one deviation).
TEST(Attention, LargeScoresOfManyQueries) {
  Random random;
  AttentionCase c;
  c.n_head = 4;
  c.head_dim_k = 128;
  c.lengths = {500};
  c.tokens = {range(470, 500)};
  AttentionScene scene(random, c);
  for (float& x : scene.q) x *= 40.0f;
  std::copy(scene.q.begin(), scene.q.end(), scene.bench.data(scene.q_id));
  for (Isa isa : supported_isas()) {
    scene.check(scene.run(isa, 2), std::string(isa_name(isa)), isa >= Isa::avx512_bf16 ? 0.04 : 2e-4);
  }
}

TEST(Attention, NaNReachesTheResultAndOnlyItsRow) {
  Random random;
  for (int64_t n_tokens : {2, 40}) {
    AttentionCase c;
    c.n_head = c.n_head_kv = 1;
    c.lengths = {50};
    c.tokens = {range(50 - static_cast<int32_t>(n_tokens), 50)};
    AttentionScene scene(random, c);
    scene.bench.data(scene.q_id)[64 + 3] = std::nanf("");
    for (Isa isa : supported_isas()) {
      const std::vector<float> y = scene.run(isa, 1);
      for (size_t i = 0; i < y.size(); ++i)
        EXPECT_EQ(std::isnan(y[i]), i / 64 == 1) << isa_name(isa) << " " << i;
    }
  }
}

TEST(Attention, KernelsStoreTheReferencesBytes) {
  Random random;
  for (Isa isa : supported_isas()) {
    for (DType dtype : kCacheDTypes) {
      const int64_t block = dtype_info(dtype).block_elements;
      for (int64_t n = block; n <= (block == 1 ? 70 : 256); n += block) {
        for (float size : {1e-42f, 1e-6f, 1.0f, 3e4f, 1e30f}) {
          std::vector<float> x = random.normals(n, size);
          if (n % 3 == 0) x[static_cast<size_t>(random.below(n))] = 0.0f;
          if (n % 5 == 0) std::fill(x.begin(), x.end(), n % 2 ? 0.0f : -size);
          if (n % 7 == 0) x[static_cast<size_t>(random.below(n))] = std::nanf("");
          if (n % 11 == 0) x[static_cast<size_t>(random.below(n))] = -INFINITY;
          for (float& v : x) v = random.below(4) == 0 ? std::nearbyint(v * 8) / 8 : v;  // ties
          std::vector<std::byte> want(row_bytes(dtype, n)), got(want.size() + 1, std::byte{0x5a});
          quantize_cache_row(dtype, x.data(), want.data(), n);
          test::attention_of(isa).store_row(dtype, x.data(), got.data(), n);
          ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size()), 0)
              << isa_name(isa) << " " << dtype_name(dtype) << " n " << n << " size " << size;
          ASSERT_EQ(got.back(), std::byte{0x5a});
        }
      }
    }
  }
}

TEST(Attention, KvWriteStoresAtTheSlot) {
  Random random;
  const int64_t n_head_kv = 3, hd_k = 64, hd_v = 32, block_size = 8, n_blocks = 5, n = 13;
  for (DType dtype : kCacheDTypes) {
    OpBench bench({n, 1, 1, n_blocks});
    const TensorId k = bench.activation(n_head_kv * hd_k), v = bench.activation(n_head_kv * hd_v);
    bench.builder.set_layer(0);
    bench.builder.kv_write(k, v);
    bench.finish(k);
    const size_t rows = static_cast<size_t>(n_head_kv * block_size * n_blocks);
    std::vector<std::byte> k_pool(rows * row_bytes(dtype, hd_k)), v_pool(rows * row_bytes(DType::F16, hd_v));
    bench.kv.push_back(
        {k_pool.data(), v_pool.data(), dtype, DType::F16, n_head_kv, hd_k, hd_v, block_size, n_blocks});
    std::vector<int32_t> slots = range(0, static_cast<int32_t>(block_size * n_blocks));
    random.shuffle(slots);
    const std::vector<float> xk = random.normals(n * n_head_kv * hd_k),
                             xv = random.normals(n * n_head_kv * hd_v);
    std::copy(xk.begin(), xk.end(), bench.data(k));
    std::copy(xv.begin(), xv.end(), bench.data(v));
    std::copy(slots.begin(), slots.begin() + n, bench.input(Input::slots));
    std::vector<std::byte> k_want(k_pool.size()), v_want(v_pool.size());
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t h = 0; h < n_head_kv; ++h) {
        const int64_t slot = slots[static_cast<size_t>(t)];
        const size_t row =
            static_cast<size_t>((slot / block_size * n_head_kv + h) * block_size + slot % block_size);
        quantize_cache_row(dtype, xk.data() + (t * n_head_kv + h) * hd_k,
                           k_want.data() + row * row_bytes(dtype, hd_k), hd_k);
        quantize_cache_row(DType::F16, xv.data() + (t * n_head_kv + h) * hd_v,
                           v_want.data() + row * row_bytes(DType::F16, hd_v), hd_v);
      }
    }
    for (Isa isa : supported_isas()) {
      std::fill(k_pool.begin(), k_pool.end(), std::byte{0});
      std::fill(v_pool.begin(), v_pool.end(), std::byte{0});
      bench.run(isa, {n, 0}, 3);
      EXPECT_EQ(k_pool, k_want) << isa_name(isa) << " " << dtype_name(dtype);
      EXPECT_EQ(v_pool, v_want) << isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
