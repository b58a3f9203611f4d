// Products with weights that are floats: F32, F16, BF16. Activations stay F32; any number of columns.
#include "cpu/avx2/linear_drive.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

struct F32 {
  using Value = float;
  TANDEM_INLINE static __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
};
struct F16 {
  using Value = fp16_t;
  TANDEM_INLINE static __m256 load8(const fp16_t* p) { return _mm256_cvtph_ps(load128(p)); }
};
struct BF16 {
  using Value = bf16_t;
  TANDEM_INLINE static __m256 load8(const bf16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
  }
};

// Loads the last n < 8 values, zero-padded: a row may end where the mapping does.
template <class Format>
TANDEM_INLINE __m256 load_rest(const typename Format::Value* p, int64_t n) {
  typename Format::Value values[8] = {};
  std::memcpy(values, p, static_cast<size_t>(n) * sizeof(values[0]));
  return Format::load8(values);
}

template <class Format>
struct DotFloat {
  using Value = typename Format::Value;
  static constexpr ActFormat format{};
  static constexpr int most_tokens = 4;
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return static_cast<size_t>(k) * sizeof(Value); }

  template <int T>
  TANDEM_INLINE static void dot(const std::byte* row, const ActToken (&x)[T], int64_t k, float (&sums)[T]) {
    constexpr int kAcc = T == 1 ? 4 : 2;  // enough independent sums to hide the latency
    const Value* w = reinterpret_cast<const Value*>(row);
    __m256 acc[T][kAcc];
    for (int t = 0; t < T; ++t) {
      for (int j = 0; j < kAcc; ++j) acc[t][j] = _mm256_setzero_ps();
    }
    const auto step = [&](__m256 v, int64_t column, int j) __attribute__((always_inline)) {
      for (int t = 0; t < T; ++t) {
        const float* columns = reinterpret_cast<const float*>(x[t].columns);
        acc[t][j % kAcc] = _mm256_fmadd_ps(v, _mm256_loadu_ps(columns + column), acc[t][j % kAcc]);
      }
    };
    int64_t c = 0;
    for (; c + 32 <= k; c += 32) {
      prefetch_ahead(w + c, 32 * sizeof(Value));
      for (int j = 0; j < 4; ++j) step(Format::load8(w + c + 8 * j), c + 8 * j, j);
    }
    for (; c + 8 <= k; c += 8) step(Format::load8(w + c), c, 0);
    if (c < k) step(load_rest<Format>(w + c, k - c), c, 1);
    for (int t = 0; t < T; ++t) {
      __m256 sum = _mm256_add_ps(acc[t][0], acc[t][1]);
      if constexpr (kAcc == 4) sum = _mm256_add_ps(sum, _mm256_add_ps(acc[t][2], acc[t][3]));
      sums[t] = sum_lanes(sum);
    }
  }
};

// F32 panels of 16 rows; 2 vectors of rows times 6 tokens stay in registers.
template <class Format>
struct FloatPanel {
  using Value = typename Format::Value;
  static constexpr ActFormat format{};
  static constexpr int most_tokens = 6;
  static constexpr int64_t k_columns = 384;
  struct alignas(64) Chunk {
    float w[k_columns][2][8];  // [column][half of the strip][8 rows]
  };
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return static_cast<size_t>(k) * sizeof(Value); }

  TANDEM_INLINE static void pack(const Strip& strip, int64_t k0, int64_t columns, Chunk& to) {
    for (int64_t c = 0; c < columns; c += 8) {
      const int64_t n = columns - c < 8 ? columns - c : 8;
      for (int p = 0; p < 2; ++p) {
        __m256 v[8];
        for (int r = 0; r < 8; ++r) {
          const Value* w = reinterpret_cast<const Value*>(strip.rows[8 * p + r]) + k0 + c;
          if (c % 32 == 0) prefetch<_MM_HINT_T1>(w, strip.to_next, 32 * sizeof(Value));
          v[r] = n == 8 ? Format::load8(w) : load_rest<Format>(w, n);
        }
        transpose8(v);
        for (int i = 0; i < 8; ++i) _mm256_store_ps(to.w[c + i][p], v[i]);
      }
    }
  }

  template <int T>
  TANDEM_INLINE static void tile(const Chunk& chunk, const ActToken (&x)[T], int64_t k0, int64_t columns,
                                 __m256 (&sums)[2][T]) {
    const float* from[T];
    for (int t = 0; t < T; ++t) from[t] = reinterpret_cast<const float*>(x[t].columns) + k0;
    __m256 acc[2][T];
    for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (int64_t c = 0; c < columns; ++c) {
      const __m256 w0 = _mm256_load_ps(chunk.w[c][0]), w1 = _mm256_load_ps(chunk.w[c][1]);
      for (int t = 0; t < T; ++t) {
        const __m256 column = _mm256_broadcast_ss(from[t] + c);
        acc[0][t] = _mm256_fmadd_ps(w0, column, acc[0][t]);
        acc[1][t] = _mm256_fmadd_ps(w1, column, acc[1][t]);
      }
    }
    for (int t = 0; t < T; ++t) {
      sums[0][t] = acc[0][t];
      sums[1][t] = acc[1][t];
    }
  }
};

template <class Format>
constexpr DtypeKernels kernels_for = dtype_kernels<DotFloat<Format>, FloatPanel<Format>>(6);

}  // namespace

const DtypeKernels* float_kernels(DType dtype) {
  switch (dtype) {
    case DType::F32: return &kernels_for<F32>;
    case DType::F16: return &kernels_for<F16>;
    case DType::BF16: return &kernels_for<BF16>;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
