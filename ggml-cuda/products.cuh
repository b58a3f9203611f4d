// Shared by linear, glu and moe_ffn: the encodings of an input, and its product with a weight for any number
// of tokens. The kernel depends on n and the dtype:
//
//   n <= 8    matvec.h: weights as fast as they can be read
//   more      quantized: matmul.h (integer tensor cores) up to some number of tokens, then wgmma.h where has_wgmma(), otherwise
//             the weight converted to bf16 panel by panel, and cuBLAS; F16, BF16, F32: cuBLAS; dtypes without kernels of their own
//             (dtypes.h): the weight converted to F32 panel by panel, and cuBLAS
//
// Without cuBLAS quantized weights take matmul.h for any number of tokens, and the others matvec.h eight tokens at a
// time, which reads them again and again.
//
// All functions only enqueue on the stream.
#pragma once

#include <algorithm>
#include <vector>

#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/handed_bytes.h"
#include "ggml-cuda/matmul.h"
#include "ggml-cuda/matvec.h"
#include "ggml-cuda/wgmma.h"

namespace tandem::cuda {

inline DeviceWeight device_weight(const CompileContext& context, TensorId id) {
  const Weight& w = *context.tensor(id).weight;
  return device_weight(w.dtype, context.address<std::byte>(id), w.n_rows, w.n_cols);
}

// For the why_not functions of ops: a matrix of a dtype that has kernels, a vector of floats.
std::string why_not_weight(const Graph& graph, TensorId id);
std::string why_not_bias(const Graph& graph, TensorId id);

// x [n, k] -> bytes; k is a multiple of 32, or of 256.
void quantize_activations(Encoding encoding, const float* x, int64_t n, int64_t k, const Activations& to,
                          cudaStream_t stream);
// x [n] -> F16 (limited to its range) or BF16; n is a multiple of 16 for the order of fragments.
void narrow_activations(NarrowForm form, const float* x, int64_t n, void* to, cudaStream_t stream);

// All matrices of a weight as F16 (limited to its range) or BF16: values [n_mats * m, k].
void narrow_weight(const DeviceWeight& w, int64_t n_mats, DType to, uint16_t* values, cudaStream_t stream);

// Fills in first_block and slice_bits, and launches; mode linear or glu, n <= 8.
void launch_matvec(const MatvecArgs& args, const Gpu& gpu, cudaStream_t stream);
// The same for the modes of experts; any n.
void launch_expert_matvec(MatvecArgs args, const Gpu& gpu, cudaStream_t stream);

// y = activation(gate) * up over n values; y may be gate or up.
void combine_glu(Activation activation, const float* gate, const float* up, float* y, int64_t n,
                 cudaStream_t stream);
// Results that go to the op behind as 16-bit floats, of F16 or BF16; `values` null: as floats alone.
struct NarrowTo {
  uint16_t* values = nullptr;
  NarrowForm form;
  bool and_floats = true;
};
// The same with 16-bit floats; n is a multiple of 4, and of 16 for the order of fragments.
void combine_glu(Activation activation, const float* gate, const float* up, float* y, const NarrowTo& to,
                 int64_t n, cudaStream_t stream);

// Hands out pieces of an op's scratch in order.
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

// Space for the byte encodings of an input x [n, k].
class InputEncodings {
 public:
  // The encodings that weights of these dtypes read, for up to max_n tokens.
  InputEncodings(int64_t k, int64_t max_n, const std::vector<DType>& dtypes, ScratchLayout& scratch);

  // Encodes the input. The result is valid until the next encode here.
  ProductInput encode(const float* x, int64_t n, std::byte* scratch, cudaStream_t stream) const;
  // The same, of bytes that the op before has made, where it has.
  ProductInput encode(const float* x, int64_t n, const HandedBytes& handed,
                      const LaunchContext& context) const;
  int64_t k() const { return k_; }
  // What an op before would have to make of tensor x.
  BytesReader reader(TensorId x) const;

