// The kernel of wgmma.h.
#pragma once

#include "ggml-cuda/matmul.cuh"
#include "ggml-cuda/mma.cuh"
#include "ggml-cuda/quantize.cuh"
#include "ggml-cuda/wgmma.h"

namespace tandem::cuda {

// ---- The instructions ----

// Stores of this thread to shared memory, and copies that it has waited for, come before what the tensor cores read there.
__device__ inline void fence_shared_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Before the first product that reads registers that were written by anything else.
__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void end_wgmma_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending of the warpgroup's groups of products are still going on.
template <int kPending>
__device__ inline void wait_wgmma_groups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// After the last wait, so that no sum is read before it.
__device__ inline void hold_in_place([[maybe_unused]] float& x) {
#ifndef TANDEM_EMULATED_CUDA
  asm volatile("" : "+f"(x)::"memory");
#endif
}

// Columns of a row of B in shared memory: 128 bytes, eight of 16 whose places are swizzled. Eight rows are 1024 bytes, a multiple
// of which such memory starts at.
inline constexpr int kWgmmaColumns = 64;
inline constexpr int kSwizzledRow = 128, kSwizzledAtom = 1024;
__device__ inline int swizzled_at(int row, int sixteen) {
  return row * kSwizzledRow + (sixteen ^ row % 8) * 16;
}
// Describes B from there on to the tensor cores: where it starts, how far eight rows are from the next eight, the swizzle of
// 128 bytes; in units of 16 bytes.
__device__ inline uint64_t swizzled_matrix(uint32_t shared_at) {
  return uint64_t{1} << 62 | static_cast<uint64_t>(kSwizzledAtom / 16) << 32 | uint64_t{1} << 16 |
         (shared_at & 0x3ffff) / 16;
}

// c [64, 128] = a [64, 16] b [128, 16]^T by a warpgroup, plus c where `adds`; of c and a a thread has what it would have of a
// product of its warp alone.
__device__ inline void multiply_64(float* c, const uint32_t* a, uint64_t b, bool adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
        "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
        "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]),
        "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),
        "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]), "+f"(c[49]), "+f"(c[50]),
        "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]),
        "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));
}

// ---- Codes to floats ----

// A code becomes a float by lying in the mantissa of a power of two. Codes below 128 lie seven bits below the one of 128: 128 +
// code, which one multiplication and addition turns into an element. Those of eight bits lie at the end of the one of 2^23,
// which is subtracted first.
template <DType T>
struct FloatOfCode {
  using F = Format<T>;
  static constexpr bool kEightBits = T == DType::Q8_0 || T == DType::IQ4_NL || T == DType::IQ4_XS;
  static constexpr bool kSigned = kEightBits || F::kGrid || F::kTable;
  static constexpr int kHalves = F::kHalves ? 2 : 1;
  // Of a block of a row: scales of the halves, and what is added, then the scale piece where it has bits of codes.
  static constexpr int kPerHalf = kEightBits ? 1 : 2;
  static constexpr int kFloats = kHalves * kPerHalf + (F::kCodesInScale ? 1 : 0);
  static_assert(!kEightBits || !F::kMinimum);

  __device__ static void make_floats(const BlockScales& scales, uint32_t scale_piece, float* to) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      to[h * kPerHalf] = scales.scale[h];
      constexpr int offset = 128 + (kSigned ? 64 : F::kCodeOffset);
      if constexpr (!kEightBits)
        to[2 * h + 1] = fmaf(static_cast<float>(-offset), scales.scale[h], -scales.minimum[h]);
    }
    if constexpr (F::kCodesInScale) to[kFloats - 1] = __uint_as_float(scale_piece);
  }
  // Together where their number is a power of two.
  __device__ static void load_floats(const float* from, float (&to)[kFloats]) {
    if constexpr (kFloats == 4) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if constexpr (kFloats == 2) {
      const float2 v = *reinterpret_cast<const float2*>(from);
      to[0] = v.x, to[1] = v.y;
    } else {
#pragma unroll
      for (int f = 0; f < kFloats; ++f) to[f] = from[f];
    }
  }
  __device__ static void store_floats(const float (&from)[kFloats], float* to) {
    if constexpr (kFloats == 4) {
      *reinterpret_cast<float4*>(to) = {from[0], from[1], from[2], from[3]};
    } else if constexpr (kFloats == 2) {
      *reinterpret_cast<float2*>(to) = {from[0], from[1]};
    } else {
#pragma unroll
      for (int f = 0; f < kFloats; ++f) to[f] = from[f];
    }
  }
  // Codes as non-negative bytes.
  __device__ static uint32_t plain(uint32_t word) {
    if constexpr (kEightBits) return word ^ 0x80808080u;
    if constexpr (kSigned) return (word & 0x7f7f7f7fu) ^ 0x40404040u;
    return word;
  }
  template <int kByte>
  __device__ static float element(uint32_t plain_word, const float* of_half) {
    if constexpr (kEightBits) {
      const uint32_t bits = permute_bytes(plain_word, 0x4b000000u, 0x7440u | kByte);
      return (__uint_as_float(bits) - (8388608.0f + 128.0f)) * of_half[0];
    } else {
      const uint32_t bits = permute_bytes(plain_word, 0x43000000u, 0x7044u | kByte << 8);
      return fmaf(__uint_as_float(bits), of_half[0], of_half[1]);
    }
  }
};

