#include "kv/rows.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/kv_index.h"
#include "gguf/kivi.h"
#include "gguf/quants.h"
#include "kv/cache.h"
#include "kv/spill.h"

namespace tandem {
namespace {

// The layout of a block in its pool: block_size rows of each head, head after head.
struct BlockLayout {
  BlockLayout(const KvLayer& layer, KvHalf half)
      : pool(half == KvHalf::keys ? layer.k : layer.v),
        n_row(half == KvHalf::keys ? row_bytes(layer.k_dtype, layer.head_dim_k)
                                   : row_bytes(layer.v_dtype, layer.head_dim_v)),
        n_head(static_cast<size_t>(half == KvHalf::keys ? layer.n_head_k() : layer.n_head_kv)),
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

// load(block, to) brings the bytes of a block.
template <class Load>
void read_blocks(const BlockLayout& layout, std::span<const int32_t> blocks, int64_t n_tokens,
                 std::byte* rows, const Load& load) {
  if (layout.n_row == 0) return;  // no values
  std::vector<std::byte> staging(layout.n_block());
  for_each_block(layout, blocks, n_tokens, [&](int32_t block, size_t first, size_t n) {
    load(block, staging.data());
    std::byte* to = rows + first * layout.n_head * layout.n_row;
    layout.for_each_row(n, [&](size_t in_block, size_t in_rows) {
      std::memcpy(to + in_rows, staging.data() + in_block, layout.n_row);
    });
  });
}

// store(block, from, n) takes the bytes of a block, of which n tokens' are set, and is done with them when it returns.
template <class Store>
void write_blocks(const BlockLayout& layout, std::span<const int32_t> blocks, int64_t n_tokens,
                  const std::byte* rows, const Store& store) {
  if (layout.n_row == 0) return;
  std::vector<std::byte> staging(layout.n_block());  // rows past the last token are unused
  for_each_block(layout, blocks, n_tokens, [&](int32_t block, size_t first, size_t n) {
    const std::byte* from = rows + first * layout.n_head * layout.n_row;
    layout.for_each_row(n, [&](size_t in_block, size_t in_rows) {
      std::memcpy(staging.data() + in_block, from + in_rows, layout.n_row);
    });
    store(block, staging.data(), n);
  });
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
        n_head(are_keys ? l.n_head_k() : l.n_head_kv),
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
    staging.resize(head_bytes(block) * static_cast<size_t>(n_head));
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
      fn(blocks[static_cast<size_t>(first / kKiviGroup)], rows + static_cast<size_t>(first * n_head) * n_row,
         std::min(kKiviGroup, n_tokens - first));
    }
  }
  // Of a token and head, in the rows of a block.
  size_t row_at(int64_t token, int64_t head) const {
    return static_cast<size_t>(token * n_head + head) * n_row;
  }

