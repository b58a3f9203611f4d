// A cache with shuffled blocks and queries on it, for tests of GPU attention. Unwritten cache rows hold NaN,
// as fresh device memory may.
#pragma once

#include <algorithm>
#include <cmath>

#include "gguf/kivi.h"
#include "gguf/quants.h"
#include "gpu/harness.h"

namespace tandem::gpu_test {

struct AttentionCase {
  int64_t n_head = 4, n_head_kv = 2, head_dim_k = 64, head_dim_v = 64, block_size = 32;
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  int64_t window = 0;
  float softcap = 0;
  bool sinks = false;
  bool values_in_keys = false;
  std::vector<int64_t> lengths{40};   // cached positions of each sequence
  std::vector<int64_t> n_queries{1};  // queries at the end of each sequence
  std::vector<int64_t> hot_from;      // first position of each sequence's hot cache
  int64_t n_key_sets = 1;
  int64_t lag = 0;  // far_positions are so far before the tokens'

  int64_t n_tokens() const {
    int64_t n = 0;
    for (int64_t of_sequence : n_queries) n += of_sequence;
    return n;
  }
  bool is_grouped() const { return is_kivi(k_dtype) || is_kivi(v_dtype); }
  bool all_f32() const { return k_dtype == DType::F32 && (values_in_keys || v_dtype == DType::F32); }
  // Of results. Queries and weights are rounded to the operands of tensor cores: BF16 has three bits less.
  double tolerance() const {
    if (all_f32()) return kF32;
    return k_dtype == DType::BF16 || v_dtype == DType::BF16 ? 4 * kRounded : kRounded;
  }
  int64_t n_heads(bool of_keys) const { return of_keys ? n_head_kv * n_key_sets : n_head_kv; }  // cached
  int64_t cached_values() const { return values_in_keys ? 0 : head_dim_v; }  // columns of the value pool

  ShapeClass shape() const {
    ShapeClass s;
    s.max_tokens = n_tokens();
    s.max_sequences = static_cast<int64_t>(lengths.size());
    s.max_blocks = *std::max_element(lengths.begin(), lengths.end()) / block_size + 3;
    if (!hot_from.empty()) s.max_hot_blocks = s.max_blocks;
    return s;
  }

  AttentionParams op(KvPart part = KvPart::whole) const {
    AttentionParams attention{n_head, n_head_kv, head_dim_k, head_dim_v};
    attention.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_k));
    attention.softcap = softcap;
    attention.window = window;
    attention.part = part;
    attention.values_in_keys = values_in_keys;
    return attention;
  }

  std::string text() const {
    return std::to_string(n_head) + "/" + std::to_string(n_head_kv) + " heads of " +
           std::to_string(head_dim_k) + "/" + std::to_string(head_dim_v) + " " +
           std::string(dtype_name(k_dtype)) + "/" + std::string(dtype_name(v_dtype)) + ", " +
           std::to_string(lengths.front()) + " positions, " + std::to_string(n_queries.front()) +
           " queries, window " + std::to_string(window) + (values_in_keys ? ", values in keys" : "") +
           (hot_from.empty() ? "" : ", hot from " + std::to_string(hot_from.front()));
  }

  bool is_in(KvPart part, size_t sequence, int64_t position) const {
    if (part == KvPart::whole) return true;
    return (position >= hot_from[sequence]) == (part == KvPart::hot);
  }
};

