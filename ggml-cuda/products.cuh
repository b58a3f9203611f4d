// What linear, glu and moe_ffn share: the encodings of an input, and one product of it with a weight, however many
// tokens there are. Which kernel does it depends on n and the dtype:
//
//   n <= 8       matvec.h: weights as fast as they can be read
//   more         quantized: matmul.h (integer tensor cores) up to kMaxMmaTokens, then the weight made bf16, panel by
//                panel, and cuBLAS; F16, BF16, F32: cuBLAS
//
// All functions only enqueue on the stream.
#pragma once

#include <algorithm>
#include <vector>

#include "ggml-cuda/matvec.h"
#include "ggml-cuda/step.h"

namespace tandem::cuda {

inline DeviceWeight device_weight(const CompileContext& context, TensorId id) {
  const Weight& w = *context.tensor(id).weight;
  return device_weight(w.dtype, context.address<std::byte>(id), w.n_rows, w.n_cols);
}

// For the why_not functions of ops: a matrix of a dtype that has kernels, a vector of floats.
std::string why_not_weight(const Graph& graph, TensorId id);
std::string why_not_bias(const Graph& graph, TensorId id);

// x [n, k] -> bytes. k is a multiple of 32, n at most 65535.
void quantize_activations(const float* x, int64_t n, int64_t k, const Activations& to, cudaStream_t stream);
// x [n] -> F16 (limited to its range) or BF16.
void narrow_activations(DType dtype, const float* x, int64_t n, void* to, cudaStream_t stream);

// Fills in first_block and n_slices, and launches; mode linear or glu, n <= 8.
void launch_matvec(MatvecArgs args, cudaStream_t stream);
// The same for the modes of experts; any n.
void launch_expert_matvec(MatvecArgs args, cudaStream_t stream);

// y = activation(gate) * up over n values; y may be gate or up.
void combine_glu(Activation activation, const float* gate, const float* up, float* y, int64_t n, cudaStream_t stream);

// Pieces of a step's scratch, handed out in order.
class ScratchLayout {
 public:
  size_t take(size_t n_bytes) {
    const size_t at = n_bytes_;
    n_bytes_ += static_cast<size_t>(align_256(static_cast<int64_t>(n_bytes)));
    return at;
  }
  size_t n_bytes() const { return n_bytes_; }

 private:
  size_t n_bytes_ = 0;
};

// An input x [n, k] and its encodings, made when a step asks for them, at most once each.
class StepInput {
 public:
  // Takes room for what products with weights of these dtypes may need, with up to max_n tokens.
  StepInput(const float* x, int64_t k, int64_t max_n, std::vector<DType> dtypes, ScratchLayout& scratch);

  // Encodes for products of n tokens.
  void prepare(int64_t n, std::byte* scratch, cudaStream_t stream) const;

  ProductInput product_input(std::byte* scratch) const { return {x_, encoded(scratch)}; }
  const void* narrowed(DType dtype, std::byte* scratch) const {
    return scratch + (dtype == DType::F16 ? f16_at_ : bf16_at_);
  }
  int64_t k() const { return k_; }

 private:
  Activations encoded(std::byte* scratch) const { return activations_at(scratch + encoded_at_, max_n_, k_); }

  const float* x_;
  int64_t k_, max_n_;
  bool quantized_ = false, f16_ = false, bf16_ = false;  // dtypes among the weights
  size_t encoded_at_ = 0, bf16_at_ = 0, f16_at_ = 0;
};

// Products of more than 8 tokens. One for a step: its room serves one product after the other.
class LargeProducts {
 public:
  LargeProducts(const CompileContext& context, int64_t max_n, const std::vector<DeviceWeight>& weights,
                ScratchLayout& scratch);

  // y [n, m] = x W^T + bias + residual; residual may be y.
  void multiply(const MatvecTarget& target, const StepInput& input, int64_t n, std::byte* scratch,
                cudaStream_t stream) const;

 private:
  void multiply_by_cublas(const MatvecTarget& target, const StepInput& input, int64_t n, std::byte* scratch,
                          cudaStream_t stream) const;

  cublasHandle_t cublas_ = nullptr;
  size_t workspace_at_ = 0, panel_at_ = 0, panel_bytes_ = 0;
};

// From here on the tensor cores take over from dp4a, and from kMaxMmaTokens on cuBLAS with bf16 panels from the
// integer kernel, where the panels' making (2.6 bytes moved a weight, 3 us a million at 3 TB/s... a twelfth of the
// product at 512 tokens) costs less than the scales of integer blocks do.
inline constexpr int64_t kMaxMmaTokens = 256;

}  // namespace tandem::cuda
