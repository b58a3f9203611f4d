#include "device/kv_index.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "gguf/quants.h"

namespace tandem {
namespace {

constexpr int64_t kPiece = 256;  // columns at a time; a multiple of every cache type's block

size_t aligned(int64_t n_bytes) {
  return align_up(static_cast<size_t>(n_bytes), 64);
}

int64_t row_of(const KvLayer& layer, int64_t slot, int64_t head) {
  return (slot / layer.block_size * layer.n_head_kv + head) * layer.block_size + slot % layer.block_size;
}

int8_t code_of(float x) {
  const float in_range = !(x >= -127.0f) ? -127.0f : x > 127.0f ? 127.0f : x;  // also of NaN
  return static_cast<int8_t>(static_cast<int>(in_range + 128.5f) - 128);
}

// Calls fn(columns, first column, how many) for the pieces of a row.
template <class Fn>
void for_each_piece(DType dtype, const std::byte* row, int64_t n, Fn&& fn) {
  float columns[kPiece];
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t m = std::min(kPiece, n - first);
    dequantize_row(dtype, row + row_bytes(dtype, first), columns, m);
    fn(columns, first, m);
  }
}

}  // namespace

KvIndex::KvIndex(const KvLayer& layer)
    : head_dim_k(layer.head_dim_k), head_dim_v(layer.head_dim_v), n_blocks(layer.n_blocks) {
  stride = static_cast<int64_t>(aligned(layer.n_blocks * layer.block_size)) + 64;
  const size_t n_components = aligned(layer.n_head_kv * head_dim_k * stride);
  const size_t n_scales = aligned(layer.n_head_kv * stride * static_cast<int64_t>(sizeof(float)));
  n_bytes = n_components + n_scales +
            aligned(layer.n_head_kv * n_blocks * head_dim_v * static_cast<int64_t>(sizeof(fp16_t)));
  if (!layer.index) return;
  components = reinterpret_cast<int8_t*>(layer.index);
  scales = reinterpret_cast<float*>(layer.index + n_components);
  means = reinterpret_cast<fp16_t*>(layer.index + n_components + n_scales);
}

size_t kv_index_bytes(const KvLayer& layer) {
  return layer.indexed ? KvIndex(layer).n_bytes : 0;
}

void index_key(const KvLayer& layer, const KvIndex& index, int64_t slot, int64_t head) {
  const std::byte* row =
      layer.k + static_cast<size_t>(row_of(layer, slot, head)) * row_bytes(layer.k_dtype, layer.head_dim_k);
  float largest = 0;
  for_each_piece(layer.k_dtype, row, layer.head_dim_k, [&](const float* x, int64_t, int64_t n) {
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  });
  const bool usable = largest > 0 && std::isfinite(largest);
  const float inverse = usable ? 127.0f / largest : 0.0f;
  index.scales_of(head)[slot] = usable ? largest / 127.0f : 0.0f;
  int8_t* to = index.component(head, 0) + slot;
  for_each_piece(layer.k_dtype, row, layer.head_dim_k, [&](const float* x, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[(first + i) * index.stride] = code_of(x[i] * inverse);
  });
}

void index_values(const KvLayer& layer, const KvIndex& index, int64_t block) {
  const size_t row = row_bytes(layer.v_dtype, layer.head_dim_v);
  for (int64_t head = 0; head < layer.n_head_kv; ++head) {
    const std::byte* rows =
        layer.v + static_cast<size_t>((block * layer.n_head_kv + head) * layer.block_size) * row;
    fp16_t* mean = index.mean(head, block);
    for (int64_t first = 0; first < layer.head_dim_v; first += kPiece) {
      const int64_t n = std::min(kPiece, layer.head_dim_v - first);
      float sum[kPiece] = {}, x[kPiece];
      for (int64_t r = 0; r < layer.block_size; ++r) {
        dequantize_row(layer.v_dtype, rows + static_cast<size_t>(r) * row + row_bytes(layer.v_dtype, first),
                       x, n);
        for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
      }
      const auto n_rows = static_cast<float>(layer.block_size);
      for (int64_t i = 0; i < n; ++i) mean[first + i] = fp32_to_fp16(sum[i] / n_rows);
    }
  }
}

void index_block(const KvLayer& layer, int64_t block, int64_t n_tokens) {
  const KvIndex index(layer);
  for (int64_t head = 0; head < layer.n_head_kv; ++head) {
    for (int64_t i = 0; i < n_tokens; ++i) index_key(layer, index, block * layer.block_size + i, head);
  }
  if (n_tokens == layer.block_size) index_values(layer, index, block);
}

AlwaysRead always_read(const SparseReads& reads, int64_t n_positions, int64_t position) {
  const int64_t n_first = std::min(kSparseFirst, n_positions);
  const int64_t newest = std::max(n_first, position + 1 - reads.newest());
  return {n_first, std::max<int64_t>(0, n_positions - newest)};
}

bool reads_sparsely(const SparseReads& reads, int64_t block_size, int64_t n_positions, int64_t position) {
  return reads.on() && n_positions >= block_size &&
         n_positions > always_read(reads, n_positions, position).n() + reads.n_positions;
}

int64_t sparse_read_bytes(const SparseReads& reads, const KvLayer& layer, int64_t n_positions) {
  const auto row = static_cast<int64_t>(row_bytes(layer.k_dtype, layer.head_dim_k) +
                                        row_bytes(layer.v_dtype, layer.head_dim_v));
  if (!reads_sparsely(reads, layer.block_size, n_positions, n_positions - 1)) return n_positions * row;
  const int64_t n_components = std::min(reads.n_components, layer.head_dim_k);
  const int64_t n_read = always_read(reads, n_positions, n_positions - 1).n() + reads.n_positions;
  return n_positions * (n_components + static_cast<int64_t>(sizeof(float))) +
         n_positions / layer.block_size * layer.head_dim_v * static_cast<int64_t>(sizeof(fp16_t)) +
         n_read * row;
}

}  // namespace tandem
