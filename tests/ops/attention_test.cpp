// Attention of every ISA, kernel and op (attention_scene.h).
#include "ops/attention_scene.h"

namespace tandem::cpu {
namespace {

using test::AttentionCase;
using test::AttentionScene;
using test::check_all_isas;
using test::OpBench;
using test::Random;
using test::range;

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