 private:
  int64_t k_, max_n_;
  bool wanted_[kEncodings] = {};
  size_t at_[kEncodings] = {};
};

// The products of matmul.h, n > 0. Partial sums take matmul_scratch_bytes, the most for any n up to max_n.
size_t matmul_scratch_bytes(const DeviceWeight& w, int64_t max_n, const Gpu& gpu);
void launch_matmul(MatmulArgs args, std::byte* scratch, const Gpu& gpu, cudaStream_t stream);
// Tiles of tile_tokens (32 or 64) tokens, max_tiles or fewer of them, as the device has them in args.tiles.
void launch_grouped_matmul(const MatmulArgs& args, int tile_tokens, int max_tiles, const Gpu& gpu,
                           cudaStream_t stream);

// Products of more than 8 tokens with an op's weights, which all read one input. They use its scratch one
// after the other.
class LargeProducts {
 public:
  enum class Use { products, gate_and_up };  // the second calls multiply_gated
  LargeProducts(const CompileContext& context, int64_t k, int64_t max_n,
                const std::vector<DeviceWeight>& weights, Use use, ScratchLayout& scratch);

  const Gpu& gpu() const { return gpu_; }

  // An input of n tokens in every form that the weights need.
  struct Input {
    int64_t n;
    ProductInput encoded;
    const void* f16;   // [n, k], where a weight is F16
    const void* bf16;  // [n, k], where a weight is, or is made, BF16; for wgmma.h in the order of fragments
  };
  Input prepare(const InputEncodings& encodings, const float* x, int64_t n, const LaunchContext& context,
                const HandedBytes& handed = {}) const;
  // What an op before may make of the input instead of floats.
  void ask_for_narrow(HandedBytes& handed, int64_t max_n) const;
  // In steps of more tokens multiply_gated ends with what can make 16-bit floats.
  int64_t few_of_gate(const MatvecTarget& target) const {
    return has_planes(target.w.dtype) ? std::max<int64_t>(kMaxMatvecTokens, max_mma_tokens_)
                                      : kMaxMatvecTokens;
  }
  // y [n, m] = x W^T + bias + residual; residual may be y.
  void multiply(std::span<const MatvecTarget> targets, const Input& input,
                const LaunchContext& context) const;
  // The gate's y = activation(x Wgate^T + bias) * (x Wup^T + bias); the up matrix's y is not used.
  void multiply_gated(Activation activation, const MatvecTarget& gate, const MatvecTarget& up,
                      const Input& input, const LaunchContext& context, const NarrowTo& to = {}) const;

 private:
  // Decides by the numbers of tokens, and by what the GPU and the libraries are.
  void choose_kernels(int64_t max_n, const std::vector<DeviceWeight>& weights);
  bool by_mma(DType dtype, int64_t n) const { return has_planes(dtype) && n <= max_mma_tokens_; }
  static bool is_one_launch(const DeviceWeight& gate, const DeviceWeight& up);  // of wgmma.h
  void multiply_by_wgmma(std::span<const MatvecTarget> targets, const Input& input,
                         const LaunchContext& context) const;
  void multiply_by_mma(MatmulStore store, Activation activation, const MatvecTarget& target,
                       const Input& input, const LaunchContext& context) const;
  int64_t rows_at_once(const DeviceWeight& w) const;
  void multiply_by_cublas(const MatvecTarget& target, const Input& input, const LaunchContext& context) const;
  void multiply_in_steps(const MatvecTarget& target, const Input& input, const LaunchContext& context) const;

  Gpu gpu_;
  int64_t k_, max_mma_tokens_;
  bool by_wgmma_ = false, by_cublas_ = false;                                      // what is not by mma
  bool any_quantized_ = false, f16_ = false, bf16_ = false, bf16_panels_ = false;  // among the weights
  bool reads_floats_ = false;                                                      // some weight's product
  cublasHandle_t cublas_ = nullptr;
  size_t partial_at_ = 0, f16_at_ = 0, bf16_at_ = 0, panel_at_ = 0, panel_bytes_ = 0, other_at_ = 0,
         workspace_at_ = 0;
};

}  // namespace tandem::cuda
