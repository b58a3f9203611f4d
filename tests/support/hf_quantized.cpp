#include "support/hf_quantized.h"

#include <cstring>
#include <random>

#include "base/checked.h"
#include "base/fp16.h"
#include "base/fp8.h"

namespace tandem::test {
namespace {

constexpr int64_t kGroup = 16, kBlock = 128;

bool is_product(const std::string& name, const HfTensor& tensor) {
  if (tensor.shape.size() != 2 || !name.ends_with(".weight") || tensor.shape[1] % kGroup != 0) return false;
  for (const char* other : {"embed_tokens", "gate.weight", "router", "conv", "norm", "per_layer"}) {
    if (name.find(other) != std::string::npos) return false;
  }
  return true;
}

HfTensor floats_of(std::vector<int64_t> shape, const std::vector<float>& values) {
  return {"F32", std::move(shape), std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
}

// A matrix in each form.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, unsigned seed) : rows_(rows), cols_(cols), random_(seed) {}

  void nvfp4(const std::string& name, bool divides, HfFolder& quantized) {
    constexpr float kLevels[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const float global = std::uniform_real_distribution<float>(100, 3000)(random_), factor = 1.0f / global;
    const std::string scales = bytes(static_cast<size_t>(rows_ * cols_ / kGroup), 0x7e), codes = bytes(static_cast<size_t>(rows_ * cols_ / 2), 0xff);
    for (int64_t i = 0; i < rows_ * cols_; ++i) {
      const int code = static_cast<uint8_t>(codes[static_cast<size_t>(i / 2)]) >> (i % 2 * 4) & 15;
      const float scale = fp8_e4m3_to_fp32(static_cast<uint8_t>(scales[static_cast<size_t>(i / kGroup)]));
      values_.push_back((code & 8 ? -1.0f : 1.0f) * kLevels[code & 7] * scale * factor);
    }
    quantized.tensors[divides ? name + "_packed" : name] = {"U8", {rows_, cols_ / 2}, codes};
    quantized.tensors[name + "_scale"] = {"F8_E4M3", {rows_, cols_ / kGroup}, scales};
    if (divides) {
      quantized.tensors[name + "_global_scale"] = floats_of({1}, {global});
    } else {
      quantized.tensors[name + "_scale_2"] = floats_of({}, {factor});
    }
  }

  // Of a matrix in two: scales in F32 and as NAME_scale_inv, with the second of two shapes.
  void fp8(const std::string& name, int64_t block_rows, int64_t block_cols, const std::vector<int64_t> (&shapes)[2], HfFolder& quantized) {
    const int64_t across = ceil_div(cols_, block_cols);
    const bool other = random_() % 2 == 0;
    std::vector<float> scales;
    std::string scale_bytes;
    for (int64_t i = 0; i < ceil_div(rows_, block_rows) * across; ++i) {
      const bf16_t bits = fp32_to_bf16(std::uniform_real_distribution<float>(1e-4f, 1e-3f)(random_));
      scales.push_back(bf16_to_fp32(bits));
      scale_bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
    }
    std::string codes = bytes(static_cast<size_t>(rows_ * cols_), 0xff);
    for (char& code : codes) code = static_cast<char>((code & 0x7f) == 0x7f ? 0 : code);  // no NaN
    for (int64_t i = 0; i < rows_ * cols_; ++i) {
      const auto at = static_cast<size_t>(i / cols_ / block_rows * across + i % cols_ / block_cols);
      values_.push_back(fp8_e4m3_to_fp32(static_cast<uint8_t>(codes[static_cast<size_t>(i)])) * scales[at]);
    }
    quantized.tensors[name] = {"F8_E4M3", {rows_, cols_}, codes};
    if (other) {
      quantized.tensors[name + "_scale_inv"] = floats_of(shapes[1], scales);
    } else {
      quantized.tensors[name + "_scale"] = {"BF16", shapes[0], scale_bytes};
    }
  }

  HfTensor floats() const { return floats_of({rows_, cols_}, values_); }

 private:
  std::string bytes(size_t n, int most) {
    std::string out(n, '\0');
    for (char& c : out) c = static_cast<char>(std::uniform_int_distribution<int>(0, most)(random_));
    return out;
  }

  int64_t rows_, cols_;
  std::mt19937 random_;
  std::vector<float> values_;
};

}  // namespace

int quantize_matrices(const HfFolder& folder, HfQuantization quantization, unsigned seed, HfFolder& quantized, HfFolder& floats) {
  quantized = floats = folder;
  int n = 0;
  for (const auto& [name, tensor] : folder.tensors) {
    if (!is_product(name, tensor)) continue;
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    const std::string module = name.substr(0, name.rfind('.'));
    Matrix matrix(rows, cols, seed + static_cast<unsigned>(n++));
    for (HfFolder* out : {&quantized, &floats}) {
      out->tensors.erase(name);
      out->tensors.erase(name + "_scale_inv");
    }
    switch (quantization) {
      case HfQuantization::nvfp4_divided:
        matrix.nvfp4(name, true, quantized);
        quantized.tensors[module + ".input_global_scale"] = floats_of({1}, {7});
        break;
      case HfQuantization::nvfp4_multiplied:
        matrix.nvfp4(name, false, quantized);
        quantized.tensors[module + ".input_scale"] = floats_of({}, {7});
        if (name.ends_with("k_proj.weight")) quantized.tensors[module + ".k_scale"] = floats_of({}, {7});
        break;
      case HfQuantization::fp8_matrix: matrix.fp8(name, rows, cols, {{}, {1}}, quantized); break;
      case HfQuantization::fp8_rows: matrix.fp8(name, 1, cols, {{rows, 1}, {rows}}, quantized); break;
      case HfQuantization::fp8_blocks:
        matrix.fp8(name, kBlock, kBlock,
                   {{ceil_div(rows, kBlock), ceil_div(cols, kBlock)}, {ceil_div(rows, kBlock), 1, ceil_div(cols, kBlock), 1}}, quantized);
        break;
    }
    floats.tensors[name] = matrix.floats();
  }
  return n;
}

}  // namespace tandem::test
