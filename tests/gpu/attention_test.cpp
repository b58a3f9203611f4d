// Attention of a GPU against the scalar reference: every cache dtype, one query and many, several sequences. Cache rows
// that nobody wrote hold NaN, as fresh device memory may.
#include <algorithm>
#include <cmath>

#include "gguf/quants.h"
#include "gpu/harness.h"

namespace tandem::gpu_test {
namespace {

struct Case {
  int64_t n_head = 4, n_head_kv = 2, head_dim_k = 64, head_dim_v = 64, block_size = 32;
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  int64_t window = 0;
  float softcap = 0;
  bool sinks = false;
  std::vector<int64_t> lengths{40};    // cached positions of each sequence
  std::vector<int64_t> n_queries{1};   // the last so many of them are asked for
};

class GpuAttention : public GpuTest {
 protected:
  void check(const Case& c) {
    SCOPED_TRACE(describe(c));
    const int64_t n_sequences = static_cast<int64_t>(c.lengths.size());
    const int64_t n_queries = std::accumulate(c.n_queries.begin(), c.n_queries.end(), int64_t{0});
    ShapeClass shape;
    shape.max_tokens = n_queries;
    shape.max_sequences = n_sequences;
    shape.max_blocks = *std::max_element(c.lengths.begin(), c.lengths.end()) / c.block_size + 3;
    OpCase op(random_, shape);
    lay_out(c, shape, op);

    AttentionOp attention{c.n_head, c.n_head_kv, c.head_dim_k, c.head_dim_v};
    attention.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim_k));
    attention.softcap = c.softcap;
    attention.window = c.window;
    op.builder.set_layer(0);
    op.finish(op.builder.attention(op.activation(c.n_head * c.head_dim_k, 2.0f), attention,
                                   c.sinks ? op.vector(random_.normals(c.n_head, 2.0f)) : nullptr));
    op.expect_match(*device_, {n_queries, 1}, c.k_dtype == DType::F32 && c.v_dtype == DType::F32 ? kF32 : kRounded);
  }

 private:
  static std::string describe(const Case& c) {
    return std::to_string(c.n_head) + "/" + std::to_string(c.n_head_kv) + " heads of " + std::to_string(c.head_dim_k) +
           "/" + std::to_string(c.head_dim_v) + " " + std::string(dtype_name(c.k_dtype)) + "/" +
           std::string(dtype_name(c.v_dtype)) + ", " + std::to_string(c.lengths.front()) + " positions, " +
           std::to_string(c.n_queries.front()) + " queries, window " + std::to_string(c.window);
  }

  // Shuffled blocks, random rows where a sequence has them, and the inputs.
  void lay_out(const Case& c, const ShapeClass& shape, OpCase& op) {
    KvLayer layer{nullptr, nullptr, c.k_dtype, c.v_dtype, c.n_head_kv, c.head_dim_k, c.head_dim_v, c.block_size,
                  shape.max_sequences * shape.max_blocks};
    std::vector<int32_t> table(static_cast<size_t>(layer.n_blocks));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    random_.shuffle(table);
    const auto rows = static_cast<size_t>(layer.n_blocks * c.block_size * c.n_head_kv);
    CacheBytes bytes{std::vector<std::byte>(rows * row_bytes(c.k_dtype, c.head_dim_k), std::byte{0xff}),
                     std::vector<std::byte>(rows * row_bytes(c.v_dtype, c.head_dim_v), std::byte{0xff})};
    std::vector<int32_t> positions, sequences;
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      const int32_t* blocks = table.data() + s * static_cast<size_t>(shape.max_blocks);
      for (int64_t p = 0; p < c.lengths[s]; ++p) {
        for (int64_t h = 0; h < c.n_head_kv; ++h) {
          const int64_t row = (blocks[p / c.block_size] * c.n_head_kv + h) * c.block_size + p % c.block_size;
          store(c.k_dtype, c.head_dim_k, row, bytes.k);
          store(c.v_dtype, c.head_dim_v, row, bytes.v);
        }
      }
      for (int64_t p = c.lengths[s] - c.n_queries[s]; p < c.lengths[s]; ++p) {
        positions.push_back(static_cast<int32_t>(p));
        sequences.push_back(static_cast<int32_t>(s));
      }
    }
    op.set_cache(layer, std::move(bytes));
    op.set_input(Input::positions, positions);
    op.set_input(Input::sequences, sequences);
    op.set_input(Input::block_table, table);
  }

  void store(DType dtype, int64_t head_dim, int64_t row, std::vector<std::byte>& pool) {
    const std::vector<float> x = random_.normals(head_dim);
    quantize_row(dtype, x.data(), pool.data() + static_cast<size_t>(row) * row_bytes(dtype, head_dim), head_dim);
  }
};

