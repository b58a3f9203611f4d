// Attention of few queries over quantized caches, which some instruction sets compute in integers: its rounding beside that of
// the cache, and inputs that are hard for codes.
#include <cmath>
#include <iterator>
#include <limits>

#include "gguf/blocks.h"
#include "gguf/quants.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::Random;
constexpr DType kCoded[] = {DType::Q8_0, DType::Q5_1, DType::Q5_0, DType::Q4_1, DType::Q4_0, DType::IQ4_NL};
using Rows = std::vector<std::vector<float>>;

bool has_min(DType dtype) {
  return dtype == DType::Q4_1 || dtype == DType::Q5_1;
}

// A head's rows in blocks, in order; those after the last are 0xff bytes, whose scales are NaN.
std::vector<std::byte> coded(DType dtype, const Rows& rows, int64_t block_size) {
  const int64_t n = static_cast<int64_t>(rows.size()), n_cols = static_cast<int64_t>(rows[0].size());
  const size_t row = row_bytes(dtype, n_cols);
  std::vector<std::byte> bytes(row * static_cast<size_t>((n + block_size - 1) / block_size * block_size),
                               std::byte{0xff});
  for (int64_t i = 0; i < n; ++i)
    quantize_cache_row(dtype, rows[static_cast<size_t>(i)].data(),
                       bytes.data() + static_cast<size_t>(i) * row, n_cols);
  return bytes;
}
Rows decoded(DType dtype, const std::vector<std::byte>& bytes, size_t n, size_t n_cols) {
  Rows rows(n, std::vector<float>(n_cols));
  const size_t row = row_bytes(dtype, static_cast<int64_t>(n_cols));
  for (size_t i = 0; i < n; ++i)
    dequantize_row(dtype, bytes.data() + i * row, rows[i].data(), static_cast<int64_t>(n_cols));
  return rows;
}

