#include "kv/rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "device/kv_index.h"
#include "gguf/kivi.h"
#include "gguf/quants.h"
#include "kv/cache.h"

namespace tandem {
namespace {

// The layout of a block in its pool: block_size rows of each head, head after head.
struct BlockLayout {
  BlockLayout(const KvLayer& layer, KvHalf half)
      : pool(half == KvHalf::keys ? layer.k : layer.v),
        n_row(half == KvHalf::keys ? row_bytes(layer.k_dtype, layer.head_dim_k)
                                   : row_bytes(layer.v_dtype, layer.head_dim_v)),
        n_head(static_cast<size_t>(layer.n_head_kv)),
        block_size(static_cast<size_t>(layer.block_size)) {}

  size_t n_block() const { return n_row * n_head * block_size; }
  DevicePtr block(int32_t index) const { return pool + static_cast<size_t>(index) * n_block(); }

  // Calls fn(offset in the block, offset in the tokens' rows) for every row of the block's first n_tokens
  // tokens.
  template <class Fn>
  void for_each_row(size_t n_tokens, Fn&& fn) const {
    for (size_t head = 0; head < n_head; ++head) {
      for (size_t token = 0; token < n_tokens; ++token) {
        fn((head * block_size + token) * n_row, (token * n_head + head) * n_row);
      }
    }
  }

  DevicePtr pool;
  size_t n_row, n_head, block_size;
};

// Calls fn(block index, tokens before it, tokens in it).
template <class Fn>
void for_each_block(const BlockLayout& layout, std::span<const int32_t> blocks, int64_t n_tokens, Fn&& fn) {
  const auto n = static_cast<size_t>(n_tokens);
  TANDEM_CHECK(blocks.size() * layout.block_size >= n);
  for (size_t first = 0, i = 0; first < n; first += layout.block_size, ++i) {
    fn(blocks[i], first, std::min(layout.block_size, n - first));
  }
}

// Keys and values are written one after the other: each half only has rows that are there.
void index_rows(const KvLayer& layer, KvHalf half, int64_t block, int64_t n_tokens) {
  const KvIndex index(layer);
  if (half == KvHalf::values) {
    if (n_tokens == layer.block_size) index_values(layer, index, block);
    return;
  }
  for (int64_t head = 0; head < layer.n_head_kv; ++head) {
    for (int64_t i = 0; i < n_tokens; ++i) index_key(layer, index, block * layer.block_size + i, head);
  }
}

// One half of a cache of a grouped dtype. Rows outside of it are F16.
struct GroupedHalf {
  GroupedHalf(const KvLayer& l, KvHalf half)
      : layer(l),
        are_keys(half == KvHalf::keys),
        dtype(are_keys ? l.k_dtype : l.v_dtype),
        head_dim(are_keys ? l.head_dim_k : l.head_dim_v),
        n_row(row_bytes(DType::F16, head_dim)),
        floats(static_cast<size_t>(kKiviGroup * head_dim)) {}

  bool is_open(int32_t block) const { return layer.open_of[block] >= 0; }
  // Of each head in a block: [block_size, head_dim] F16 if it is open, else a group of them.
  size_t head_bytes(int32_t block) const {
    return (is_open(block) ? n_row : row_bytes(dtype, head_dim)) * static_cast<size_t>(kKiviGroup);
  }
  // Makes room for a block in `staging` and returns where it is on the device.
  DevicePtr stage(int32_t block) {
    staging.resize(head_bytes(block) * static_cast<size_t>(layer.n_head_kv));
    const auto at = static_cast<size_t>(is_open(block) ? layer.open_of[block] : block);
    const DevicePtr open = are_keys ? layer.k_open : layer.v_open, pool = are_keys ? layer.k : layer.v;
    return (is_open(block) ? open : pool) + at * staging.size();
  }
  std::byte* staged(int32_t block, int64_t head) {
    return staging.data() + static_cast<size_t>(head) * head_bytes(block);
  }