constexpr DType kCacheDTypes[] = {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0};

TEST_F(GpuAttention, EveryCacheDtypeAndLengthOfOneQuery) {
  for (DType dtype : kCacheDTypes) {
    for (int64_t length : some_of<int64_t>({1, 31, 33, 2, 257, 32, 1000, 100, 4099}, 2)) {
      Case c;
      c.k_dtype = c.v_dtype = dtype;
      c.lengths = {length};
      check(c);
    }
  }
}

TEST_F(GpuAttention, EveryCacheDtypeAndNumberOfQueries) {
  for (DType dtype : kCacheDTypes) {
    using Size = std::pair<int64_t, int64_t>;
    for (const auto& [length, n] :
         some_of<Size>({{5, 5}, {2, 2}, {300, 65}, {64, 64}, {70, 3}, {130, 130}, {513, 17}}, 2)) {
      Case c;
      c.k_dtype = c.v_dtype = dtype;
      c.lengths = {length};
      c.n_queries = {n};
      check(c);
    }
  }
}

TEST_F(GpuAttention, MixedCacheDtypes) {
  for (DType k : {DType::F16, DType::Q8_0}) {
    for (DType v : {DType::F16, DType::BF16, DType::Q4_0}) {
      for (int64_t n : {1, 33}) {
        Case c;
        c.k_dtype = k;
        c.v_dtype = v;
        c.lengths = {150};
        c.n_queries = {n};
        check(c);
      }
    }
  }
}

TEST_F(GpuAttention, HeadsOfManyShapes) {
  struct Heads {
    int64_t n_head, n_head_kv, k, v;
  };
  for (const Heads& h : {Heads{1, 1, 32, 32}, {8, 8, 64, 64}, {32, 8, 128, 128}, {28, 4, 128, 128}, {9, 3, 64, 64}, {24, 3, 96, 96},
                         {5, 1, 80, 80}, {8, 4, 256, 256}, {4, 2, 192, 128}, {16, 1, 576, 512}, {8, 8, 8, 8}}) {
    for (int64_t n : some_of<int64_t>({1, 4, 50}, 2)) {
      Case c;
      c.n_head = h.n_head;
      c.n_head_kv = h.n_head_kv;
      c.head_dim_k = h.k;
      c.head_dim_v = h.v;
      c.lengths = {177};
      c.n_queries = {n};
      check(c);
    }
  }
}

TEST_F(GpuAttention, WindowSoftcapAndSinks) {
  for (int64_t window : {0, 1, 16, 100}) {
    for (float softcap : {0.0f, 20.0f}) {
      for (bool sinks : {false, true}) {
        for (int64_t n : {1, 40}) {
          Case c;
          c.window = window;
          c.softcap = softcap;
          c.sinks = sinks;
          c.lengths = {333};
          c.n_queries = {n};
          check(c);
        }
      }
    }
  }
}

TEST_F(GpuAttention, SeveralSequencesAtOnce) {
  for (int64_t block_size : {8, 16, 32, 64}) {
    Case c;
    c.block_size = block_size;
    c.lengths = {77, 1, 300, 32};
    c.n_queries = {1, 1, 1, 1};
    check(c);
    c.n_queries = {5, 1, 70, 32};
    check(c);
  }
}

}  // namespace
}  // namespace tandem::gpu_test