// softmax(q K) V in double precision.
std::vector<double> softmax_attention(const std::vector<float>& q, const Rows& k, const Rows& v,
                                      double scale) {
  std::vector<double> scores, y(v[0].size());
  for (const std::vector<float>& key : k) {
    double s = 0;
    for (size_t d = 0; d < q.size(); ++d) s += static_cast<double>(q[d]) * key[d];
    scores.push_back(s * scale);
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    const double weight = std::exp(scores[i] - max);
    total += weight;
    for (size_t d = 0; d < y.size(); ++d) y[d] += weight * v[i][d];
  }
  for (double& x : y) x /= total;
  return y;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// One key-value head with queries that all see all of it.
struct CodedHead {
  DType k_dtype = DType::Q8_0, v_dtype = DType::Q8_0;
  int64_t block_size = 32;
  Rows q, k, v;

  double scale() const { return 1.0 / std::sqrt(static_cast<double>(k[0].size())); }

  // [n_queries][head_dim_v]
  std::vector<std::vector<double>> attend(Isa isa, const std::vector<std::byte>& keys,
                                          const std::vector<std::byte>& values) const {
    const int64_t n = static_cast<int64_t>(q.size()), n_positions = static_cast<int64_t>(k.size());
    std::vector<int32_t> table, positions(q.size(), static_cast<int32_t>(n_positions - 1));
    for (int64_t i = 0; i * block_size < n_positions; ++i) table.push_back(static_cast<int32_t>(i));
    std::vector<const float*> rows;
    for (const std::vector<float>& row : q) rows.push_back(row.data());
    const size_t n_cols = v[0].size();
    std::vector<float> acc(q.size() * n_cols), sum(q.size()), max(q.size());
    AttentionCall call;
    call.k_dtype = k_dtype, call.v_dtype = v_dtype;
    call.head_dim_k = static_cast<int64_t>(k[0].size()), call.head_dim_v = static_cast<int64_t>(n_cols);
    call.block_size = block_size;
    call.k = keys.data(), call.v = values.data();
    call.k_block_stride = row_bytes(k_dtype, call.head_dim_k) * static_cast<size_t>(block_size);
    call.v_block_stride = row_bytes(v_dtype, call.head_dim_v) * static_cast<size_t>(block_size);
    call.block_table = table.data();
    call.scale = static_cast<float>(scale());
    call.n_queries = n;
    call.q = rows.data(), call.positions = positions.data();
    call.kv_end = n_positions;
    call.acc = acc.data(), call.sum = sum.data(), call.max = max.data();
    const AttentionKernels& kernels = test::attention_of(isa);
    std::vector<float> scratch(kernels.scratch_bytes(call) / sizeof(float) + 32, std::nanf(""));
    auto* p = reinterpret_cast<std::byte*>(scratch.data());
    kernels.attend(call, p + (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64);
    std::vector<std::vector<double>> y(q.size(), std::vector<double>(n_cols));
    for (size_t i = 0; i < acc.size(); ++i)
      y[i / n_cols][i % n_cols] = static_cast<double>(acc[i]) / sum[i / n_cols];
    return y;
  }
};

Rows normals(Random& random, int64_t n, int64_t n_cols, float deviation = 1.0f) {
  Rows rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(random.normals(n_cols, deviation));
  return rows;
}

void scale_column(Rows& rows, int64_t column, float by) {
  for (std::vector<float>& row : rows) row[static_cast<size_t>(column)] *= by;
}

struct CacheErrors {
  double of_kernel = 0, of_cache = 0;  // relative to all results
};

// The kernel's distance from the exact result over the cached rows, and that result's from the one over the rows before
// they were stored.
CacheErrors cache_errors(const CodedHead& head, Isa isa) {
  const std::vector<std::byte> keys = coded(head.k_dtype, head.k, head.block_size);
  const std::vector<std::byte> values = coded(head.v_dtype, head.v, head.block_size);
  const Rows k = decoded(head.k_dtype, keys, head.k.size(), head.k[0].size());
  const Rows v = decoded(head.v_dtype, values, head.v.size(), head.v[0].size());
  const std::vector<std::vector<double>> y = head.attend(isa, keys, values);
  CacheErrors errors;
  double size = 0;
  for (size_t i = 0; i < head.q.size(); ++i) {
    const std::vector<double> cached = softmax_attention(head.q[i], k, v, head.scale());
    const std::vector<double> exact = softmax_attention(head.q[i], head.k, head.v, head.scale());
    errors.of_kernel += std::pow(distance(y[i], cached), 2);
    errors.of_cache += std::pow(distance(cached, exact), 2);
    size += std::pow(distance(exact, std::vector<double>(exact.size())), 2);
  }
  return {std::sqrt(errors.of_kernel / size), std::sqrt(errors.of_cache / size)};
}

// A tenth of the cache's own error is half a percent of it when both add up. Bytes alone would be as large as it; the
// kernels are at a hundredth, more where one position takes nearly all of the weight.
void expect_small(const CodedHead& head, const std::string& what) {
  for (const Isa isa : supported_isas()) {
    const CacheErrors errors = cache_errors(head, isa);
    EXPECT_LE(errors.of_kernel, 0.1 * errors.of_cache) << isa_name(isa) << " " << what;
    if (isa == best_isa()) {
      ::testing::Test::RecordProperty(what + ", kernel", std::to_string(errors.of_kernel));
      ::testing::Test::RecordProperty(what + ", cache", std::to_string(errors.of_cache));
    }
  }
}

TEST(AttentionCodes, RoundingIsFarBelowThatOfTheCache) {
  Random random;
  for (const DType k : kCoded) {
    for (const DType v : kCoded) {
      for (const int64_t dim : {64, 128}) {
        CodedHead head;
        head.k_dtype = k, head.v_dtype = v;
        head.q = normals(random, 1 + random.below(16), dim);
        head.k = normals(random, 300 + random.below(200), dim);
        head.v = normals(random, static_cast<int64_t>(head.k.size()), dim);
        const std::string what =
            std::string(dtype_name(k)) + "/" + std::string(dtype_name(v)) + " of " + std::to_string(dim);
        expect_small(head, what);
        // Columns that are far greater than their neighbours, of queries, keys and both.
        scale_column(head.q, random.below(dim), 30.0f);
        expect_small(head, what + " with a large column of queries");
        const int64_t column = random.below(dim);
        scale_column(head.k, column, 30.0f);
        scale_column(head.q, column, 1.0f / 30.0f);
        expect_small(head, what + " with a large column of keys");
      }
    }
  }
}

// The first position takes nearly all of the attention and has tiny values, as in many models: the others' weights must
// not round to nothing beside it.
TEST(AttentionCodes, APositionWithMostOfTheWeightAndTinyValues) {
  Random random;
  for (const DType dtype : kCoded) {
    CodedHead head;
    head.k_dtype = head.v_dtype = dtype;
    head.q = normals(random, 1 + random.below(16), 64, 0.3f);
    head.k = normals(random, 64, 64);
    head.v = normals(random, 64, 64);
    for (size_t d = 0; d < 64; ++d) {
      head.k[0][d] = 0.3f;
      head.v[0][d] *= 1e-4f;
      for (std::vector<float>& q : head.q) q[d] = 3.0f + 0.1f * q[d];
    }
    for (size_t i = 1; i < head.k.size(); ++i) {
      for (float& x : head.k[i]) x *= 0.1f;
    }
    expect_small(head, std::string(dtype_name(dtype)));
  }
}

// Blocks of other programs may have scales of either sign and any code.
TEST(AttentionCodes, AnyBlocks) {
  Random random;
  for (int round = 0; round < 60; ++round) {
    CodedHead head;
    head.k_dtype = kCoded[random.below(std::size(kCoded))];
    head.v_dtype = kCoded[random.below(std::size(kCoded))];
    constexpr int64_t kBlockSizes[] = {8, 16, 24, 48, 64, 256};
    head.block_size = kBlockSizes[random.below(std::size(kBlockSizes))];
    const int64_t n = 1 + random.below(200), hd_k = 32 * (1 + random.below(9)),
                  hd_v = 32 * (1 + random.below(9));
    head.q = normals(random, 1 + random.below(16), hd_k, 0.3f);
    head.k = normals(random, n, hd_k);
    head.v = normals(random, n, hd_v);
    std::vector<std::byte> keys = coded(head.k_dtype, head.k, head.block_size);
    std::vector<std::byte> values = coded(head.v_dtype, head.v, head.block_size);
    const auto scramble = [&](std::vector<std::byte>& bytes, DType dtype, size_t n_rows, int64_t n_cols) {
      const size_t block = row_bytes(dtype, QK), n_blocks = n_rows * row_bytes(dtype, n_cols) / block;
      for (size_t b = 0; b < n_blocks; ++b) {
        for (size_t i = 2; i < block; ++i) bytes[b * block + i] = static_cast<std::byte>(random.below(256));
        const fp16_t d[2] = {fp32_to_fp16(random.normal(0.01f)), fp32_to_fp16(random.normal(0.1f))};
        std::memcpy(bytes.data() + b * block, d, has_min(dtype) ? sizeof d : sizeof d[0]);
      }
    };
    scramble(keys, head.k_dtype, head.k.size(), hd_k);
    scramble(values, head.v_dtype, head.v.size(), hd_v);
    head.k = decoded(head.k_dtype, keys, head.k.size(), static_cast<size_t>(hd_k));
    head.v = decoded(head.v_dtype, values, head.v.size(), static_cast<size_t>(hd_v));
    for (const Isa isa : supported_isas()) {
      const std::vector<std::vector<double>> y = head.attend(isa, keys, values);
      for (size_t i = 0; i < head.q.size(); ++i) {
        const std::vector<double> want = softmax_attention(head.q[i], head.k, head.v, head.scale());
        const double size = distance(want, std::vector<double>(want.size()));
        EXPECT_LE(distance(y[i], want), (has_min(head.v_dtype) ? 6e-4 : 2e-4) * size + 1e-7)
            << isa_name(isa) << " " << dtype_name(head.k_dtype) << " " << dtype_name(head.v_dtype) << " "
            << hd_k << "x" << hd_v << " " << n << " positions, query " << i;
      }
    }
  }
}

// What is not a number shows: in a query, and in a scale of a key or value.
TEST(AttentionCodes, NaNReachesTheResult) {
  Random random;
  for (const DType dtype : kCoded) {
    CodedHead head;
    head.k_dtype = head.v_dtype = dtype;
    head.q = normals(random, 3 + random.below(14), 64);
    head.k = head.v = normals(random, 100, 64);
    const std::vector<std::byte> keys = coded(dtype, head.k, head.block_size);
    const size_t row = row_bytes(dtype, 64);
    std::vector<std::byte> spoiled = keys;
    std::memset(spoiled.data() + static_cast<size_t>(random.below(100)) * row, 0xff, 2);
    for (const Isa isa : supported_isas()) {
      for (const std::vector<double>& y : head.attend(isa, spoiled, keys)) EXPECT_TRUE(std::isnan(y[40]));
      for (const std::vector<double>& y : head.attend(isa, keys, spoiled)) EXPECT_TRUE(std::isnan(y[3]));
      CodedHead other = head;
      other.q[1][33] = std::nanf("");
      const std::vector<std::vector<double>> y = other.attend(isa, keys, keys);
      for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i][5]), i == 1) << isa_name(isa) << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
