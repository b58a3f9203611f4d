// Attention over the hot and the cold cache, each in its own pool, and their merge: together they equal
// attention over the whole cache. Also tests the merge and join ops against plain loops.
#include <cmath>

#include "device/cache_dtypes.h"
#include "gguf/quants.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::OpBench;
using test::Random;

struct PartsCase {
  int64_t n_head = 4, n_head_kv = 2, head_dim_k = 32, head_dim_v = 32, block_size = 8;
  DType dtype = DType::F16;
  int64_t window = 0;
  float softcap = 0;
  bool sinks = false;
  bool values_in_keys = false;
  std::vector<int64_t> lengths{40};  // cached positions of each sequence
  int64_t n_tokens = 1;              // of each sequence, at its end
};

// The whole cache as layer 0; a copy of its hot part as layer 1, in other blocks.
class PartsScene {
 public:
  PartsScene(Random& random, const PartsCase& c) : case_(c), bench_(shape(c)) {
    AttentionParams op{c.n_head, c.n_head_kv, c.head_dim_k, c.head_dim_v, 0.3f, c.softcap, c.window};
    op.values_in_keys = c.values_in_keys;
    const Weight* sinks = c.sinks ? bench_.weight(random.normals(c.n_head, 2.0f)) : nullptr;
    q_ = bench_.activation(c.n_head * c.head_dim_k);
    bench_.builder.set_layer(0);
    whole_ = bench_.builder.attention(q_, op, sinks);
    op.part = KvPart::cold;
    cold_ = bench_.builder.attention(q_, op);
    bench_.builder.set_layer(1);
    op.part = KvPart::hot;
    hot_ = bench_.builder.attention(q_, op, sinks);
    merged_ = bench_.builder.merge(hot_, cold_, {c.n_head, c.head_dim_v});
    bench_.finish(merged_);
    for (auto* pools : {&whole_pools_, &hot_pools_}) {
      for (int64_t dim : {c.head_dim_k, cached_values()}) {
        pools->emplace_back(row_bytes(c.dtype, dim) * static_cast<size_t>(n_rows()), std::byte{0xff});
      }
      bench_.kv.push_back({(*pools)[0].data(), (*pools)[1].data(), c.dtype, c.dtype, c.n_head_kv,
                           c.head_dim_k, cached_values(), c.block_size,
                           n_rows() / c.n_head_kv / c.block_size});
    }
    fill(random);
  }

  // The hot cache begins with these blocks: copies their data there, and overwrites it in the cold cache.
  std::vector<float> run_split(Random& random, const std::vector<int64_t>& first_blocks, Isa isa,
                               int n_threads) {
    std::vector<std::vector<std::byte>> saved = whole_pools_;
    for (auto& pool : hot_pools_) std::fill(pool.begin(), pool.end(), std::byte{0xff});
    std::vector<int32_t> free(static_cast<size_t>(n_rows() / case_.n_head_kv / case_.block_size));
    for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int32_t>(i);
    random.shuffle(free);
    for (size_t s = 0; s < case_.lengths.size(); ++s) {
      bench_.input(Input::hot_from)[s] = static_cast<int32_t>(first_blocks[s] * case_.block_size);
      for (int64_t b = first_blocks[s]; b < n_blocks(case_.lengths[s]); ++b) {
        int32_t& hot = bench_.input(
            Input::hot_blocks)[static_cast<int64_t>(s) * max_blocks(case_) + b - first_blocks[s]];
        hot = free.back();
        free.pop_back();
        const int32_t old = bench_.input(Input::block_table)[static_cast<int64_t>(s) * max_blocks(case_) + b];
        for (size_t half = 0; half < 2; ++half) {
          const size_t n = block_bytes(half);
          std::byte* from = whole_pools_[half].data() + static_cast<size_t>(old) * n;
          std::memcpy(hot_pools_[half].data() + static_cast<size_t>(hot) * n, from, n);
          std::memset(from, 0xff, n);
        }
      }
    }
    const StepShape step{n_tokens(), 0};
    for (size_t node : {size_t{2}, size_t{3}, size_t{4}}) bench_.run(isa, step, n_threads, node);
    for (size_t half = 0; half < 2; ++half) {  // in place, because compiled nodes hold the addresses
      std::copy(saved[half].begin(), saved[half].end(), whole_pools_[half].begin());
    }
    return result(merged_);
  }

  std::vector<float> run_whole(Isa isa) {
    bench_.run(isa, {n_tokens(), 0}, 1, 1);
    return result(whole_);
  }