// ---- A block's work ----

template <DType T, int kTokens>
struct WgmmaTile {
  using F = Format<T>;
  using C = FloatOfCode<T>;
  static constexpr int kStageBlocks = kWgmmaColumns / kBlockColumns;
  static constexpr int kPieces =
      kStageBlocks * kWgmmaRows;  // of a plane in a stage, one for each thread: [block][row]
  static_assert(kPieces == kWgmmaThreads);
  static constexpr int kLowAt = kTokens * kSwizzledRow, kHighAt = kLowAt + kPieces * F::kBytes.low;
  static constexpr int kStageBytes =
      (kHighAt + kPieces * F::kBytes.high + kSwizzledAtom - 1) / kSwizzledAtom * kSwizzledAtom;
  static constexpr int kStages = kTokens == 256 ? 5 : 8;
  static constexpr int kFloatsAt = kStages * kStageBytes;  // of two stages
  static constexpr int kGridAt = kFloatsAt + 2 * kPieces * C::kFloats * 4;
  static constexpr int kSharedBytes = kGridAt + 4 * grid_entries(T);
  static constexpr int kCopies = kTokens * 8 / kWgmmaThreads;  // of 16 bytes of x, for each thread and stage
};

// The thread's operand A of both halves of block b, rows `row` + g and + 8 + g: registers 0..3, 4..7.
template <DType T, int kTokens>
__device__ inline void make_fragment(const std::byte* stage, const float* floats, int row, int b, int lane,
                                     const uint32_t* grid, uint32_t* a) {
  using W = WgmmaTile<T, kTokens>;
  using C = FloatOfCode<T>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int piece = b * kWgmmaRows + row + lane / 4 + 8 * i;
    float values[C::kFloats];
    C::load_floats(floats + piece * C::kFloats, values);
    const CodeWords codes = staged_codes<T>(
        reinterpret_cast<const uint32_t*>(stage + W::kLowAt + piece * Format<T>::kBytes.low),
        reinterpret_cast<const uint32_t*>(stage + W::kHighAt + piece * Format<T>::kBytes.high),
        __float_as_uint(values[C::kFloats - 1]), lane % 4, grid);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t word = C::plain(h == 0 ? codes.first : codes.second);
      const float* of_half = values + (C::kHalves == 2 ? h : 0) * C::kPerHalf;
      a[4 * h + i] =
          BFloatOperands::pack(C::template element<0>(word, of_half), C::template element<1>(word, of_half));
      a[4 * h + 2 + i] =
          BFloatOperands::pack(C::template element<2>(word, of_half), C::template element<3>(word, of_half));
    }
  }
}

// A tile of the launch: rows of a target, or of both matrices of a gated unit, and tokens. Of up to 16 tiles of tokens those of
// the same rows follow each other, so that weights are read from memory once for them, and x stays in the L2 cache.
struct WgmmaPlace {
  int target, row0, token0;
};
__device__ inline WgmmaPlace wgmma_place(const WgmmaArgs& args, int tile, int tile_tokens) {
  constexpr int kTogether = 16;
  const int group = tile / (kTogether * args.n_row_tiles);
  const int in_group = tile - group * kTogether * args.n_row_tiles,
            n_together = min(kTogether, args.n_token_tiles - group * kTogether);
  const int row_tile = in_group / n_together;
  WgmmaPlace place{0, 0, (group * kTogether + in_group % n_together) * tile_tokens};
  if (args.gated) {
    place.row0 = row_tile * (kWgmmaRows / 2);
  } else {
    while (place.target + 1 < args.n_targets && row_tile >= args.targets[place.target + 1].first_tile)
      ++place.target;
    place.row0 = (row_tile - args.targets[place.target].first_tile) * kWgmmaRows;
  }
  return place;
}

