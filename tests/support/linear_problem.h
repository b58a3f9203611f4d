// A matrix product with random weights, for comparing the kernels of an instruction set with the scalar ones. The weights
// are random blocks, so that every bit pattern of quants and scales occurs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "gguf/blocks.h"
#include "gguf/quants.h"

namespace tandem::cpu::test {

struct AlignedBytes {
  explicit AlignedBytes(size_t n) : p(static_cast<std::byte*>(std::aligned_alloc(64, (n + 127) / 64 * 64))) {}
  ~AlignedBytes() { std::free(p); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  std::byte* p;
};

// Whether products with this block stay far from the limits of floats.
inline bool is_moderate(const DTypeInfo& info, const std::byte* block) {
  std::vector<float> values(info.block_elements);
  info.to_float(block, values.data(), static_cast<int64_t>(values.size()));
  return std::all_of(values.begin(), values.end(), [](float v) { return std::abs(v) < 1.0f; });
}

// Random bits whose values are moderate and not all near zero.
inline void random_block(const DTypeInfo& info, std::byte* block, std::mt19937& rng) {
  std::vector<float> values(info.block_elements);
  bool is_large = false;
  do {
    for (size_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<std::byte>(rng());
    if (info.dtype == DType::NVFP4) {  // four scales at once are hardly ever small
      for (int i = 0; i < 4; ++i) block[i] &= std::byte{0x1f};
    }
    info.to_float(block, values.data(), static_cast<int64_t>(values.size()));
    is_large = std::any_of(values.begin(), values.end(), [](float v) { return std::abs(v) > 1e-3f; });
  } while (!is_large || !is_moderate(info, block));
}

// [m, k] of random codes and scales.
inline std::vector<std::byte> random_weights(DType dtype, int64_t m, int64_t k, std::mt19937& rng) {
  const DTypeInfo& info = dtype_info(dtype);
  std::vector<std::byte> w(row_bytes(dtype, k) * static_cast<size_t>(m));
  if (info.block_elements == 1) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(m * k));
    for (float& v : values) v = normal(rng);
    quantize_row(dtype, values.data(), w.data(), m * k);
    return w;
  }
  for (size_t at = 0; at < w.size(); at += info.block_bytes) random_block(info, w.data() + at, rng);
  return w;
}

inline std::vector<float> random_floats(int64_t n, std::mt19937& rng) {
  std::vector<float> v(static_cast<size_t>(n));
  std::normal_distribution<float> normal;
  for (float& x : v) x = normal(rng) * (rng() % 64 == 0 ? 8.0f : 1.0f);
  return v;
}

struct Problem {
  DType dtype;
  int64_t n, m, k;
  std::vector<std::byte> w;
  std::vector<float> x, bias, residual;
  const std::byte* elsewhere = nullptr;  // weights, if not w