// Fills the rows of sequences, only of `part`, with random values, and sets the inputs.
class AttentionScene {
 public:
  AttentionScene(Random& random, const AttentionCase& c, KvPart part = KvPart::whole)
      : random_(random),
        case_(c),
        shape_(c.shape()),
        blocks_(static_cast<size_t>(shape_.max_sequences * shape_.max_blocks)) {
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = static_cast<int32_t>(i);
    random_.shuffle(blocks_);
    const auto rows = [&](size_t n_blocks, bool of_keys) {
      return n_blocks * static_cast<size_t>(c.block_size * c.n_heads(of_keys));
    };
    const auto pool = [](size_t n, DType dtype, int64_t head_dim) {
      return std::vector<std::byte>(n * row_bytes(dtype, head_dim), std::byte{0xff});
    };
    bytes_.k = pool(rows(blocks_.size(), true), c.k_dtype, c.head_dim_k);
    bytes_.v = pool(rows(blocks_.size(), false), c.v_dtype, c.cached_values());
    if (c.is_grouped()) choose_open();
    if (is_kivi(c.k_dtype)) bytes_.k_open = pool(rows(n_open_, true), DType::F16, c.head_dim_k);
    if (is_kivi(c.v_dtype)) bytes_.v_open = pool(rows(n_open_, false), DType::F16, c.head_dim_v);
    fill(part);
  }

  void give(OpCase& op) const {
    KvLayer layer{nullptr,
                  nullptr,
                  case_.k_dtype,
                  case_.v_dtype,
                  case_.n_head_kv,
                  case_.head_dim_k,
                  case_.cached_values(),
                  case_.block_size,
                  static_cast<int64_t>(blocks_.size())};
    layer.n_key_sets = case_.n_key_sets;
    layer.n_open = static_cast<int64_t>(n_open_);
    if (case_.is_grouped()) layer.open_of = open_of_.data();
    op.set_cache(layer, bytes_);
    op.set_input(Input::positions, positions_);
    std::vector<int32_t> far = positions_;
    for (int32_t& p : far) p -= static_cast<int32_t>(case_.lag);
    op.set_input(Input::far_positions, far);
    op.set_input(Input::sequences, sequences_);
    op.set_input(Input::block_table, blocks_);
    if (!case_.hot_from.empty()) give_parts(op);
  }

  // Where kv_write stores a position.
  int32_t slot(size_t sequence, int64_t position) const {
    return static_cast<int32_t>(block_of(sequence, position) * case_.block_size + position % case_.block_size);
  }
  // Of a token of the step.
  int64_t position(size_t token) const { return positions_[token]; }
  size_t sequence(size_t token) const { return static_cast<size_t>(sequences_[token]); }
  std::vector<float> key(size_t sequence, int64_t position, int64_t head) const {
    return read(case_.k_dtype, case_.head_dim_k, row(sequence, position, head, true), bytes_.k);
  }
  std::vector<float> value(size_t sequence, int64_t position, int64_t head) const {
    if (case_.values_in_keys) {
      std::vector<float> x = key(sequence, position, head);
      x.resize(static_cast<size_t>(case_.head_dim_v));
      return x;
    }
    return read(case_.v_dtype, case_.head_dim_v, row(sequence, position, head, false), bytes_.v);
  }

 private:
  int64_t row(size_t sequence, int64_t position, int64_t head, bool of_keys) const {
    return (block_of(sequence, position) * case_.n_heads(of_keys) + head) * case_.block_size +
           position % case_.block_size;
  }

  int32_t block_of(size_t sequence, int64_t position) const {
    return blocks_[sequence * static_cast<size_t>(shape_.max_blocks) +
                   static_cast<size_t>(position / case_.block_size)];
  }

  // Of a grouped cache, blocks that are not whole, and some others.
  void choose_open() {
    open_of_.assign(blocks_.size(), -1);
    std::vector<int32_t> open;
    for (size_t s = 0; s < case_.lengths.size(); ++s) {
      for (int64_t p = 0; p < case_.lengths[s]; p += case_.block_size) {
        if (p + case_.block_size > case_.lengths[s] || random_.below(3) == 0) open.push_back(block_of(s, p));
      }
    }
    random_.shuffle(open);
    for (size_t i = 0; i < open.size(); ++i) open_of_[static_cast<size_t>(open[i])] = static_cast<int32_t>(i);
    n_open_ = open.size() + 1;
  }
  bool is_open(int32_t block) const {
    return case_.is_grouped() && open_of_[static_cast<size_t>(block)] >= 0;
  }

