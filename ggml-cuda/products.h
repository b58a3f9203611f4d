// Arguments of the products of small batches (matvec.h), and the activations of glu on the device.
#pragma once

#include "ggml-cuda/quantize.h"
#include "graph/ops.h"

namespace tandem::cuda {

TANDEM_HD inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::silu: return x / (1.0f + expf(-x));
    case Activation::gelu: return 0.5f * x * erfcf(-x * 0.70710678f);
    case Activation::gelu_tanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456f * x * (1.0f + 0.044715f * x * x)));
    case Activation::relu2: return x < 0.0f ? 0.0f : x * x;
    case Activation::swiglu_oai: {
      const float g = x > 7.0f ? 7.0f : x;
      return g / (1.0f + expf(-1.702f * g));
    }
  }
  return x;
}

// Combines the two products of a gated unit.
TANDEM_HD inline float gated(Activation activation, float gate, float up) {
  if (activation == Activation::swiglu_oai) up = (up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up) + 1.0f;
  return activate(activation, gate) * up;
}

// A weight [m, k], or one for each expert, as it lies on the device.
struct DeviceWeight {
  DType dtype = DType::F32;
  int m = 0, k = 0;
  int n_pieces = 0;       // of a row: what a lane reads at once
  int64_t mat_bytes = 0;  // from one expert to the next
  Planes planes;          // of floats and of the generic path: low alone, rows as in the file
};

// Rows of floats are read 16 bytes at a time, or element by element where their length is no multiple of
// that.
inline constexpr int kFloatPiece = 16;
TANDEM_HD constexpr int float_bytes(DType dtype) {
  return dtype == DType::F32 ? 4 : 2;
}

constexpr int pieces_of_row(DType dtype, int k) {
  if (!is_plain(dtype)) return k / kBlockColumns;
  const int n_bytes = k * float_bytes(dtype);
  return n_bytes % kFloatPiece == 0 ? n_bytes / kFloatPiece : k;
}

inline DeviceWeight device_weight(DType dtype, const std::byte* data, int64_t m, int64_t k) {
  DeviceWeight w{
      dtype, static_cast<int>(m), static_cast<int>(k), pieces_of_row(dtype, static_cast<int>(k)), 0, {}};
  if (has_planes(dtype)) {
    w.mat_bytes = plane_offsets(dtype, m, k).mat_bytes;
    w.planes = planes_of(dtype, data, m, k);
  } else {
    w.mat_bytes = static_cast<int64_t>(row_bytes(dtype, k)) * m;
    w.planes.low = const_cast<std::byte*>(data);
  }
  return w;
}

// Some rows of each expert's matrix.
inline DeviceWeight rows_of(DeviceWeight w, int64_t first, int64_t n) {
  if (has_planes(w.dtype)) {
    const PieceBytes bytes = piece_bytes(w.dtype);
    const int64_t block = first * (w.k / kBlockColumns);
    w.planes.low += block * bytes.low;
    w.planes.high += block * bytes.high;
    w.planes.scale += block * bytes.scale;
    w.planes.super += block / kSuperBlocks * bytes.super;
  } else {
    w.planes.low += first * static_cast<int64_t>(row_bytes(w.dtype, w.k));
  }
  w.m = static_cast<int>(n);
  return w;
}

TANDEM_HD inline Planes expert_planes(const DeviceWeight& w, int expert) {
  const int64_t at = expert * w.mat_bytes;
  return {w.planes.low + at, w.planes.high + at, w.planes.scale + at, w.planes.super + at};
}

// The input of an op [n, k], as floats and, where a weight has planes, as bytes.
struct ProductInput {
  const float* x = nullptr;
  Activations encoded[kEncodings];  // by Encoding
};

}  // namespace tandem::cuda
