// Attention of every ISA over grouped caches (gguf/kivi.h), some of whose blocks are open: against the scalar kernels over an
// F32 cache that holds what the grouped one means.
#include <cmath>
#include <cstring>

#include "cpu/kernels.h"
#include "gguf/kivi.h"
#include "gguf/quants.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::Random;

// One half of one head's cache: grouped or of another type, and the same as F32.
struct Half {
  DType dtype;
  bool are_keys;
  int64_t head_dim, n_blocks;
  std::vector<std::byte> pool, open, floats;

  Half(Random& random, DType t, bool keys, int64_t dim, std::span<const int32_t> open_of)
      : dtype(t), are_keys(keys), head_dim(dim), n_blocks(static_cast<int64_t>(open_of.size())) {
    pool.assign(row_bytes(t, dim) * static_cast<size_t>(kKiviGroup * n_blocks), std::byte{0xff});  // NaN
    open.assign(row_bytes(DType::F16, dim) * static_cast<size_t>(kKiviGroup * n_blocks), std::byte{0xff});
    floats.resize(row_bytes(DType::F32, dim) * static_cast<size_t>(kKiviGroup * n_blocks));
    for (int64_t b = 0; b < n_blocks; ++b) fill(random, b, open_of[static_cast<size_t>(b)]);
  }

  size_t stride(DType t) const { return row_bytes(t, head_dim) * static_cast<size_t>(kKiviGroup); }

  void fill(Random& random, int64_t b, int32_t place) {
    const std::vector<float> x = random.normals(kKiviGroup * head_dim);
    auto* meant = reinterpret_cast<float*>(floats.data() + static_cast<size_t>(b) * stride(DType::F32));
    std::byte* at = pool.data() + static_cast<size_t>(b) * stride(dtype);
    const int64_t n = kKiviGroup * head_dim;
    if (is_kivi(dtype) && place >= 0) {
      at = open.data() + static_cast<size_t>(place) * stride(DType::F16);
      quantize_row(DType::F16, x.data(), at, n);
      dequantize_row(DType::F16, at, meant, n);
    } else if (is_kivi(dtype) && are_keys) {
      quantize_key_group(dtype, x.data(), at, head_dim);
      dequantize_key_group(dtype, at, 0, kKiviGroup, meant, head_dim);
    } else {
      quantize_row(dtype, x.data(), at, n);
      dequantize_row(dtype, at, meant, n);
    }
  }
};

struct Result {
  std::vector<float> acc, sum, max;

  explicit Result(const AttentionCall& call)
      : acc(static_cast<size_t>(call.n_queries * call.head_dim_v), std::nanf("")),
        sum(static_cast<size_t>(call.n_queries), std::nanf("")),
        max(sum) {}
  // acc over sum.
  double value(size_t query, size_t column, size_t n_columns) const {
    return sum[query] == 0 ? 0 : static_cast<double>(acc[query * n_columns + column]) / sum[query];
  }
};

Result attend_groups(const AttentionKernels& kernels, AttentionCall call) {
  Result r(call);
  call.acc = r.acc.data();
  call.sum = r.sum.data();
  call.max = r.max.data();
  std::vector<std::byte> memory(kernels.scratch_bytes(call) + 64);
  void* scratch = memory.data();
  size_t space = memory.size();
  std::align(64, memory.size() - 64, scratch, space);
  kernels.attend(call, static_cast<std::byte*>(scratch));
  return r;
}