// Goes through the stages of a block's tiles, one after the other: the piece of the weights that a thread has of each. Of the
// 16 rows of a warp a gated unit has eight of the gate and eight of the up matrix.
struct WgmmaCursor {
  int tile, stage;  // no tile of the launch: the end
  WgmmaPlace place;
  Planes planes;
  uint32_t piece;  // of stage 0

  __device__ void begin(const WgmmaArgs& args, int new_tile, int tile_tokens, int row, int block) {
    tile = new_tile, stage = 0;
    if (tile >= args.n_tiles) return;
    place = wgmma_place(args, tile, tile_tokens);
    const DeviceWeight& w = args.targets[args.gated ? row % 16 / 8 : place.target].w;
    const int of_matrix = place.row0 + (args.gated ? row / 16 * 8 + row % 8 : row);
    planes = w.planes;
    piece = static_cast<uint32_t>(min(of_matrix, w.m - 1)) * static_cast<uint32_t>(w.k / kBlockColumns) +
            static_cast<uint32_t>(block);
  }
};

// The results of a tile of a target, from the registers that have them: of eight tokens a lane has two, of the warp's 16 rows
// two. Eight lanes store 32 bytes side by side.
template <int kTokens>
__device__ inline void store_rows(const WgmmaTarget& target, const float (&sums)[kTokens / 128][64],
                                  const WgmmaPlace& place, int n, int warp, int lane) {
  constexpr int kAtOnce = 16;  // residuals in flight
  const int m = target.w.m, row = place.row0 + 16 * warp + lane / 4;
  float bias[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (target.bias && row + 8 * r < m) bias[r] = target.bias[row + 8 * r];
  }
#pragma unroll
  for (int part = 0; part < kTokens / 2; part += kAtOnce) {
    float added[kAtOnce];
    const auto at = [&](int e, int64_t* to) {
      const int token =
                    place.token0 + part / 64 * 128 + (part % 64 + e) / 4 * 8 + accumulator_token(lane, e % 4),
                r = row + e % 4 / 2 * 8;
      *to = static_cast<int64_t>(token) * m + r;
      return token < n && r < m;
    };
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      int64_t from;
      added[e] = bias[e % 4 / 2];
      if (at(e, &from) && target.residual) added[e] += target.residual[from];
    }
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      int64_t to;
      if (at(e, &to)) target.y[to] = sums[part / 64][part % 64 + e] + added[e];
    }
  }
}

// The results of a gated unit's tile: of four registers 0, 1 are the gate's sums of two tokens, 2, 3 the up matrix's. Two lanes
// make pairs of columns, each for one token.
template <Activation kActivation, int kTokens>
__device__ inline void store_gated(const WgmmaArgs& args, const float (&sums)[kTokens / 128][64],
                                   const WgmmaPlace& place, int warp, int lane) {
  const int m = args.targets[0].w.m, column = place.row0 + 8 * warp + lane / 4;
  const bool is_odd = lane / 4 % 2 != 0, inside = column < m;  // m is a multiple of eight
  const float gate_bias = args.targets[0].bias && inside ? args.targets[0].bias[column] : 0.0f;
  const float up_bias = args.targets[1].bias && inside ? args.targets[1].bias[column] : 0.0f;
  float* y = args.targets[0].y;
  const int pair = args.made_form.order == ColumnOrder::fragments ? place_of_pair(column) : column & ~1;
#pragma unroll
  for (int e = 0; e < kTokens / 2; e += 4) {
    const float* own = &sums[e / 64][e % 64];
    const int token = place.token0 + e / 64 * 128 + e % 64 / 4 * 8 + accumulator_token(lane, 0);
    float values[2];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      values[t] = gated(kActivation, own[t] + gate_bias, own[2 + t] + up_bias);
      if (y && inside && token + t < args.n) y[static_cast<int64_t>(token + t) * m + column] = values[t];
    }
    if (!args.made) continue;
    const float other = __shfl_xor_sync(0xffffffffu, is_odd ? values[0] : values[1], 4);
    const float first = is_odd ? other : values[0], second = is_odd ? values[1] : other;
    const int own_token = token + (is_odd ? 1 : 0);
    if (!inside || own_token >= args.n) continue;
    const bool half = args.made_form.dtype == DType::F16;
    const uint32_t bits =
        half ? narrowed<DType::F16>(first) | static_cast<uint32_t>(narrowed<DType::F16>(second)) << 16
             : BFloatOperands::pack(first, second);
    *reinterpret_cast<uint32_t*>(args.made + static_cast<int64_t>(own_token) * m + pair) = bits;
  }
}

