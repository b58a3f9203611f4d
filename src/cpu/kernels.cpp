#include "cpu/kernels.h"

#include "cpu/attention_large.h"
#include "cpu/linear_large.h"

namespace tandem::cpu {
namespace {

const LinearKernels& vbmi_linear() {
  static const LinearKernels table = WithGenericPath<avx512_vnni::linear_kernels, avx512_vbmi::linear_kernels,
                                                     avx2::linear_kernels>::table();
  return table;
}

}  // namespace

const Kernels& kernels(Isa isa) {
  // AVX2 has kernels for more dtypes than AVX-512; VBMI has only those that it makes faster.
  static const Kernels table[] = {
      {Isa::scalar, WithGenericPath<scalar::linear_kernels>::table(), scalar::attention_kernels(),
       scalar::row_kernels()},
      {Isa::avx2, WithGenericPath<avx2::linear_kernels>::table(), avx2::attention_kernels(),
       avx2::row_kernels()},
      {Isa::avx512, WithGenericPath<avx512::linear_kernels, avx2::linear_kernels>::table(),
       avx512::attention_kernels(), avx512::row_kernels()},
      {Isa::avx512_vnni, WithGenericPath<avx512_vnni::linear_kernels, avx2::linear_kernels>::table(),
       avx512_vnni::attention_kernels(), avx512_vnni::row_kernels()},
      {Isa::avx512_vbmi, vbmi_linear(), avx512_vnni::attention_kernels(), avx512_vnni::row_kernels()},
      {Isa::avx512_bf16, vbmi_linear(),
       WithLargeTiles<avx512_bf16::attention_kernels, avx512_bf16::takes,
                      avx512_vnni::attention_kernels>::table(),
       avx512_vnni::row_kernels()},
      {Isa::avx512_amx,
       WithLargeBatches<avx512_amx::linear_kernels, avx512_amx::least_tokens, vbmi_linear>::table(),
       WithLargeTiles<avx512_amx::attention_kernels, avx512_amx::takes,
                      avx512_vnni::attention_kernels>::table(),
       avx512_vnni::row_kernels()}};
  return table[static_cast<int>(isa)];
}

}  // namespace tandem::cpu
