#include "gguf/kivi.h"

#include <algorithm>

#include "gguf/quants_fit.h"

namespace tandem {
namespace {

// Channels that are quantized together, so that loops over them vectorize.
constexpr int64_t kChannels = QK;

// Truncates to 0..max; NaN gives 0.
uint8_t code_of(float v, float max) {
  const float in_range = v > 0.0f ? v : 0.0f;
  return static_cast<uint8_t>(static_cast<int>(in_range < max ? in_range : max));
}

// 32 codes.
void pack(int bits, const uint8_t* codes, uint8_t* to) {
  if (bits == 4) {
    for (int j = 0; j < QK / 2; ++j) to[j] = static_cast<uint8_t>(codes[j] | codes[j + QK / 2] << 4);
    return;
  }
  for (int j = 0; j < QK / 4; ++j) {
    to[j] = static_cast<uint8_t>(codes[j] | codes[j + QK / 4] << 2 | codes[j + QK / 2] << 4 |
                                 codes[j + 3 * QK / 4] << 6);
  }
}

void unpack(int bits, const uint8_t* from, uint8_t* codes) {
  if (bits == 4) return unpack_nibbles(from, codes);
  unpack_pairs(from, codes);
}

// One scale and minimum of 32 neighbours.
template <class Block>
void quantize_rows(int bits, const float* x, Block* to, int64_t n) {
  const auto q_max = static_cast<float>((1 << bits) - 1);
  for (int64_t b = 0; b < n / QK; ++b, x += QK) {
    float lo = x[0], hi = x[0];
    for (int j = 1; j < QK; ++j) {
      lo = x[j] < lo ? x[j] : lo;
      hi = x[j] > hi ? x[j] : hi;
    }
    const float d = (hi - lo) / q_max, id = quants::inverse(d);
    uint8_t codes[QK];
    for (int j = 0; j < QK; ++j) codes[j] = code_of((x[j] - lo) * id + 0.5f, q_max);
    to[b].d = quants::to_scale(d);
    to[b].m = quants::to_scale(lo);
    pack(bits, codes, to[b].qs);
  }
}

template <class Block>
void dequantize_rows(const void* from, float* to, int64_t n) {
  const auto* blocks = static_cast<const Block*>(from);
  for (int64_t b = 0; b < n / QK; ++b) dequantize_32(blocks[b], 0, to + b * QK);
}

}  // namespace

void dequantize_kivi4(const void* from, float* to, int64_t n) {
  dequantize_rows<BlockQ4_1>(from, to, n);
}
void dequantize_kivi2(const void* from, float* to, int64_t n) {
  dequantize_rows<BlockKivi2>(from, to, n);
}
void quantize_kivi4(const float* from, void* to, int64_t n, const float*) {
  quantize_rows(4, from, static_cast<BlockQ4_1*>(to), n);
}
void quantize_kivi2(const float* from, void* to, int64_t n, const float*) {
  quantize_rows(2, from, static_cast<BlockKivi2*>(to), n);
}

void quantize_key_group(DType dtype, const float* keys, void* to, int64_t head_dim) {
  const int bits = kivi_bits(dtype);
  const auto q_max = static_cast<float>((1 << bits) - 1);
  auto *d = static_cast<fp16_t*>(to), *m = d + head_dim;
  auto* codes = reinterpret_cast<uint8_t*>(m + head_dim);
  const int64_t n_code_bytes = head_dim / QK * 4 * bits;  // of a token
  for (int64_t first = 0; first < head_dim; first += kChannels) {
    float lo[kChannels], hi[kChannels], inverse[kChannels];
    for (int64_t c = 0; c < kChannels; ++c) lo[c] = hi[c] = keys[first + c];
    for (int64_t token = 1; token < kKiviGroup; ++token) {
      const float* x = keys + token * head_dim + first;
      for (int64_t c = 0; c < kChannels; ++c) {
        lo[c] = x[c] < lo[c] ? x[c] : lo[c];
        hi[c] = x[c] > hi[c] ? x[c] : hi[c];
      }
    }
    for (int64_t c = 0; c < kChannels; ++c) {
      const float scale = (hi[c] - lo[c]) / q_max;
      inverse[c] = quants::inverse(scale);
      d[first + c] = quants::to_scale(scale);
      m[first + c] = quants::to_scale(lo[c]);
    }
    for (int64_t token = 0; token < kKiviGroup; ++token) {
      const float* x = keys + token * head_dim + first;
      uint8_t levels[kChannels];
      for (int64_t c = 0; c < kChannels; ++c) levels[c] = code_of((x[c] - lo[c]) * inverse[c] + 0.5f, q_max);
      pack(bits, levels, codes + token * n_code_bytes + first / QK * 4 * bits);
    }
  }
}

void dequantize_key_group(DType dtype, const void* from, int64_t first, int64_t n, float* to,
                          int64_t head_dim) {
  const int bits = kivi_bits(dtype);
  const auto *d = static_cast<const fp16_t*>(from), *m = d + head_dim;
  const auto* codes = reinterpret_cast<const uint8_t*>(m + head_dim) + first * (head_dim / QK) * 4 * bits;
  for (int64_t token = 0; token < n; ++token) {
    for (int64_t c = 0; c < head_dim; c += QK, codes += 4 * bits, to += QK) {
      uint8_t levels[QK];
      unpack(bits, codes, levels);
      for (int64_t j = 0; j < QK; ++j)
        to[j] = fp16_to_fp32(d[c + j]) * static_cast<float>(levels[j]) + fp16_to_fp32(m[c + j]);
    }
  }
}

}  // namespace tandem
