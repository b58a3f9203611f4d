// Products of many tokens with quantized weights on the tensor cores of a GPU of compute capability 9.0, by warpgroups (wgmma):
// y^T = W x^T, rows of W being the M of a product and tokens its N.
//
// A block makes 128 rows x 128 or 256 tokens. Each of its two warpgroups makes 64 of the rows: it has their codes become 16-bit
// floats in its registers, operand A, while the tensor cores multiply what it made before. Nothing converted is ever stored, as
// it is for cuBLAS. The activations, operand B, come as 16-bit floats in the order of fragments (narrow.h) by asynchronous
// copies into shared memory, in the places of the 128-byte swizzle. A stage is 64 columns; several are on their way.
//
// The results of gate and up matrices are combined in the block that makes both, and those of several weights with one input
// are one launch.
//
// Floors of a stage of 256 tokens: 1024 cycles of tensor cores (2048 multiply-adds each); shared memory, 128 bytes a cycle: 512
// cycles for what the tensor cores read of x, 256 to copy it there, 100 for Q4_K's codes and scales; FLOORS.md has the
// instructions.
#pragma once

#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/narrow.h"
#include "ggml-cuda/products.h"

namespace tandem::cuda {

inline constexpr int kWgmmaRows = 128, kWgmmaThreads = 256;
inline constexpr int kWgmmaTargets = 4;

struct WgmmaTarget {
  DeviceWeight w;
  const float* bias = nullptr;      // [m] or null
  const float* residual = nullptr;  // [n, m] or null; may be y
  float* y = nullptr;               // [n, m]; null: not wanted as floats
  int first_tile = 0;               // of the launch's tiles of rows
};

struct WgmmaArgs {
  WgmmaTarget targets[kWgmmaTargets];  // weights of one dtype and number of columns
  int n_targets = 0;
  const uint16_t* x = nullptr;  // [n, k], BF16 in the order of fragments
  int n = 0;
  // Targets 0 and 1 are gate and up matrix; activation(gate) * up goes to target 0's y, and here, where not null.
  bool gated = false;
  Activation activation = Activation::silu;
  uint16_t* made = nullptr;  // [n, m]
  NarrowForm made_form;
  int n_row_tiles = 0, n_token_tiles = 0, n_tiles = 0;
};

// Whether this build has the kernels, and the GPU can run them; and the environment asks for them.
bool has_wgmma(const Gpu& gpu);
// What else has to be true of a weight and its input.
bool wgmma_takes(const DeviceWeight& w, int64_t max_n);

// Fills in the numbers of tiles, and launches.
void launch_wgmma(WgmmaArgs args, const Gpu& gpu, cudaStream_t stream);

// Tokens of a tile, 128 or 256: whichever leaves fewer multiprocessors waiting in the last wave of blocks. Fewer tokens read
// and unpack the weights more often.
constexpr int wgmma_tile_tokens(int64_t n, int64_t n_row_tiles, int n_multiprocessors) {
  const auto cost = [&](int64_t tokens) {
    const int64_t tiles = (n + tokens - 1) / tokens * n_row_tiles;
    return (tiles + n_multiprocessors - 1) / n_multiprocessors * tokens;
  };
  return 8 * cost(256) <= 9 * cost(128) ? 256 : 128;
}

}  // namespace tandem::cuda