  Problem(DType type, int64_t tokens, int64_t rows, int64_t columns, std::mt19937& rng)
      : dtype(type),
        n(tokens),
        m(rows),
        k(columns),
        w(random_weights(type, rows, columns, rng)),
        x(random_floats(tokens * columns, rng)),
        bias(random_floats(rows, rng)),
        residual(random_floats(tokens * rows, rng)) {}
};

enum class Extra { none, bias, residual, both, residual_in_place };

// Rows handed out `rows_at_once` at a time (rounded up to the kernels' granularity), and likewise tokens; 0: all at once.
inline std::vector<float> multiply(const LinearKernels& kernels, const Problem& p, Extra extra = Extra::none,
                                   int64_t rows_at_once = 0, int64_t tokens_at_once = 0) {
  AlignedBytes encoded(kernels.encoded_bytes(p.dtype, p.n, p.k)),
      scratch(kernels.scratch_bytes(p.dtype, p.n, p.k));
  const int64_t tokens = kernels.encode_granularity(p.dtype, p.n);
  for (int64_t t = 0; t < p.n; t += tokens) {
    kernels.encode(p.dtype, p.x.data(), p.k, p.n, p.k, t, std::min(t + tokens, p.n), encoded.p);
  }
  std::vector<float> y(static_cast<size_t>(p.n * p.m), -77.0f);
  LinearCall call;
  call.dtype = p.dtype;
  call.w = p.elsewhere ? p.elsewhere : p.w.data();
  call.n = p.n;
  call.m = p.m;
  call.k = p.k;
  call.x = encoded.p;
  call.y = y.data();
  call.ldy = call.ld_residual = p.m;
  if (extra == Extra::bias || extra == Extra::both) call.bias = p.bias.data();
  if (extra == Extra::residual || extra == Extra::both) call.residual = p.residual.data();
  if (extra == Extra::residual_in_place) {
    y = p.residual;
    call.residual = y.data();
  }
  const int64_t step = kernels.row_granularity(p.dtype, p.n, p.m, p.k);
  const int64_t rows = rows_at_once == 0 ? p.m : (rows_at_once + step - 1) / step * step;
  const int64_t part = tokens_at_once == 0 ? p.n : (tokens_at_once + tokens - 1) / tokens * tokens;
  for (int64_t r = 0; r < p.m; r += rows) {
    for (call.token0 = 0; call.token0 < p.n; call.token0 += part) {
      call.token1 = std::min(call.token0 + part, p.n);
      kernels.multiply(call, r, std::min(r + rows, p.m), scratch.p);
    }
  }
  return y;
}

// The bytes of a block that hold its weights' integers, for formats whose products are summed in parts that may cancel
// out: w = d q + m, or d (q - c) as d q - d c. None for others.
inline std::pair<size_t, size_t> integers_summed_apart(DType dtype) {
  switch (dtype) {
    case DType::Q4_0: return {offsetof(BlockQ4_0, qs), sizeof(BlockQ4_0)};
    case DType::Q8_0: return {offsetof(BlockQ8_0, qs), sizeof(BlockQ8_0)};
    case DType::Q5_0: return {offsetof(BlockQ5_0, qh), sizeof(BlockQ5_0)};
    case DType::IQ4_NL: return {offsetof(BlockIQ4_NL, qs), sizeof(BlockIQ4_NL)};
    case DType::MXFP4: return {offsetof(BlockMXFP4, qs), sizeof(BlockMXFP4)};
    case DType::IQ4_XS: return {offsetof(BlockIQ4_XS, qs), sizeof(BlockIQ4_XS)};
    case DType::Q3_K: return {0, offsetof(BlockQ3_K, scales)};
    case DType::Q6_K: return {0, offsetof(BlockQ6_K, scales)};
    case DType::Q4_1: return {offsetof(BlockQ4_1, qs), sizeof(BlockQ4_1)};
    case DType::Q5_1: return {offsetof(BlockQ5_1, qh), sizeof(BlockQ5_1)};
    case DType::Q2_K: return {offsetof(BlockQ2_K, qs), offsetof(BlockQ2_K, d)};
    case DType::Q4_K: return {offsetof(BlockQ4_K, qs), sizeof(BlockQ4_K)};
    case DType::Q5_K: return {offsetof(BlockQ5_K, qh), sizeof(BlockQ5_K)};
    default: return {0, 0};
  }
}

// The size of each weight of a row: |w|, or of the formats above the range of its block.
inline std::vector<float> sizes_of_weights(const Problem& p, int64_t row) {
  const std::byte* from = p.w.data() + row_bytes(p.dtype, p.k) * static_cast<size_t>(row);
  const auto apart = integers_summed_apart(p.dtype);
  const auto weights_with = [&](std::optional<std::byte> integers) {
    std::vector<std::byte> bytes(from, from + row_bytes(p.dtype, p.k));
    for (size_t at = 0; integers && at < bytes.size(); at += dtype_info(p.dtype).block_bytes) {
      std::fill(bytes.begin() + static_cast<int64_t>(at + apart.first),
                bytes.begin() + static_cast<int64_t>(at + apart.second), *integers);
    }
    std::vector<float> w(static_cast<size_t>(p.k));
    dequantize_row(p.dtype, bytes.data(), w.data(), p.k);
    return w;
  };
  if (apart.first == apart.second || p.dtype == DType::Q8_0) {
    // Kernels of unsigned codes multiply those of Q8_0 plus 128, and take off what that adds.
    std::vector<float> w = p.dtype == DType::Q8_0 ? weights_with(std::byte{0x80}) : weights_with({});
    for (float& x : w) x = std::abs(x);
    return w;
  }
  std::vector<float> w = weights_with(std::byte{0xff});
  const std::vector<float> lowest = weights_with(std::byte{0});
  // A block of zeros may have a scale whose range is no float.
  for (size_t i = 0; i < w.size(); ++i)
    w[i] = std::min(std::abs(w[i] - lowest[i]) + std::abs(lowest[i]), std::numeric_limits<float>::max());
  return w;
}

// Sum of |w| |x| of each output, with bias and residual: rounding errors are relative to it.
inline std::vector<float> magnitudes(const Problem& p, Extra extra = Extra::none) {
  const bool has_bias = extra == Extra::bias || extra == Extra::both;
  const bool has_residual = extra != Extra::none && extra != Extra::bias;
  std::vector<float> out(static_cast<size_t>(p.n * p.m));
  for (int64_t r = 0; r < p.m; ++r) {
    const std::vector<float> w = sizes_of_weights(p, r);
    for (int64_t t = 0; t < p.n; ++t) {
      double sum = 0;
      if (has_bias) sum += std::abs(p.bias[static_cast<size_t>(r)]);
      if (has_residual) sum += std::abs(p.residual[static_cast<size_t>(t * p.m + r)]);
      for (int64_t i = 0; i < p.k; ++i) {
        sum +=
            static_cast<double>(w[static_cast<size_t>(i)]) * std::abs(p.x[static_cast<size_t>(t * p.k + i)]);
      }
      out[static_cast<size_t>(t * p.m + r)] = static_cast<float>(sum);
    }
  }
  return out;
}

// Allowed difference from the scalar result, relative to magnitudes(). An ISA may round activations to BF16 for BF16
// weights; everything else differs by the order of float sums only.
inline double tolerance(DType dtype) {
  return dtype == DType::BF16 ? 0x1p-8 : 1e-5;
}

// The same with double precision, from the weights' values and activations that are not rounded.
inline std::vector<float> product_of_floats(const Problem& p, Extra extra = Extra::none) {
  const bool has_bias = extra == Extra::bias || extra == Extra::both;
  const bool has_residual = extra != Extra::none && extra != Extra::bias;
  std::vector<float> w(static_cast<size_t>(p.k)), out(static_cast<size_t>(p.n * p.m));
  for (int64_t r = 0; r < p.m; ++r) {
    dequantize_row(p.dtype, p.w.data() + row_bytes(p.dtype, p.k) * static_cast<size_t>(r), w.data(), p.k);
    for (int64_t t = 0; t < p.n; ++t) {
      const size_t at = static_cast<size_t>(t * p.m + r);
      double sum = 0;
      for (int64_t i = 0; i < p.k; ++i)
        sum += static_cast<double>(w[static_cast<size_t>(i)]) * p.x[static_cast<size_t>(t * p.k + i)];
      if (has_bias) sum += p.bias[static_cast<size_t>(r)];
      if (has_residual) sum += p.residual[at];
      out[at] = static_cast<float>(sum);
    }
  }
  return out;
}

// Whether an instruction set multiplies with tiles of bf16: its activations are not the reference's.
inline bool uses_tiles(Isa isa, DType dtype, int64_t n) {
  return isa == Isa::avx512_amx && avx512_amx::takes(dtype, n);
}

// Allowed difference from product_of_floats() with tiles, relative to magnitudes(): 2^-8 for each factor that is rounded
// to bf16. Halves lose nothing, floats of tiny sums a little.
inline double tile_tolerance(DType dtype) {
  const bool exact = dtype == DType::F16 || dtype == DType::BF16;
  return (exact ? 0x1p-8 : 0x1p-7) * 1.01;
}

// The product that an instruction set must come close to, and how close.
struct Reference {
  std::vector<float> values;
  double tolerance;
};
inline Reference reference_of(Isa isa, const Problem& p, Extra extra = Extra::none) {
  if (uses_tiles(isa, p.dtype, p.n)) return {product_of_floats(p, extra), tile_tolerance(p.dtype)};
  return {multiply(cpu::kernels(Isa::scalar).linear, p, extra), tolerance(p.dtype)};
}

// The largest difference in units of the magnitude, and its index; a NaN is larger than any.
inline std::pair<double, size_t> worst_error(const std::vector<float>& got, const std::vector<float>& want,
                                             const std::vector<float>& magnitude) {
  std::pair<double, size_t> worst;
  for (size_t i = 0; i < got.size(); ++i) {
    if (magnitude[i] > std::numeric_limits<float>::max() / 4) continue;  // parts of the sum may be no floats
    const double error = std::abs(got[i] - want[i]) / (magnitude[i] + 1e-3);
    if (std::isnan(error)) return {error, i};
    if (error > worst.first) worst = {error, i};
  }
  return worst;
}

}  // namespace tandem::cpu::test
