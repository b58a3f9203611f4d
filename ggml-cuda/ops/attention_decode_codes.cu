// For caches in blocks of codes.
#include "ggml-cuda/attention_decode_kernels.cuh"

namespace tandem::cuda {

template AttentionKernel decode_kernel_of<ReadQ8_0, ReadQ8_0>(const AttentionCall&);
template AttentionKernel decode_kernel_of<ReadQ4_0, ReadQ4_0>(const AttentionCall&);

}  // namespace tandem::cuda
