// For caches of half floats.
#include "ggml-cuda/attention_decode_kernels.cuh"

namespace tandem::cuda {

template AttentionKernel decode_kernel_of<ReadF16, ReadF16>(const AttentionCall&);
template AttentionKernel decode_kernel_of<ReadBF16, ReadBF16>(const AttentionCall&);

}  // namespace tandem::cuda