  // Calls fn(block, its rows, tokens) for every block.
  template <class Rows, class Fn>
  void for_each_group(std::span<const int32_t> blocks, int64_t n_tokens, Rows* rows, Fn&& fn) const {
    TANDEM_CHECK(static_cast<int64_t>(blocks.size()) * kKiviGroup >= n_tokens);
    for (int64_t first = 0; first < n_tokens; first += kKiviGroup) {
      fn(blocks[static_cast<size_t>(first / kKiviGroup)],
         rows + static_cast<size_t>(first * layer.n_head_kv) * n_row, std::min(kKiviGroup, n_tokens - first));
    }
  }
  // Of a token and head, in the rows of a block.
  size_t row_at(int64_t token, int64_t head) const {
    return static_cast<size_t>(token * layer.n_head_kv + head) * n_row;
  }

  void read(Device& device, std::span<const int32_t> blocks, int64_t n_tokens, std::byte* rows) {
    for_each_group(blocks, n_tokens, rows, [&](int32_t block, std::byte* to, int64_t n) {
      const DevicePtr from = stage(block);
      device.copy_out(staging.data(), from, staging.size());
      device.wait(device.record());
      for (int64_t head = 0; head < layer.n_head_kv; ++head) {
        const std::byte* group = staged(block, head);
        if (!is_open(block) && are_keys) dequantize_key_group(dtype, group, 0, n, floats.data(), head_dim);
        if (!is_open(block) && !are_keys) dequantize_row(dtype, group, floats.data(), n * head_dim);
        for (int64_t i = 0; i < n; ++i) {
          std::byte* row = to + row_at(i, head);
          if (is_open(block)) {
            std::memcpy(row, group + static_cast<size_t>(i) * n_row, n_row);
          } else {
            quantize_row(DType::F16, floats.data() + i * head_dim, row, head_dim);
          }
        }
      }
    });
  }

  // Rows of an open block past the last token are unused.
  void write(Device& device, std::span<const int32_t> blocks, int64_t n_tokens, const std::byte* rows) {
    for_each_group(blocks, n_tokens, rows, [&](int32_t block, const std::byte* from, int64_t n) {
      TANDEM_CHECK(is_open(block) || n == kKiviGroup);
      const DevicePtr to = stage(block);
      for (int64_t head = 0; head < layer.n_head_kv; ++head) {
        std::byte* group = staged(block, head);
        for (int64_t i = 0; i < n; ++i) {
          const std::byte* row = from + row_at(i, head);
          if (is_open(block)) {
            std::memcpy(group + static_cast<size_t>(i) * n_row, row, n_row);
          } else {
            dequantize_row(DType::F16, row, floats.data() + i * head_dim, head_dim);
          }
        }
        if (!is_open(block) && are_keys) quantize_key_group(dtype, floats.data(), group, head_dim);
        if (!is_open(block) && !are_keys) quantize_row(dtype, floats.data(), group, n * head_dim);
      }
      device.copy_in(to, staging.data(), staging.size());
      device.wait(device.record());
    });
  }