  void read(Device& device, std::span<const int32_t> blocks, int64_t n_tokens, std::byte* rows) {
    for_each_group(blocks, n_tokens, rows, [&](int32_t block, std::byte* to, int64_t n) {
      const DevicePtr from = stage(block);
      device.copy_out(staging.data(), from, staging.size());
      device.wait(device.record());
      for (int64_t head = 0; head < n_head; ++head) {
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
      for (int64_t head = 0; head < n_head; ++head) {
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
  int64_t n_head, head_dim;
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
    return grouped.n_row * static_cast<size_t>(grouped.n_head);
  }
  const BlockLayout layout(layer, half);
  return layout.n_row * layout.n_head;
}

void read_kv_rows(Device& device, const KvLayer& layer, KvHalf half, std::span<const int32_t> blocks,
                  int64_t n_tokens, std::byte* rows) {
  if (is_grouped(layer, half)) return GroupedHalf(layer, half).read(device, blocks, n_tokens, rows);
  const BlockLayout layout(layer, half);
  read_blocks(layout, blocks, n_tokens, rows, [&](int32_t block, std::byte* to) {
    device.copy_out(to, layout.block(block), layout.n_block());
    device.wait(device.record());
  });
}

void write_kv_rows(Device& device, const KvLayer& layer, KvHalf half, std::span<const int32_t> blocks,
                   int64_t n_tokens, const std::byte* rows) {
  if (is_grouped(layer, half)) return GroupedHalf(layer, half).write(device, blocks, n_tokens, rows);
  const BlockLayout layout(layer, half);
  write_blocks(layout, blocks, n_tokens, rows, [&](int32_t block, const std::byte* from, size_t n) {
    device.copy_in(layout.block(block), from, layout.n_block());
    device.wait(device.record());
    if (layer.indexed) index_rows(layer, half, block, static_cast<int64_t>(n));
  });
}

namespace {

struct PoolRows {
  Device& device;
  const KvLayer& layer;
  ColumnRuns runs;  // bytes of a whole row that the pool has, in its order

  size_t n_bytes() const { return static_cast<size_t>(n_columns(runs)); }
};

// The pools of a layer: heads lie side by side in a row; of recurrent layers, floats of the state.
std::vector<PoolRows> pool_rows(const KvCache& cache, size_t layer, KvHalf half) {
  std::vector<PoolRows> list;
  const HeadPools& heads = cache.pools(layer);
  int64_t upto = 0;
  for (const HeadPools::Pool& pool : heads.pools) {
    const KvLayer& part = cache.layers()[pool.device.index()][layer];
    ColumnRuns runs = half == KvHalf::keys ? pool.conv : pool.recurrence;
    for (ColumnRun& run : runs) run = {run.first * int64_t{sizeof(float)}, run.n * int64_t{sizeof(float)}};
    if (runs.empty()) {
      const auto n = static_cast<int64_t>(kv_token_bytes(part, half));
      add_run(runs, {upto, n});
      upto += heads.are_copies ? 0 : n;
    }
    list.push_back({cache.device(pool.device), part, std::move(runs)});
  }
  return list;
}

bool is_whole(const PoolRows& pool, size_t n_row) {
  return pool.n_bytes() == n_row;
}

}  // namespace

size_t kv_token_bytes(const KvCache& cache, size_t layer, KvHalf half) {
  int64_t end = 0;
  for (const PoolRows& pool : pool_rows(cache, layer, half)) {
    if (!pool.runs.empty()) end = std::max(end, pool.runs.back().first + pool.runs.back().n);
  }
  return static_cast<size_t>(end);
}

void read_kv_rows(const KvCache& cache, size_t layer, KvHalf half, std::span<const int32_t> blocks,
                  int64_t n_tokens, std::byte* rows) {
  if (const KvSpill* spill = cache.spill(); spill && spill->has(layer)) {
    const BlockLayout layout(cache.layers().front()[layer], half);
    return read_blocks(layout, blocks, n_tokens, rows,
                       [&](int32_t block, std::byte* to) { spill->read_block(layer, half, block, to); });
  }
  const size_t n_row = kv_token_bytes(cache, layer, half), n = static_cast<size_t>(n_tokens);
  for (const PoolRows& pool : pool_rows(cache, layer, half)) {
    if (is_whole(pool, n_row)) return read_kv_rows(pool.device, pool.layer, half, blocks, n_tokens, rows);
    if (pool.runs.empty()) continue;
    std::vector<std::byte> part(n * pool.n_bytes());
    read_kv_rows(pool.device, pool.layer, half, blocks, n_tokens, part.data());
    const std::byte* from = part.data();
    for (size_t i = 0; i < n; ++i) {
      for (const ColumnRun& run : pool.runs) {
        std::memcpy(rows + i * n_row + run.first, from, static_cast<size_t>(run.n));
        from += run.n;
      }
    }
  }
}

void write_kv_rows(const KvCache& cache, size_t layer, KvHalf half, std::span<const int32_t> blocks,
                   int64_t n_tokens, const std::byte* rows) {
  if (KvSpill* spill = cache.spill(); spill && spill->has(layer)) {
    const BlockLayout layout(cache.layers().front()[layer], half);
    return write_blocks(layout, blocks, n_tokens, rows, [&](int32_t block, const std::byte* from, size_t) {
      spill->write_block(layer, half, block, from);
    });
  }
  const size_t n_row = kv_token_bytes(cache, layer, half), n = static_cast<size_t>(n_tokens);
  for (const PoolRows& pool : pool_rows(cache, layer, half)) {
    if (pool.runs.empty()) continue;
    if (is_whole(pool, n_row)) {
      write_kv_rows(pool.device, pool.layer, half, blocks, n_tokens, rows);
      continue;
    }
    std::vector<std::byte> part(n * pool.n_bytes());
    std::byte* to = part.data();
    for (size_t i = 0; i < n; ++i) {
      for (const ColumnRun& run : pool.runs) {
        std::memcpy(to, rows + i * n_row + run.first, static_cast<size_t>(run.n));
        to += run.n;
      }
    }
    write_kv_rows(pool.device, pool.layer, half, blocks, n_tokens, part.data());
  }
}

}  // namespace tandem