// Code of its own for each activation: a switch in every element would be more than an instruction cache holds.
template <int kTokens>
__device__ inline void store_gated(const WgmmaArgs& args, const float (&sums)[kTokens / 128][64],
                                   const WgmmaPlace& place, int warp, int lane) {
  switch (args.activation) {
    case Activation::silu: return store_gated<Activation::silu, kTokens>(args, sums, place, warp, lane);
    case Activation::gelu: return store_gated<Activation::gelu, kTokens>(args, sums, place, warp, lane);
    case Activation::gelu_tanh:
      return store_gated<Activation::gelu_tanh, kTokens>(args, sums, place, warp, lane);
    case Activation::relu2: return store_gated<Activation::relu2, kTokens>(args, sums, place, warp, lane);
    case Activation::swiglu_oai:
      return store_gated<Activation::swiglu_oai, kTokens>(args, sums, place, warp, lane);
  }
}

// Grid: at most as many blocks as there are multiprocessors; each makes every gridDim.x-th tile. The copies for a tile begin
// while the one before it is made.
template <DType T, int kTokens>
__global__ void __launch_bounds__(kWgmmaThreads, 1) wgmma_kernel(const __grid_constant__ WgmmaArgs args) {
  using W = WgmmaTile<T, kTokens>;
  using F = Format<T>;
  using C = FloatOfCode<T>;
  extern __shared__ __align__(1024) std::byte swizzled_shared[];
  std::byte* shared = swizzled_shared;
  float* floats = reinterpret_cast<float*>(shared + W::kFloatsAt);
  uint32_t* grid = reinterpret_cast<uint32_t*>(shared + W::kGridAt);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int k = args.targets[0].w.k, n_blocks = k / kBlockColumns;
  const int n_stages = (n_blocks + 2 * W::kStageBlocks - 1) / (2 * W::kStageBlocks) *
                       2;  // even; what is past the last column is zero
  make_grid<T>(grid, thread, kWgmmaThreads);

  // What the thread copies in every stage: the pieces of a block of a row, and 16 bytes of some tokens. Rows past the last are
  // the last's, tokens likewise; they are not stored.
  const int own_row = thread / W::kStageBlocks, own_block = thread % W::kStageBlocks;
  const int own_at = own_block * kWgmmaRows + own_row;  // its place in a stage
  const int sixteen = thread % 8;
  const auto shared_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  WgmmaCursor copied;
  uint32_t x_at[W::kCopies];  // bytes
  const auto begin_copies = [&](int tile) {
    copied.begin(args, tile, kTokens, own_row, own_block);
    if (tile >= args.n_tiles) return;
#pragma unroll
    for (int c = 0; c < W::kCopies; ++c) {
      const int token = min(copied.place.token0 + thread / 8 + c * (kWgmmaThreads / 8), args.n - 1);
      x_at[c] = (static_cast<uint32_t>(token) * static_cast<uint32_t>(k) + 8 * sixteen) * 2;
    }
  };
  const auto request = [&](int slot) {  // the next stage; an empty group past the last keeps the count
    if (copied.tile < args.n_tiles) {
      const int i = copied.stage;
      const uint32_t to = shared_at + static_cast<uint32_t>(slot * W::kStageBytes);
      const bool valid = W::kStageBlocks * i + own_block < n_blocks;  // what is not is not read, but zero
      const uint64_t piece = copied.piece + static_cast<uint32_t>(W::kStageBlocks * i);
      copy_async<F::kBytes.low>(to + W::kLowAt + own_at * F::kBytes.low,
                                copied.planes.low + piece * F::kBytes.low, valid);
      if constexpr (F::kBytes.high != 0)
        copy_async<F::kBytes.high>(to + W::kHighAt + own_at * F::kBytes.high,
                                   copied.planes.high + piece * F::kBytes.high, valid);
      // Scales are loaded one stage later, and have less time to arrive: the first of a sector's asks for it.
      if (valid && F::kBytes.scale != 0 && i % 8 == 0)
        prefetch_to_l2(copied.planes.scale + piece * F::kBytes.scale);
      if (valid && F::kBytes.super != 0 && i % 4 == 0)
        prefetch_to_l2(copied.planes.super + piece / kSuperBlocks * F::kBytes.super);
      const bool inside = kWgmmaColumns * i + 8 * sixteen < k;
      const std::byte* x = reinterpret_cast<const std::byte*>(args.x) + i * (kWgmmaColumns * 2);
#pragma unroll
      for (int c = 0; c < W::kCopies; ++c) {
        copy_async<16>(to + static_cast<uint32_t>(swizzled_at(thread / 8, sixteen) +
                                                  c * (kWgmmaThreads / 8) * kSwizzledRow),
                       x + x_at[c], inside);
      }
      if (++copied.stage == n_stages) begin_copies(copied.tile + static_cast<int>(gridDim.x));
    }
    end_copy_group();
  };

  // The scales of a stage are loaded two stages ahead and become floats one stage ahead.
  WgmmaCursor loaded;
  uint32_t scale = 0, super[4] = {};
  int loaded_stage = 0;
  const auto load_scales = [&] {
    loaded_stage = loaded.stage;
    if (loaded.tile >= args.n_tiles) return;
    if (W::kStageBlocks * loaded.stage + own_block < n_blocks) {
      const uint32_t piece = loaded.piece + static_cast<uint32_t>(W::kStageBlocks * loaded.stage);
      load_scale<T>(loaded.planes, piece, &scale);
      load_piece<F::kBytes.super>(loaded.planes.super, piece / kSuperBlocks, super);
    }
    if (++loaded.stage == n_stages)
      loaded.begin(args, loaded.tile + static_cast<int>(gridDim.x), kTokens, own_row, own_block);
  };
  const auto store_scales = [&](int buffer) {  // as loaded; zeros past the last column
    const bool valid = W::kStageBlocks * loaded_stage + own_block < n_blocks;
    const BlockScales scales =
        block_scales<T>(scale, super, (W::kStageBlocks * loaded_stage + own_block) % kSuperBlocks);
    float values[C::kFloats];
    C::make_floats(scales, scale, values);
#pragma unroll
    for (int f = 0; f < C::kFloats; ++f) values[f] = valid ? values[f] : 0.0f;
    C::store_floats(values, floats + (buffer * W::kPieces + own_at) * C::kFloats);
  };

  begin_copies(static_cast<int>(blockIdx.x));
  loaded.begin(args, static_cast<int>(blockIdx.x), kTokens, own_row, own_block);
  for (int i = 0; i < W::kStages - 2; ++i) request(i);
  load_scales();
  store_scales(0);
  load_scales();

  float sums[kTokens / 128][64];
  uint32_t a[2][8 * W::kStageBlocks];  // of this stage, and of the one whose products go on
  int slot = 0;
  const auto step = [&]<int kBuffer>(bool adds) {
    wait_copy_groups<W::kStages - 3>();
    fence_shared_for_wgmma();
    __syncthreads();  // the stage and its floats are there; products of the last but one have ended in all warps
    request(slot < 2 ? slot + W::kStages - 2 : slot - 2);
    store_scales(1 - kBuffer);
    load_scales();
    const int at = slot * W::kStageBytes;
    slot = slot + 1 == W::kStages ? 0 : slot + 1;
#pragma unroll
    for (int b = 0; b < W::kStageBlocks; ++b)
      make_fragment<T, kTokens>(shared + at, floats + kBuffer * W::kPieces * C::kFloats, 16 * warp, b, lane,
                                grid, a[kBuffer] + 8 * b);
    const uint64_t x = swizzled_matrix(shared_at + static_cast<uint32_t>(at));
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 2 * W::kStageBlocks; ++s) {
#pragma unroll
      for (int j = 0; j < kTokens / 128; ++j)
        multiply_64(sums[j], a[kBuffer] + 4 * s,
                    x + static_cast<uint64_t>(2 * s + j * 128 * kSwizzledRow / 16), adds || s > 0);
    }
    end_wgmma_group();
    wait_wgmma_groups<1>();
  };
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x); tile < args.n_tiles; tile += static_cast<int>(gridDim.x)) {
    // Two at a time, so that it is known which half of `a` each has.
#pragma unroll 1
    for (int i = 0; i < n_stages; i += 2) {
      step.template operator()<0>(i > 0);
      step.template operator()<1>(true);
    }
    wait_wgmma_groups<0>();
#pragma unroll
    for (int j = 0; j < kTokens / 128; ++j) {
#pragma unroll
      for (int e = 0; e < 64; ++e) hold_in_place(sums[j][e]);
    }
    const WgmmaPlace place = wgmma_place(args, tile, kTokens);
    args.gated ? store_gated<kTokens>(args, sums, place, warp, lane)
               : store_rows<kTokens>(args.targets[place.target], sums, place, args.n, warp, lane);
  }
  wait_copy_groups<0>();
}

}  // namespace tandem::cuda
