// Weights and inputs of CUDA products, in the device's layouts, on the host.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "ggml-cuda/products.h"
#include "ggml-cuda/relayout.h"
#include "gguf/quants.h"
#include "support/dtypes.h"
#include "support/quantized.h"

namespace tandem::cuda {

inline std::vector<float> normals(int64_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(rng);
  return x;
}

// Memory aligned to 16 bytes, like device memory.
class Aligned {
 public:
  explicit Aligned(int64_t n_bytes) : bytes_(static_cast<size_t>(n_bytes + 15) / 16) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(bytes_.data()); }

 private:
  struct alignas(16) Piece {
    std::byte bytes[16];
  };
  std::vector<Piece> bytes_;
};

// Random matrices [n_mats, m, k] in the layout of upload_weight, and their values.
struct HostWeight {
  HostWeight(DType dtype, int m, int k, int n_mats, std::mt19937& rng)
      : values(static_cast<size_t>(n_mats) * m * k),
        memory(layout_bytes(dtype, n_mats, m, k, static_cast<int64_t>(row_bytes(dtype, k)) * m * n_mats)) {
    const int64_t n = static_cast<int64_t>(values.size());
    const std::vector<float> x = normals(n, rng);
    const std::vector<std::byte> file = test::quantized(dtype, x);
    dequantize_row(dtype, file.data(), values.data(), n);
    device = device_weight(dtype, memory.data(), m, k);
    if (!has_planes(dtype)) std::copy(file.begin(), file.end(), memory.data());
    for_format(dtype, [&]<DType T>() {
      using Block = FileBlock<T>;
      const int64_t per_mat = static_cast<int64_t>(m) * k / kBlockColumns / kPerFileBlock<T>;
      for (int64_t i = 0; i < n_mats * per_mat; ++i) {
        const Planes planes = expert_planes(device, static_cast<int>(i / per_mat));
        for (int s = 0; s < kPerFileBlock<T>; ++s) {
          relayout_block<T>(reinterpret_cast<const Block*>(file.data())[i], i % per_mat, s, planes);
        }
      }
    });
  }
  HostWeight(const HostWeight&) = delete;

  std::vector<float> values;
  Aligned memory;
  DeviceWeight device;
};

// Activations [n, k] and their encodings, as quantize_activations makes them.
struct HostInput {
  HostInput(int n_tokens, int n_cols, std::mt19937& rng)
      : HostInput(n_tokens, n_cols, normals(static_cast<int64_t>(n_tokens) * n_cols, rng)) {}
  HostInput(int n_tokens, int n_cols, std::vector<float> values)
      : n(n_tokens), k(n_cols), floats(static_cast<int64_t>(4) * n * k), x(std::move(values)) {
    std::copy(x.begin(), x.end(), reinterpret_cast<float*>(floats.data()));
    for (int e = 0; e < kEncodings; ++e) {
      const int columns = e == 0 ? 32 : 256;
      encoded.emplace_back(activation_bytes(n, k));
      rounded.emplace_back(x.size());
      if (k % columns == 0) encode(e, columns);
    }
  }
  HostInput(const HostInput&) = delete;

  ProductInput input() const {
    auto* self = const_cast<HostInput*>(this);
    return {reinterpret_cast<const float*>(self->floats.data()),
            {activations_at(self->encoded[0].data(), n, k), activations_at(self->encoded[1].data(), n, k)}};
  }

  // Product of row r of matrix `mat` with token t, with the input encoded for the weight's dtype.
  float dot(const HostWeight& w, int mat, int r, int t) const {
    const DType dtype = w.device.dtype;
    const std::vector<float>& from = has_planes(dtype) ? rounded[static_cast<size_t>(encoding_of(dtype))] : x;
    double sum = 0;
    for (int i = 0; i < k; ++i) {
      sum += static_cast<double>(w.values[(static_cast<size_t>(mat) * w.device.m + r) * k + i]) *
             from[static_cast<size_t>(t) * k + i];
    }
    return static_cast<float>(sum);
  }

  int n, k;
  Aligned floats;
  std::vector<float> x;
  std::vector<Aligned> encoded;             // by Encoding
  std::vector<std::vector<float>> rounded;  // values of the encodings

 private:
  void encode(int e, int columns) {
    const int n_blocks = k / kBlockColumns;
    std::byte* q = encoded[e].data();
    auto* meta = reinterpret_cast<BlockMeta*>(q + activation_q_bytes(n, k));
    for (int64_t i = 0; i < static_cast<int64_t>(n) * k; i += columns) {
      uint32_t max_bits = 0;
      for (int j = 0; j < columns; ++j)
        max_bits = std::max(max_bits, std::bit_cast<uint32_t>(x[i + j]) & 0x7fffffffu);
      const BlockScaling scaling = block_scaling(max_bits);
      for (int j = 0; j < columns; ++j) {
        const int64_t token = (i + j) / k, column = (i + j) % k, block = column / 32, at = column % 32;
        const int value = quantize_value(x[i + j], scaling);
        q[activation_at(token, static_cast<int>(at / 16), block, n_blocks) + at % 16] =
            static_cast<std::byte>(value);
        BlockMeta& m = meta[token * n_blocks + block];
        if (at == 0) m = {scaling.scale, {0, 0}};
        m.sums[at / 16] = static_cast<int16_t>(m.sums[at / 16] + value);
        rounded[e][i + j] = scaling.scale * static_cast<float>(value);
      }
    }
  }
};

// Equal except for the order of float sums: relative error under 1e-5.
inline void expect_near(const std::vector<float>& got, const std::vector<float>& expected,
                        std::string_view what) {
  ASSERT_EQ(got.size(), expected.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what << " " << i;
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  EXPECT_LT(std::sqrt(error), 1e-5 * std::sqrt(norm)) << what;
}

}  // namespace tandem::cuda
