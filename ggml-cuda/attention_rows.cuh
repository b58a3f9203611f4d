// The rows of one head in a cache block, for attention: where they are, and how they are read. Rows of most dtypes lie one
// after the other. A block of a grouped dtype (gguf/kivi.h) is open, with rows of F16 elsewhere, or closed: then its keys are
// one group, and the rows of its values lie as others do.
#pragma once

#include "ggml-cuda/attention_call.cuh"
#include "ggml-cuda/attention_unpack.h"

namespace tandem::cuda {

// A row of a cache.
struct RowAt {
  const uint8_t* from;  // of a closed group: the group
  DType dtype;
  Half half;
  int head_dim, token;  // token: in a closed group

  __device__ void eight(int chunk, float (&x)[8]) const {
    if (is_kivi(dtype)) return read_group_eight(dtype, half, from, token, head_dim, chunk, x);
    read_eight(dtype, from, chunk, x);
  }
  __device__ float one(int i) const {
    return is_kivi(dtype) ? read_group_one(dtype, half, from, token, head_dim, i) : read_one(dtype, from, i);
  }
};

// The row `offset` of a block. place: the block's among the open ones, or -1.
__device__ inline RowAt row_at(const AttentionCall& call, const CachePool& pool, int block, int place,
                               int kv_head, int offset) {
  const bool grouped = is_kivi(pool.dtype), open = grouped && place >= 0;
  const int64_t row = call.row_in(pool, open ? place : block, kv_head, grouped && !open ? 0 : offset);
  return {open ? pool.open_row(row) : pool.row(row), open ? DType::F16 : pool.dtype, pool.half, pool.head_dim,
          offset};
}

// Reads K or V of a dtype that is known only at run time.
struct ReadAny {};

template <class Read>
inline constexpr bool kMayBeGrouped = false;
template <>
inline constexpr bool kMayBeGrouped<ReadAny> = true;
template <int kBits>
inline constexpr bool kMayBeGrouped<ReadKiviKeys<kBits>> = true;
template <int kBits>
inline constexpr bool kMayBeGrouped<ReadKiviValues<kBits>> = true;

// A tile, kDecodeTile rows, in the cache: its bytes are copied as they are, one run or two. All sizes are multiples of 16.
struct TileSource {
  const uint8_t *scales, *rows;  // scales: of a closed group of keys
  int n_scales, n_rows;
};

template <class Read>
__device__ TileSource tile_source(const AttentionCall& call, const CachePool& pool, int kv_head, int block,
                                  int place, int offset) {
  const auto index = [&](int b, int at) { return call.row_in(pool, b, kv_head, at); };
  if constexpr (kMayBeGrouped<Read>) {
    if (is_kivi(pool.dtype) && place >= 0)
      return {nullptr, pool.open_row(index(place, offset)), 0, kDecodeTile * 2 * pool.head_dim};
    if (is_kivi(pool.dtype) && pool.half == Half::keys) {
      const uint8_t* group = pool.row(index(block, 0));
      const int n_scales = group_scale_bytes(pool.head_dim),
                n_codes = token_code_bytes(kivi_bits(pool.dtype), pool.head_dim);
      return {group, group + n_scales + offset * n_codes, n_scales, kDecodeTile * n_codes};
    }
  }
  return {nullptr, pool.row(index(block, offset)), 0, kDecodeTile * pool.row_bytes};
}
// Bytes that any tile of a pool takes.
__host__ __device__ inline int tile_bytes(const CachePool& pool) {
  return kDecodeTile * (is_kivi(pool.dtype) ? 2 * pool.head_dim : pool.row_bytes);
}

// A tile in shared memory, of which a lane reads one chunk of eight elements in each row. `inside`: the rows have this chunk.
template <class Read>
class TileRows {
 public:
  __device__ TileRows(const CachePool& pool, const uint8_t* tile, bool, int chunk, bool)
      : tile_(tile), row_bytes_(pool.row_bytes), chunk_(chunk) {}
  __device__ void eight(int row, float (&x)[8]) const { Read::eight(tile_ + row * row_bytes_, chunk_, x); }

 private:
  const uint8_t* tile_;
  int row_bytes_, chunk_;
};

template <>
class TileRows<ReadAny> {
 public:
  __device__ TileRows(const CachePool& pool, const uint8_t* tile, bool open, int chunk, bool)
      : pool_(pool), tile_(tile), open_(open), chunk_(chunk) {}
  __device__ void eight(int row, float (&x)[8]) const {
    if (!is_kivi(pool_.dtype)) return read_eight(pool_.dtype, tile_ + row * pool_.row_bytes, chunk_, x);
    if (open_) return ReadF16::eight(tile_ + row * 2 * pool_.head_dim, chunk_, x);
    read_group_eight(pool_.dtype, pool_.half, tile_, row, pool_.head_dim, chunk_, x);
  }

 private:
  const CachePool& pool_;
  const uint8_t* tile_;
  bool open_;
  int chunk_;
};

template <int kBits>
class TileRows<ReadKiviValues<kBits>> {
 public:
  __device__ TileRows(const CachePool& pool, const uint8_t* tile, bool open, int chunk, bool)
      : tile_(tile), row_bytes_(open ? 2 * pool.head_dim : pool.row_bytes), chunk_(chunk), open_(open) {}
  __device__ void eight(int row, float (&x)[8]) const {
    const uint8_t* from = tile_ + row * row_bytes_;
    open_ ? ReadF16::eight(from, chunk_, x) : ReadKiviValues<kBits>::eight(from, chunk_, x);
  }

 private:
  const uint8_t* tile_;
  int row_bytes_, chunk_;
  bool open_;
};

// The scales of the lane's channels are those of all rows.
template <int kBits>
class TileRows<ReadKiviKeys<kBits>> {
 public:
  __device__ TileRows(const CachePool& pool, const uint8_t* tile, bool open, int chunk, bool inside)
      : rows_(open ? tile : tile + group_scale_bytes(pool.head_dim)),
        row_bytes_(open ? 2 * pool.head_dim : token_code_bytes(kBits, pool.head_dim)),
        chunk_(chunk),
        open_(open) {
    if (inside && !open) scales_.load(tile, pool.head_dim, chunk);
  }
  __device__ void eight(int row, float (&x)[8]) const {
    const uint8_t* from = rows_ + row * row_bytes_;
    if (open_) return ReadF16::eight(from, chunk_, x);
    read_codes<kBits>(from, chunk_, x);
    scales_.apply(x);
  }

 private:
  const uint8_t* rows_;
  int row_bytes_, chunk_;
  bool open_;
  ChannelScales scales_;
};

}  // namespace tandem::cuda