  // The logarithms of a cold cache without positions.
  std::vector<float> cold_logarithms() {
    const float* y = bench_.data(cold_);
    const int64_t n = case_.n_head * case_.head_dim_v;
    std::vector<float> all;
    for (int64_t t = 0; t < n_tokens(); ++t) {
      for (int64_t h = 0; h < case_.n_head; ++h) all.push_back(y[t * (n + case_.n_head) + n + h]);
    }
    return all;
  }

  int64_t n_blocks(int64_t length) const { return (length + case_.block_size - 1) / case_.block_size; }

 private:
  static int64_t max_blocks(const PartsCase& c) {
    return *std::max_element(c.lengths.begin(), c.lengths.end()) / c.block_size + 2;
  }
  static ShapeClass shape(const PartsCase& c) {
    const auto n = static_cast<int64_t>(c.lengths.size());
    ShapeClass shape{c.n_tokens * n, 1, n, max_blocks(c)};
    shape.max_hot_blocks = max_blocks(c);
    return shape;
  }
  int64_t cached_values() const { return case_.values_in_keys ? 0 : case_.head_dim_v; }
  int64_t n_tokens() const { return case_.n_tokens * static_cast<int64_t>(case_.lengths.size()); }
  int64_t n_rows() const {
    return (max_blocks(case_) * static_cast<int64_t>(case_.lengths.size()) + 3) * case_.n_head_kv *
           case_.block_size;
  }
  size_t block_bytes(size_t half) const {
    return row_bytes(case_.dtype, half == 0 ? case_.head_dim_k : cached_values()) *
           static_cast<size_t>(case_.n_head_kv * case_.block_size);
  }
  std::vector<float> result(TensorId id) {
    const float* y = bench_.data(id);
    return {y, y + n_tokens() * case_.n_head * case_.head_dim_v};
  }

  void fill(Random& random) {
    std::vector<int32_t> blocks(static_cast<size_t>(n_rows() / case_.n_head_kv / case_.block_size));
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
    random.shuffle(blocks);
    const auto n_sequences = static_cast<int64_t>(case_.lengths.size());
    std::copy(blocks.begin(), blocks.begin() + n_sequences * max_blocks(case_),
              bench_.input(Input::block_table));
    std::vector<std::pair<int32_t, int32_t>> tokens;  // sequence, position
    for (int64_t s = 0; s < n_sequences; ++s) {
      const int64_t length = case_.lengths[static_cast<size_t>(s)];
      for (int64_t p = 0; p < length; ++p) store(random, s, p);
      for (int64_t i = 0; i < case_.n_tokens; ++i) {
        tokens.emplace_back(s, static_cast<int32_t>(length - case_.n_tokens + i));
      }
    }
    random.shuffle(tokens);
    for (size_t t = 0; t < tokens.size(); ++t) {
      bench_.input(Input::sequences)[t] = tokens[t].first;
      bench_.input(Input::positions)[t] = tokens[t].second;
    }
    const std::vector<float> q = random.normals(n_tokens() * case_.n_head * case_.head_dim_k);
    std::copy(q.begin(), q.end(), bench_.data(q_));
  }

  void store(Random& random, int64_t sequence, int64_t position) {
    const int64_t block =
        bench_.input(Input::block_table)[sequence * max_blocks(case_) + position / case_.block_size];
    for (size_t half = 0; half < 2; ++half) {
      const int64_t dim = half == 0 ? case_.head_dim_k : cached_values();
      if (dim == 0) continue;
      for (int64_t head = 0; head < case_.n_head_kv; ++head) {
        const int64_t row = (block * case_.n_head_kv + head) * case_.block_size + position % case_.block_size;
        quantize_row(case_.dtype, random.normals(dim).data(),
                     whole_pools_[half].data() + static_cast<size_t>(row) * row_bytes(case_.dtype, dim), dim);
      }
    }
  }

  const PartsCase case_;
  OpBench bench_;
  std::vector<std::vector<std::byte>> whole_pools_, hot_pools_;
  TensorId q_, whole_, cold_, hot_, merged_;
};

void expect_within(const std::vector<float>& got, const std::vector<float>& want, const std::string& what,
                   double tolerance) {
  float worst = 0, largest = 0.1f;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what << " at " << i;
    worst = std::max(worst, std::fabs(got[i] - want[i]));
    largest = std::max(largest, std::fabs(want[i]));
  }
  EXPECT_LE(worst, tolerance * largest) << what;
}

