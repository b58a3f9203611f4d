// Activations for the products of linear_bytes.h.
#include <cstring>

#include "cpu/amx/attention_pack.h"
#include "cpu/amx/linear_bytes.h"
#include "cpu/avx512/linear_encode.h"
#include "cpu/avx512/linear_store.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <int unit>
void encode_group(const ByteLayout& layout, const float* x, int64_t ldx, int64_t n_tokens, std::byte* to) {
  auto* scales = reinterpret_cast<float*>(to + layout.scales_at());
  alignas(64) int8_t q[kGroupTokens][kChunkColumns] = {};
  alignas(64) float scale[kChunkColumns / unit][kGroupTokens] = {}, sum[kChunkColumns / 16][kGroupTokens] = {};
  alignas(64) int8_t sum_tile[kTileRows][kGroupTokens][4] = {};
  static_assert(sizeof sum == ByteLayout::kSumsBytes && sizeof sum_tile == sizeof sum);
  for (int64_t column = 0; column < layout.k; column += kChunkColumns) {
    const int64_t present = min64(kChunkColumns, layout.k - column);
    for (int64_t t = 0; t < n_tokens; ++t) {
      Span span;
      encode_span<unit>(x + t * ldx + column, present, q[t], span);
      for (int64_t i = 0; i < kChunkColumns / unit; ++i) scale[i][t] = i * unit < present ? span.scale[i] : 0.0f;
      for (int64_t i = 0; i < kChunkColumns / 16; ++i) {
        sum[i][t] = span.sum16[i];
        sum_tile[i / 4][t][i % 4] = static_cast<int8_t>(span.sum16[i] & 15);
        sum_tile[4 + i / 4][t][i % 4] = static_cast<int8_t>(span.sum16[i] >> 4);
      }
    }
    unroll<4>([&](auto i) __attribute__((always_inline)) {
      alignas(64) std::byte words[kTileWords * 4];
      for (int64_t t = 0; t < kGroupTokens; ++t) std::memcpy(words + 64 * t, q[t] + 64 * i.value, 64);
      transpose_words(words, to + column * 16 + 1024 * i.value);
    });
    std::memcpy(scales + column / unit * 16, scale, sizeof scale);
    std::byte* const sums =
        to + layout.sums_at() + static_cast<size_t>(column / kChunkColumns) * ByteLayout::kSumsBytes;
    if (layout.sums == ByteSums::floats) std::memcpy(sums, sum, sizeof sum);
    if (layout.sums == ByteSums::tiles) std::memcpy(sums, sum_tile, sizeof sum_tile);
  }
}

// Up to kFewTokens: a tile has the columns of two scales of weights, and each token twice, with the first one's columns in lanes 0 to 7
// and with the second one's in lanes 8 to 15; the others are zero. So one product makes two scales' sums. Scales, [columns / 64][16]
// of unit 32, and sums of 32 columns, [256 / 64][16] of a chunk, are in the same order; of unit 256 a scale is there twice.
template <int unit>
void encode_few(const ByteLayout& layout, int sub, const float* x, int64_t ldx, int64_t n_tokens, std::byte* to) {
  auto* scales = reinterpret_cast<float*>(to + layout.scales_at());
  const __mmask64 first = sub == 32 ? 0x00000000ffffffff : 0x0000ffff0000ffff;
  constexpr int64_t kVecs = kChunkColumns / 64, kOfScales = unit == 32 ? kVecs : 1;
  alignas(64) int8_t q[kFewTokens][kChunkColumns] = {};
  alignas(64) float scale[kOfScales][kGroupTokens] = {}, sum[kVecs][kGroupTokens] = {};
  for (int64_t column = 0; column < layout.k; column += kChunkColumns) {
    const int64_t present = min64(kChunkColumns, layout.k - column);
    for (int64_t t = 0; t < n_tokens; ++t) {
      Span span;
      encode_span<unit>(x + t * ldx + column, present, q[t], span);
      for (int64_t i = 0; i < 2 * kVecs; ++i) {
        const int64_t lane = i % 2 * kFewTokens + t;
        sum[i / 2][lane] = static_cast<float>(span.sum32[i]);
        if (unit == 32) scale[i / 2 % kOfScales][lane] = i * unit < present ? span.scale[i] : 0.0f;
        if (unit != 32) scale[0][lane] = span.scale[0];
      }
    }
    unroll<kVecs>([&](auto i) __attribute__((always_inline)) {
      alignas(64) std::byte words[kTileWords * 4];
      for (int64_t t = 0; t < kFewTokens; ++t) {
        const __m512i codes = _mm512_load_si512(q[t] + 64 * i.value);
        _mm512_store_si512(words + 64 * t, _mm512_maskz_mov_epi8(first, codes));
        _mm512_store_si512(words + 64 * (kFewTokens + t), _mm512_maskz_mov_epi8(~first, codes));
      }
      transpose_words(words, to + column * 16 + 1024 * i.value);
    });
    std::memcpy(scales + column / kChunkColumns * kOfScales * kGroupTokens, scale, sizeof scale);
    if (layout.sums != ByteSums::floats) continue;
    std::byte* const sums =
        to + layout.sums_at() + static_cast<size_t>(column / kChunkColumns) * ByteLayout::kSumsBytes;
    std::memcpy(sums, sum, sizeof sum);
  }
}

}  // namespace

void encode_byte_group(const ByteLayout& layout, const float* x, int64_t ldx, int64_t n_tokens, std::byte* to) {
  (layout.unit == 32 ? encode_group<32> : encode_group<256>)(layout, x, ldx, n_tokens, to);
}
void encode_few_bytes(const ByteLayout& layout, int sub, const float* x, int64_t ldx, int64_t n_tokens, std::byte* to) {
  (layout.unit == 32 ? encode_few<32> : encode_few<256>)(layout, sub, x, ldx, n_tokens, to);
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
