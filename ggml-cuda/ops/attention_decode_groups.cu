// For caches in groups of tokens, and all others.
#include "ggml-cuda/attention_decode_kernels.cuh"

namespace tandem::cuda {

template AttentionKernel decode_kernel_of<ReadKiviKeys<4>, ReadKiviValues<4>>(const AttentionCall&);
template AttentionKernel decode_kernel_of<ReadKiviKeys<2>, ReadKiviValues<2>>(const AttentionCall&);
template AttentionKernel decode_kernel_of<ReadAny, ReadAny>(const AttentionCall&);

}  // namespace tandem::cuda