// Every split point of the first sequence, random ones of the others.
void check_every_split(Random& random, const PartsCase& c, const std::string& what) {
  PartsScene scene(random, c);
  for (Isa isa : supported_isas()) {
    const std::vector<float> whole = scene.run_whole(isa);
    AttentionCall call;
    call.k_dtype = call.v_dtype = c.dtype;
    call.n_queries = INT64_MAX;
    const double tolerance = test::attention_tolerance(isa, call);
    for (int64_t first = 0; first <= scene.n_blocks(c.lengths[0]); ++first) {
      std::vector<int64_t> split{first};
      for (size_t s = 1; s < c.lengths.size(); ++s)
        split.push_back(random.below(scene.n_blocks(c.lengths[s]) + 1));
      const std::string name =
          what + " " + std::string(isa_name(isa)) + " from block " + std::to_string(first);
      const std::vector<float> one = scene.run_split(random, split, isa, 1);
      expect_within(one, whole, name, tolerance);
      EXPECT_EQ(scene.run_split(random, split, isa, 3), one) << name;
    }
  }
}

TEST(AttentionParts, MergeToTheWholeWithEveryCacheType) {
  Random random;
  for (DType dtype : kCacheDTypes) {
    PartsCase c;
    c.dtype = dtype;
    for (int64_t n_tokens : {1, 5}) {
      c.n_tokens = n_tokens;
      check_every_split(random, c, std::string(dtype_name(dtype)) + " " + std::to_string(n_tokens));
    }
  }
}

TEST(AttentionParts, MergeToTheWholeWithWindowsSinksAndSoftcap) {
  Random random;
  for (int64_t window : {0, 1, 7, 8, 9, 30, 1000}) {
    for (float softcap : {0.0f, 2.0f}) {
      for (bool sinks : {false, true}) {
        PartsCase c;
        c.window = window;
        c.softcap = softcap;
        c.sinks = sinks;
        c.n_tokens = 1 + random.below(12);
        c.lengths = {61, 13 + random.below(40)};
        check_every_split(random, c, "window " + std::to_string(window) + " sinks " + std::to_string(sinks));
      }
    }
  }
}

TEST(AttentionParts, MergeToTheWholeForAnySizes) {
  Random random;
  const int64_t dims[] = {8, 24, 64, 80, 128};
  for (int i = 0; i < 12; ++i) {
    PartsCase c;
    c.n_head_kv = 1 + random.below(3);
    c.n_head = c.n_head_kv * (1 + random.below(9));
    c.head_dim_k = dims[random.below(5)];
    c.head_dim_v = dims[random.below(5)];
    c.block_size = 1 + random.below(33);
    c.n_tokens = 1 + random.below(20);
    c.window = random.below(3) == 0 ? 1 + random.below(60) : 0;
    c.sinks = random.below(2) == 0;
    c.lengths.clear();
    for (int64_t n = 1 + random.below(4); n > 0; --n) c.lengths.push_back(c.n_tokens + random.below(90));
    check_every_split(random, c, "case " + std::to_string(i));
  }
}

// The rows of latent attention, which are keys and values.
TEST(AttentionParts, MergeToTheWholeWithValuesInKeys) {
  Random random;
  for (DType dtype : {DType::F32, DType::F16, DType::Q8_0}) {
    for (int64_t window : {0, 9, 40}) {
      PartsCase c;
      c.values_in_keys = true;
      c.dtype = dtype;
      c.n_head = 1 + random.below(20);
      c.n_head_kv = 1;
      c.head_dim_k = 96;
      c.head_dim_v = 64;
      c.window = window;
      c.softcap = random.below(2) ? 3.0f : 0.0f;
      c.sinks = random.below(2) == 0;
      c.n_tokens = 1 + random.below(12);
      c.lengths = {61, 13 + random.below(40)};
      check_every_split(random, c, format("{} window {}", dtype_name(dtype), window));
    }
  }
}

// Long enough that both parts are divided into chunks.
TEST(AttentionParts, MergeToTheWholeWhenLong) {
  Random random;
  PartsCase c;
  c.block_size = 64;
  c.lengths = {1500 + random.below(64)};
  c.n_head = 2;
  c.n_head_kv = 1;
  check_every_split(random, c, "decode");
}

