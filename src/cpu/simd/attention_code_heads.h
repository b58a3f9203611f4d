// Attention of few queries (decode) over a cache of codes for key-value heads whose rows of a block are neighbours, as
// attention_heads.h has it for floats: the keys of all heads in a panel, their softmax, then their values. Only where memory is read
// in several streams; elsewhere it was not measured. GB/s of Q8_0 on a core of a Granite Rapids that reads 14 to 16 with plain loads,
// head by head and so, heads of 128 columns: one query 10.0, 12.2; four 8.5, 10.4; eight 6.4, 7.3. The products are the limit (from the
// L2 27, 15 and 9): the weights of four blocks of columns made codes together, so that their maxima take one transposition, were no
// faster.
#pragma once

#include "cpu/linear_kernels.h"
#include "cpu/simd/attention_codes.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

bool takes_code_heads(const AttentionCall& call) {
  return reads_in_streams() && takes_codes(call) && !call.values_in_keys && call.window == 0 &&
         kPanel % call.block_size == 0 && kStreams % (kPanel / call.block_size) == 0;
}

// Calls under way.
class CodedHeads {
 public:
  // `scratch` has room for n times CodeWork's bytes.
  CodedHeads(const AttentionCall* calls, int64_t n, std::byte* scratch) : call_(calls[0]), n_(n) {
    for (int64_t h = 0; h < n; ++h, scratch += heads_[h - 1].w.bytes) heads_[h] = Coded(calls[h], scratch);
  }

  void attend() const {
    for (int64_t first = call_.kv_begin; first < call_.kv_end; first += kPanel) {
      const int64_t n = lesser(call_.kv_end - first, kPanel), then = first + n;
      if (!heads_[0].sees(first, n)) continue;
      const int64_t n_then = lesser(call_.kv_end + call_.kv_then - then, kPanel);
      const CacheRows &keys = heads_[0].keys, &values = heads_[0].values;
      Streams v_streams = streams_of(values, first, n, n * static_cast<int64_t>(keys.row_bytes));
      Streams k_streams = streams_of(keys, then, n_then, n * static_cast<int64_t>(values.row_bytes));
      for (int64_t h = 0; h < n_; ++h) heads_[h].dot(first, n, only(&v_streams));
      for (int64_t h = 0; h < n_; ++h) heads_[h].weigh(first, n);
      for (int64_t h = 0; h < n_; ++h) heads_[h].update(first, n, only(&k_streams));
    }
    for (int64_t h = 0; h < n_; ++h) heads_[h].finish();
  }

 private:
  // A panel's rows of all heads, while each head's `used` bytes are read. In a last panel that is not whole, its last block stands for
  // those that are missing.
  Streams streams_of(const CacheRows& rows, int64_t first, int64_t n, int64_t used) const {
    if (n <= 0) return {};
    const std::byte* pieces[kStreams];
    const int64_t n_pieces = kPanel / call_.block_size;
    for (int64_t i = 0; i < n_pieces; ++i)
      pieces[i] = i * call_.block_size < n ? rows.row(first + i * call_.block_size) : pieces[i - 1];
    return Streams(pieces, static_cast<int>(n_pieces),
                   static_cast<size_t>(n_ * call_.block_size) * rows.row_bytes,
                   static_cast<size_t>(n_ * used));
  }
  static CodesAhead only(Streams* streams) {
    CodesAhead ahead;
    ahead.streams = streams;
    return ahead;
  }

  const AttentionCall& call_;
  const int64_t n_;
  Coded heads_[kHeadsAtOnce];
};

void attend_code_heads(const AttentionCall* calls, int64_t n, std::byte* scratch) {
  const int64_t at_once = heads_of_stretch(calls[0], kPanel, n);
  for (int64_t first = 0; first < n; first += at_once)
    CodedHeads(calls + first, lesser(at_once, n - first), scratch).attend();
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