void check_groups(Random& random, DType k_dtype, DType v_dtype, int64_t hd_k, int64_t hd_v,
                  int64_t n_queries) {
  const int64_t n_blocks = 2 + random.below(9),
                n_positions = n_blocks * kKiviGroup - random.below(kKiviGroup);
  std::vector<int32_t> table, open_of;
  for (int32_t b = 0; b < n_blocks; ++b) table.push_back(b);
  random.shuffle(table);
  int32_t n_open = 0;
  for (int64_t b = 0; b < n_blocks; ++b) open_of.push_back(random.below(3) == 0 ? n_open++ : -1);
  const Half k(random, k_dtype, true, hd_k, open_of), v(random, v_dtype, false, hd_v, open_of);
  std::vector<std::vector<float>> q;
  std::vector<const float*> rows;
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < n_queries; ++i) {
    q.push_back(random.normals(hd_k));
    positions.push_back(
        static_cast<int32_t>(n_positions - 1 - random.below(std::min<int64_t>(n_positions, 40))));
  }
  for (const auto& row : q) rows.push_back(row.data());
  AttentionCall call;
  call.k_dtype = call.v_dtype = DType::F32;
  call.head_dim_k = hd_k;
  call.head_dim_v = hd_v;
  call.block_size = kKiviGroup;
  call.k = k.floats.data();
  call.v = v.floats.data();
  call.k_block_stride = k.stride(DType::F32);
  call.v_block_stride = v.stride(DType::F32);
  call.block_table = table.data();
  call.scale = 1 / std::sqrt(static_cast<float>(hd_k));
  call.softcap = random.below(2) ? 3.0f : 0.0f;
  call.window = random.below(2) ? 50 : 0;
  call.n_queries = n_queries;
  call.q = rows.data();
  call.positions = positions.data();
  call.kv_begin = random.below(2) * kKiviGroup;
  call.kv_end = n_positions;
  const Result expected = attend_groups(scalar::attention_kernels(), call);
  call.k_dtype = k_dtype;
  call.v_dtype = v_dtype;
  call.k = k.pool.data();
  call.v = v.pool.data();
  call.k_block_stride = k.stride(k_dtype);
  call.v_block_stride = v.stride(v_dtype);
  call.open_of = open_of.data();
  call.k_open = k.open.data();
  call.v_open = v.open.data();
  call.k_open_stride = k.stride(DType::F16);
  call.v_open_stride = v.stride(DType::F16);
  for (const Isa isa : supported_isas()) {
    const AttentionKernels& kernels = cpu::kernels(isa).attention;
    if (n_queries > kernels.max_queries) continue;
    const Result got = attend_groups(kernels, call);
    double worst = 0;
    for (size_t i = 0; i < static_cast<size_t>(n_queries); ++i) {
      for (size_t d = 0; d < static_cast<size_t>(hd_v); ++d) {
        const double difference =
            got.value(i, d, static_cast<size_t>(hd_v)) - expected.value(i, d, static_cast<size_t>(hd_v));
        ASSERT_TRUE(std::isfinite(difference)) << isa_name(isa) << " query " << i << " column " << d;
        worst = std::max(worst, std::fabs(difference));
      }
    }
    EXPECT_LE(worst, test::attention_tolerance(isa, call))
        << isa_name(isa) << " " << dtype_name(k_dtype) << "/" << dtype_name(v_dtype) << " heads of " << hd_k
        << "x" << hd_v << " queries " << n_queries;
  }
}

TEST(AttentionGroups, EveryIsaReadsWhatTheGroupsMean) {
  Random random;
  for (const DType dtype : {DType::KIVI4, DType::KIVI2}) {
    for (const int64_t head_dim : {32, 64, 96, 128, 256}) {
      for (const int64_t n_queries : {1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 64}) {
        check_groups(random, dtype, dtype, head_dim, head_dim, n_queries);
      }
    }
  }
}

TEST(AttentionGroups, KeysAndValuesOfOtherTypes) {
  Random random;
  for (const DType other : {DType::F32, DType::F16, DType::Q8_0, DType::Q4_0, DType::IQ4_NL, DType::KIVI2}) {
    for (const int64_t n_queries : {1, 4, 20}) {
      check_groups(random, DType::KIVI4, other, 64, 96, n_queries);
      check_groups(random, other, DType::KIVI4, 96, 64, n_queries);
      check_groups(random, other, DType::KIVI2, 64, 64, n_queries);
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
