// Reads and writes the cached keys or values of a sequence as plain rows: [n_tokens, n_head_kv] rows of
// row_bytes(dtype, head_dim), or F16 where the dtype is grouped (kv_row_dtype). The rows do not depend on the device or on where the blocks lie in the pool.
// For saving and loading a cache.
//
// The caller waits for runs that write the cache before it reads. Throws what the device's copies throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"

namespace tandem {

enum class KvHalf { keys, values };

// Returns the bytes of one token's rows.
size_t kv_token_bytes(const KvLayer& layer, KvHalf half);

// Copies positions 0 .. n_tokens - 1 of the sequence in `blocks` to or from `rows` [n_tokens, n_head_kv,
// row].
void read_kv_rows(Device& device, const KvLayer& layer, KvHalf half, std::span<const int32_t> blocks,
                  int64_t n_tokens, std::byte* rows);
// Writing keeps an index true. Rows of grouped dtypes go where their block is: to an open one, or, if it is closed, all of it
// is quantized, and all of its rows are given.
void write_kv_rows(Device& device, const KvLayer& layer, KvHalf half, std::span<const int32_t> blocks,
                   int64_t n_tokens, const std::byte* rows);

// The same for a layer of a cache, whose heads or states may be on several devices; copies are all written.
class KvCache;
size_t kv_token_bytes(const KvCache& cache, size_t layer, KvHalf half);
void read_kv_rows(const KvCache& cache, size_t layer, KvHalf half, std::span<const int32_t> blocks,
                  int64_t n_tokens, std::byte* rows);
void write_kv_rows(const KvCache& cache, size_t layer, KvHalf half, std::span<const int32_t> blocks,
                   int64_t n_tokens, const std::byte* rows);

}  // namespace tandem