  const KvLayer& layer;
  bool are_keys;
  DType dtype;
  int64_t head_dim;
  size_t n_row;
  std::vector<float> floats;  // [kKiviGroup, head_dim]
  std::vector<std::byte> staging;
};

bool is_grouped(const KvLayer& layer, KvHalf half) {
  return is_kivi(half == KvHalf::keys ? layer.k_dtype : layer.v_dtype);
}

}  // namespace

size_t kv_token_bytes(const KvLayer& layer, KvHalf half) {
  if (is_grouped(layer, half)) {
    const GroupedHalf grouped(layer, half);
    return grouped.n_row * static_cast<size_t>(layer.n_head_kv);
  }
  const BlockLayout layout(layer, half);
  return layout.n_row * layout.n_head;
}

void read_kv_rows(Device& device, const KvLayer& layer, KvHalf half, std::span<const int32_t> blocks,
                  int64_t n_tokens, std::byte* rows) {
  if (is_grouped(layer, half)) return GroupedHalf(layer, half).read(device, blocks, n_tokens, rows);
  const BlockLayout layout(layer, half);
  if (layout.n_row == 0) return;  // no values
  std::vector<std::byte> staging(layout.n_block());
  for_each_block(layout, blocks, n_tokens, [&](int32_t block, size_t first, size_t n) {
    device.copy_out(staging.data(), layout.block(block), layout.n_block());
    device.wait(device.record());
    std::byte* to = rows + first * layout.n_head * layout.n_row;
    layout.for_each_row(n, [&](size_t in_block, size_t in_rows) {
      std::memcpy(to + in_rows, staging.data() + in_block, layout.n_row);
    });
  });
}

void write_kv_rows(Device& device, const KvLayer& layer, KvHalf half, std::span<const int32_t> blocks,
                   int64_t n_tokens, const std::byte* rows) {
  if (is_grouped(layer, half)) return GroupedHalf(layer, half).write(device, blocks, n_tokens, rows);
  const BlockLayout layout(layer, half);
  if (layout.n_row == 0) return;
  std::vector<std::byte> staging(layout.n_block());  // rows past the last token are unused
  for_each_block(layout, blocks, n_tokens, [&](int32_t block, size_t first, size_t n) {
    const std::byte* from = rows + first * layout.n_head * layout.n_row;
    layout.for_each_row(n, [&](size_t in_block, size_t in_rows) {
      std::memcpy(staging.data() + in_block, from + in_rows, layout.n_row);
    });
    device.copy_in(layout.block(block), staging.data(), layout.n_block());
    device.wait(device.record());  // the next block reuses the staging buffer
    if (layer.indexed) index_rows(layer, half, block, static_cast<int64_t>(n));
  });
}

namespace {

struct PoolRows {
  Device& device;
  const KvLayer& layer;
};

PoolRows pool_rows(const KvCache& cache, size_t layer, const HeadPools::Pool& pool) {
  return {cache.device(pool.device), cache.layers()[pool.device.index()][layer]};
}

// Calls fn(pool, its offset in a token's row, its bytes there) for every pool.
template <class Fn>
void for_each_pool(const KvCache& cache, size_t layer, KvHalf half, Fn&& fn) {
  size_t offset = 0;
  for (const HeadPools::Pool& pool : cache.pools(layer).pools) {
    const PoolRows rows = pool_rows(cache, layer, pool);
    const size_t n = kv_token_bytes(rows.layer, half);
    fn(rows, offset, n);
    offset += n;
  }
}

// All rows are in one pool, or in every one.
bool has_whole_rows(const HeadPools& heads) {
  return heads.are_copies || heads.pools.size() == 1;
}

}  // namespace

size_t kv_token_bytes(const KvCache& cache, size_t layer, KvHalf half) {
  const HeadPools& heads = cache.pools(layer);
  size_t n_bytes = 0;
  for_each_pool(cache, layer, half, [&](const PoolRows&, size_t, size_t n) {
    n_bytes = has_whole_rows(heads) ? n : n_bytes + n;
  });
  return n_bytes;
}

void read_kv_rows(const KvCache& cache, size_t layer, KvHalf half, std::span<const int32_t> blocks,
                  int64_t n_tokens, std::byte* rows) {
  const HeadPools& heads = cache.pools(layer);
  if (has_whole_rows(heads)) {
    const PoolRows pool = pool_rows(cache, layer, heads.pools.front());
    return read_kv_rows(pool.device, pool.layer, half, blocks, n_tokens, rows);
  }
  const size_t n_row = kv_token_bytes(cache, layer, half), n = static_cast<size_t>(n_tokens);
  for_each_pool(cache, layer, half, [&](const PoolRows& pool, size_t offset, size_t n_part) {
    std::vector<std::byte> part(n * n_part);
    read_kv_rows(pool.device, pool.layer, half, blocks, n_tokens, part.data());
    for (size_t i = 0; i < n && n_part > 0; ++i)
      std::memcpy(rows + i * n_row + offset, part.data() + i * n_part, n_part);
  });
}

void write_kv_rows(const KvCache& cache, size_t layer, KvHalf half, std::span<const int32_t> blocks,
                   int64_t n_tokens, const std::byte* rows) {
  const bool is_whole = has_whole_rows(cache.pools(layer));
  const size_t n_row = kv_token_bytes(cache, layer, half), n = static_cast<size_t>(n_tokens);
  for_each_pool(cache, layer, half, [&](const PoolRows& pool, size_t offset, size_t n_part) {
    if (is_whole) return write_kv_rows(pool.device, pool.layer, half, blocks, n_tokens, rows);
    std::vector<std::byte> part(n * n_part);
    for (size_t i = 0; i < n && n_part > 0; ++i)
      std::memcpy(part.data() + i * n_part, rows + i * n_row + offset, n_part);
    write_kv_rows(pool.device, pool.layer, half, blocks, n_tokens, part.data());
  });
}

}  // namespace tandem
