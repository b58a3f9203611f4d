// How quantized matrices lie on the device. The file's blocks of 18 or 210 bytes are split into planes,
// arrays of equal, aligned pieces in block order, so that a warp reads consecutive pieces with one wide load
// per lane.
//
// The unit is the block: 32 consecutive columns of a row, whatever the dtype. A matrix [m, k] has m * k / 32
// blocks; column block b of row r is block r * (k / 32) + b. Eight consecutive blocks are a super-block of
// the K types. Inside a block the columns 0..15 are the first half and 16..31 the second, and word w of a
// half is its columns 4w..4w+3: the bytes of an operand of dp4a, and the fragments of the tensor cores'
// m16n8k32 product.
//
//   plane    piece            what
//   low      a block          low bits of the codes (Q8_0: the first half)
//   high     a block          high bits of the codes (Q8_0: the second half)
//   scale    a block          scale, or scales of the halves
//   super    a super-block    what the blocks of a super-block share
//
// Every plane starts on a multiple of 256 bytes. The matrices of a weight with several (experts) follow each
// other, each with planes of its own. F32, F16 and BF16 lie as in the file, padded to 256 bytes, and so do
// formats without kernels of their own (dtypes.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml-cuda/portable.h"
#include "gguf/dtype.h"

namespace tandem::cuda {

inline constexpr int kBlockColumns = 32;
inline constexpr int kSuperBlocks = 8;  // blocks in a super-block

// Bytes of a piece of each plane; 0: the dtype has no such plane.
struct PieceBytes {
  int low = 0, high = 0, scale = 0, super = 0;
};

TANDEM_HD constexpr PieceBytes piece_bytes(DType dtype) {
  switch (dtype) {
    case DType::Q4_0: return {16, 0, 2, 0};  // f16 scale
    case DType::Q4_1: return {16, 0, 4, 0};  // f16 scale, f16 minimum
    case DType::Q5_0: return {16, 4, 2, 0};
    case DType::Q5_1: return {16, 4, 4, 0};
    case DType::Q8_0: return {16, 16, 2, 0};
    case DType::Q2_K: return {8, 0, 2, 4};    // a byte a half: scale | minimum << 4; super: f16 d, f16 dmin
    case DType::Q3_K: return {8, 4, 2, 2};    // a signed byte a half; super: f16 d
    case DType::Q4_K: return {16, 0, 0, 16};  // super: f16 d, f16 dmin, then see k4_scale
    case DType::Q5_K: return {16, 4, 0, 16};
    case DType::Q6_K: return {16, 8, 2, 2};  // as Q3_K
    case DType::IQ4_NL: return {16, 0, 2, 0};
    case DType::IQ4_XS: return {16, 0, 0, 8};  // super: f16 d, u16 high bits, u32 low bits of the scales
    case DType::MXFP4:
      return {16, 0, 1, 0};  // an exponent
    // Vectors of a grid (grid_formats.h): indices; signs, and above seven of eight the scale or the ninth bits of the indices.
    case DType::IQ2_XXS: return {4, 4, 0, 2};  // super: f16 d
    case DType::IQ2_XS: return {4, 4, 1, 2};   // two nibbles of scales
    case DType::IQ2_S: return {4, 4, 2, 2};    // the same, then two high bits of each index
    case DType::IQ3_XXS: return {8, 4, 0, 2};
    case DType::IQ3_S:
      return {8, 4, 1, 8};  // a high bit of each index; super: f16 d, two bytes free, nibbles of scales
    // Scale: the file's high bits of the indices and signs of the eighths, IQ1_S: and the block's scale; super: f16 d, IQ1_M: and
    // three bits a half.
    case DType::IQ1_S: return {4, 0, 2, 2};
    case DType::IQ1_M: return {4, 0, 2, 8};
    case DType::TQ2_0: return {8, 0, 0, 2};   // super: f16 d
    case DType::NVFP4: return {16, 0, 2, 0};  // an E4M3 byte a half
    case DType::Q1_0: return {4, 0, 2, 0};
    default: return {};
  }
}

TANDEM_HD constexpr bool has_planes(DType dtype) {
  return piece_bytes(dtype).low != 0;
}
// Dtypes with rows of floats, laid out as in the file.
TANDEM_HD constexpr bool is_plain(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16;
}

TANDEM_HD constexpr int64_t align_256(int64_t n) {
  return (n + 255) / 256 * 256;
}

// Where the planes of one matrix start, relative to its first byte, and the distance between matrices.
struct PlaneOffsets {
  int64_t high = 0, scale = 0, super = 0;
  int64_t mat_bytes = 0;
};

// n_rows * n_cols of a dtype with planes; n_cols is a multiple of its block.
TANDEM_HD constexpr PlaneOffsets plane_offsets(DType dtype, int64_t n_rows, int64_t n_cols) {
  const PieceBytes bytes = piece_bytes(dtype);
  const int64_t n_blocks = n_rows * (n_cols / kBlockColumns);
  PlaneOffsets to;
  to.high = align_256(n_blocks * bytes.low);
  to.scale = to.high + align_256(n_blocks * bytes.high);
  to.super = to.scale + align_256(n_blocks * bytes.scale);
  to.mat_bytes = to.super + align_256(n_blocks / kSuperBlocks * bytes.super);
  return to;
}

// The planes of one matrix, from its start or from one of its blocks.
struct Planes {
  std::byte* low = nullptr;
  std::byte* high = nullptr;
  std::byte* scale = nullptr;
  std::byte* super = nullptr;
};

TANDEM_HD inline Planes planes_at(std::byte* matrix, const PlaneOffsets& offsets) {
  return {matrix, matrix + offsets.high, matrix + offsets.scale, matrix + offsets.super};
}

TANDEM_HD inline Planes planes_of(DType dtype, const std::byte* matrix, int64_t n_rows, int64_t n_cols) {
  return planes_at(const_cast<std::byte*>(matrix), plane_offsets(dtype, n_rows, n_cols));
}

// Bytes of all matrices of a weight of any dtype.
constexpr int64_t layout_bytes(DType dtype, int64_t n_mats, int64_t n_rows, int64_t n_cols,
                               int64_t file_bytes) {
  return has_planes(dtype) ? n_mats * plane_offsets(dtype, n_rows, n_cols).mat_bytes : align_256(file_bytes);
}

}  // namespace tandem::cuda