TEST(AttentionParts, AnEmptyPartHasMinusInfinity) {
  Random random;
  PartsCase c;
  c.lengths = {60};
  PartsScene scene(random, c);
  for (Isa isa : supported_isas()) {
    scene.run_split(random, {0}, isa, 1);
    for (float x : scene.cold_logarithms()) EXPECT_EQ(x, -INFINITY) << isa_name(isa);
  }
  c.window = 12;
  c.n_tokens = 4;
  PartsScene windowed(random, c);
  for (Isa isa : supported_isas()) {
    windowed.run_split(random, {5}, isa, 1);  // 40 of 60: the windows begin at 45 and later
    for (float x : windowed.cold_logarithms()) EXPECT_EQ(x, -INFINITY) << isa_name(isa);
  }
}

TEST(Merge, IsTheWeightedMean) {
  Random random;
  for (int64_t n_head : {1, 3, 8}) {
    for (int64_t hd : {1, 7, 16, 33, 128}) {
      const int64_t n = 1 + random.below(40), n_cols = n_head * (hd + 1);
      OpBench bench({n, 1, 1, 1});
      const TensorId a = bench.activation(n_cols), b = bench.activation(n_cols);
      const TensorId y = bench.builder.merge(a, b, {n_head, hd});
      bench.finish(y);
      for (TensorId id : {a, b}) {
        const std::vector<float> x = random.normals(n * n_cols, 3.0f);
        std::copy(x.begin(), x.end(), bench.data(id));
        for (int64_t row = 0; row < n; ++row) {  // some parts without positions
          for (int64_t h = 0; h < n_head; ++h) {
            if (random.below(4) != 0) continue;
            float* part = bench.data(id) + row * n_cols;
            std::fill(part + h * hd, part + (h + 1) * hd, 0.0f);
            part[n_head * hd + h] = -INFINITY;
          }
        }
      }
      for (Isa isa : supported_isas()) {
        bench.run(isa, {n, 0}, 2);
        for (int64_t row = 0; row < n; ++row) {
          for (int64_t i = 0; i < n_head * hd; ++i) {
            const float *left = bench.data(a) + row * n_cols, *right = bench.data(b) + row * n_cols;
            const double wl = std::exp(static_cast<double>(left[n_head * hd + i / hd])),
                         wr = std::exp(static_cast<double>(right[n_head * hd + i / hd]));
            const double want = wl + wr == 0 ? 0 : (wl * left[i] + wr * right[i]) / (wl + wr);
            ASSERT_NEAR(bench.data(y)[row * n_head * hd + i], want, 1e-5)
                << isa_name(isa) << " " << row << " " << i;
          }
        }
      }
    }
  }
}

TEST(Merge, LargeLogarithmsDoNotOverflowAndNaNIsKept) {
  OpBench bench({1, 1, 1, 1});
  const TensorId a = bench.activation(6), b = bench.activation(6);
  const TensorId y = bench.builder.merge(a, b, {3, 1});
  bench.finish(y);
  const float left[] = {1, 2, 0, 1000, -1000, -INFINITY}, right[] = {3, 4, 5, 1000, -2000, NAN};
  std::copy(left, left + 6, bench.data(a));
  std::copy(right, right + 6, bench.data(b));
  for (Isa isa : supported_isas()) {
    bench.run(isa, {1, 0});
    EXPECT_FLOAT_EQ(bench.data(y)[0], 2);
    EXPECT_FLOAT_EQ(bench.data(y)[1], 2);
    EXPECT_TRUE(std::isnan(bench.data(y)[2]));
  }
}

TEST(Join, ConcatenatesColumns) {
  Random random;
  for (int64_t p : {1, 5, 16, 31, 200}) {
    for (int64_t q : {1, 3, 64, 97}) {
      for (bool with_residual : {false, true}) {
        const int64_t n = 1 + random.below(60);
        OpBench bench({n, 1, 1, 1});
        const TensorId a = bench.activation(p), b = bench.activation(q), r = bench.activation(p + q);
        const TensorId y = bench.builder.join(a, b, with_residual ? r : kNoTensor);
        bench.finish(y);
        for (TensorId id : {a, b, r}) {
          const std::vector<float> x = random.normals(n * (id == a ? p : id == b ? q : p + q));
          std::copy(x.begin(), x.end(), bench.data(id));
        }
        for (Isa isa : supported_isas()) {
          bench.run(isa, {n, 0}, 2);
          for (int64_t row = 0; row < n; ++row) {
            for (int64_t i = 0; i < p + q; ++i) {
              float want = i < p ? bench.data(a)[row * p + i] : bench.data(b)[row * q + i - p];
              if (with_residual) want += bench.data(r)[row * (p + q) + i];
              ASSERT_EQ(bench.data(y)[row * (p + q) + i], want) << isa_name(isa) << " " << row << " " << i;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
