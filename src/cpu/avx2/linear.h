// Shared by the files of the AVX2 matrix products: the encoding of activations, and the kernels of a dtype. The files are
// compiled twice, for AVX2 and as avx_vnni with AVX-VNNI (kVnni in linear_simd.h).
//
// An encoded token is contiguous: the columns as int8 (int16 if a panel kernel wants it), then float scales,
// float sums and centres, each part padded with zeros so that kernels may read whole vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fp16.h"
#include "cpu/linear_kernels.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

// The order of the int8 columns within 256 of them: for sums whose lanes are blocks or sub-blocks of 32, dwords of four columns, of which
// a block has eight. blocks: vector j of 32 bytes holds dword j of each block. sub_blocks: vector 2j + i holds dwords j of blocks i, i + 2,
// i + 4, i + 6, then their dwords j + 4. halves: of each 128 columns, vector j holds dword j of the halves of a block 0, 1, 4, 5, then 2, 3,
// 6, 7.
enum class ActOrder { columns, blocks, sub_blocks, halves };

// The encoding that one kernel reads.
struct ActFormat {
  int block;   // columns that share a scale, 32 or 256; 0: the activations stay floats and the rest is 0
  int sum;     // columns of one sum, 16 or 32; 0: no sums
  int centre;  // what the weights' unsigned integers are shifted by; 0: no centres
  bool wide;   // int16 columns
  ActOrder order = ActOrder::columns;
};

TANDEM_INLINE bool equal(const ActFormat& a, const ActFormat& b) {
  return a.block == b.block && a.sum == b.sum && a.centre == b.centre && a.wide == b.wide && a.order == b.order;
}

// Byte offsets of the parts of a token; stride is the size of the whole.
struct ActLayout {
  size_t scales;  // float[k / block]
  size_t sums;    // float[k / sum]: scale times the sum of the integers
  // int16[k / sum][2]: -centre times the sum of columns 0 1 4 5 8 9.. and of columns 2 3 6 7..; with VNNI
  // int32[k / sum]: -centre times the sum.
  size_t centres;
  size_t stride;
};

TANDEM_INLINE ActLayout act_layout(const ActFormat& f, int64_t k) {
  const size_t padded = (static_cast<size_t>(k) + 255) / 256 * 256;
  ActLayout at{};
  at.scales = f.block == 0 ? padded * 4 : padded * (f.wide ? 2 : 1);
  at.sums = at.scales + (f.block == 0 ? 0 : (padded / static_cast<size_t>(f.block) * 4 + 31) / 32 * 32);
  at.centres = at.sums + (f.sum == 0 ? 0 : padded / static_cast<size_t>(f.sum) * 4);
  at.stride = at.centres + (f.centre == 0 ? 0 : padded / static_cast<size_t>(f.sum) * 4);
  at.stride = (at.stride + 63) / 64 * 64;
  return at;
}

// One encoded token.
struct ActToken {
  const std::byte* columns;  // [k] int8, int16 or float
  const float* scales;
  const float* sums;
  const int32_t* centres;  // the int16 pairs, or int32
};

TANDEM_INLINE ActToken act_token(const std::byte* encoded, const ActLayout& at, int64_t token) {
  const std::byte* base = encoded + static_cast<size_t>(token) * at.stride;
  return {base, reinterpret_cast<const float*>(base + at.scales),
          reinterpret_cast<const float*>(base + at.sums),
          reinterpret_cast<const int32_t*>(base + at.centres)};
}

void encode_tokens(const ActFormat& format, const float* x, int64_t ldx, int64_t k, int64_t token0,
                   int64_t token1, std::byte* encoded);

struct DtypeKernels {
  ActFormat dot_format, panel_format;
  int64_t panel_from;    // minimum tokens for which unpacking the weights pays
  int64_t dot_rows;      // that dot products take at a time
  size_t panel_scratch;  // bytes
  void (*dot)(const LinearCall& call, int64_t row0, int64_t row1);
  void (*panel)(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch);
};

// Return nullptr for dtypes of another file.
const DtypeKernels* float_kernels(DType dtype);        // F32, F16, BF16
const DtypeKernels* block_kernels(DType dtype);        // blocks of 32
const DtypeKernels* wide_block_kernels(DType dtype);   // blocks of 64 and 128
const DtypeKernels* super_block_kernels(DType dtype);  // blocks of 256
const DtypeKernels* grid_kernels(DType dtype);         // the same, of vectors of a grid

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