  void fill(KvPart part) {
    for (size_t s = 0; s < case_.lengths.size(); ++s) {
      for (int64_t p = 0; p < case_.lengths[s]; ++p) {
        for (int64_t h = 0; h < case_.n_heads(true) && case_.is_in(part, s, p); ++h) {
          fill_half(case_.k_dtype, true, case_.head_dim_k, s, p, h, bytes_.k, bytes_.k_open);
          if (!case_.values_in_keys && h < case_.n_head_kv)
            fill_half(case_.v_dtype, false, case_.head_dim_v, s, p, h, bytes_.v, bytes_.v_open);
        }
      }
      for (int64_t p = case_.lengths[s] - case_.n_queries[s]; p < case_.lengths[s]; ++p) {
        positions_.push_back(static_cast<int32_t>(p));
        sequences_.push_back(static_cast<int32_t>(s));
      }
    }
  }

  // The hot cache's table starts with the block of its first position; entries after a sequence's last block
  // are invalid.
  void give_parts(OpCase& op) const {
    std::vector<int32_t> hot(static_cast<size_t>(shape_.max_sequences * shape_.max_hot_blocks), 1 << 29),
        from;
    for (size_t s = 0; s < case_.lengths.size(); ++s) {
      from.push_back(static_cast<int32_t>(case_.hot_from[s]));
      const int64_t first = case_.hot_from[s] / case_.block_size;
      for (int64_t b = first; b * case_.block_size < case_.lengths[s]; ++b) {
        hot[s * static_cast<size_t>(shape_.max_hot_blocks) + static_cast<size_t>(b - first)] =
            blocks_[s * static_cast<size_t>(shape_.max_blocks) + static_cast<size_t>(b)];
      }
    }
    op.set_input(Input::hot_blocks, std::move(hot));
    op.set_input(Input::hot_from, std::move(from));
  }

  void fill_half(DType dtype, bool are_keys, int64_t head_dim, size_t sequence, int64_t position,
                 int64_t head, std::vector<std::byte>& pool, std::vector<std::byte>& open) {
    const int32_t block = block_of(sequence, position);
    const int64_t at = position % case_.block_size;
    if (is_kivi(dtype) && is_open(block)) {
      const int64_t place = open_of_[static_cast<size_t>(block)];
      return store(DType::F16, head_dim, (place * case_.n_heads(are_keys) + head) * case_.block_size + at,
                   open);
    }
    if (!is_kivi(dtype) || !are_keys)
      return store(dtype, head_dim, row(sequence, position, head, are_keys), pool);
    if (at != 0) return;
    const std::vector<float> x = random_.normals(kKiviGroup * head_dim);
    std::byte* group = pool.data() + static_cast<size_t>(row(sequence, position, head, are_keys)) *
                                         row_bytes(dtype, head_dim);
    quantize_key_group(dtype, x.data(), group, head_dim);
  }
  void store(DType dtype, int64_t head_dim, int64_t row, std::vector<std::byte>& pool) {
    const std::vector<float> x = random_.normals(head_dim);
    quantize_row(dtype, x.data(), pool.data() + static_cast<size_t>(row) * row_bytes(dtype, head_dim),
                 head_dim);
  }
  static std::vector<float> read(DType dtype, int64_t head_dim, int64_t row,
                                 const std::vector<std::byte>& pool) {
    std::vector<float> x(static_cast<size_t>(head_dim));
    dequantize_row(dtype, pool.data() + static_cast<size_t>(row) * row_bytes(dtype, head_dim), x.data(),
                   head_dim);
    return x;
  }

  Random& random_;
  const AttentionCase& case_;
  ShapeClass shape_;
  std::vector<int32_t> blocks_;  // [n_sequences, max_blocks]
  std::vector<int32_t> positions_, sequences_;
  CacheBytes bytes_;
  std::vector<int32_t> open_of_;  // [n_blocks] of a grouped cache
  size_t n_open_ = 0;
};

}  // namespace tandem::gpu_test
