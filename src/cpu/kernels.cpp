#include "cpu/kernels.h"

#include <iterator>
#include <vector>

#include "base/error.h"
#include "cpu/attention_with.h"
#include "cpu/linear_choice.h"
#include "cpu/linear_generic.h"

namespace tandem::cpu {
namespace {

// AVX2 has kernels for the dtypes that AVX-512 has none for; VBMI has only those that it makes faster.
const LinearKernels& vnni_linear() {
  static const LinearKernels table = WithGenericPath<avx512_vnni::linear_kernels, avx2::linear_kernels>::table();
  return table;
}

bool any_number(DType, int64_t) {
  return true;
}
const LinearKernels& vbmi_linear() {
  static const LinearKernels table = WithKernelsFor<avx512_vbmi::linear_kernels, any_number, vnni_linear>::table();
  return table;
}

// Of AMX, for fewer tokens than its products in bf16.
const LinearKernels& amx_byte_linear() {
  static const LinearKernels table =
      WithKernelsFor<avx512_amx::byte_linear_kernels, avx512_amx::takes_bytes, vbmi_linear>::table();
  return table;
}

// AVX2 has integer products for caches of more dtypes than VNNI, and AVX-512 alone has none; it converts two of them fast enough
// for many queries.
bool faster_than_vnni(const AttentionCall& call) {
  return avx2::takes(call) && !avx512_vnni::takes(call);
}
bool faster_than_avx512(const AttentionCall& call) {
  return avx2::takes(call) && (call.n_queries <= 4 || !avx512_vnni::takes(call));
}
const AttentionKernels& vnni_attention() {
  static const AttentionKernels table =
      AttentionWith<avx2::attention_kernels, faster_than_vnni, avx512_vnni::attention_kernels>::table();
  return table;
}

}  // namespace

Kernels kernels_for(Isa isa, const CpuFeatures& features) {
  switch (isa) {
    case Isa::scalar:
      return {isa, WithGenericPath<scalar::linear_kernels>::table(), scalar::attention_kernels(),
              scalar::row_kernels(), scalar::sparse_kernels()};
    case Isa::avx2:
      return {isa, WithGenericPath<avx2::linear_kernels>::table(), avx2::attention_kernels(),
              avx2::row_kernels(), avx2::sparse_kernels()};
    case Isa::avx_vnni:
      return {isa, WithGenericPath<avx_vnni::linear_kernels>::table(), avx_vnni::attention_kernels(),
              avx2::row_kernels(), avx2::sparse_kernels()};
    case Isa::avx512:
      return {isa, WithGenericPath<avx512::linear_kernels, avx2::linear_kernels>::table(),
              AttentionWith<avx2::attention_kernels, faster_than_avx512, avx512::attention_kernels>::table(),
              avx512::row_kernels(), avx512::sparse_kernels()};
    case Isa::avx512_vnni:
      return {isa, vnni_linear(), vnni_attention(), avx512_vnni::row_kernels(),
              avx512_vnni::sparse_kernels()};
    case Isa::avx512_vbmi:
      return {isa, vbmi_linear(), vnni_attention(), avx512_vnni::row_kernels(),
              avx512_vnni::sparse_kernels()};
    case Isa::avx512_bf16:  // Cooper Lake has no VBMI
      return {isa, features.avx512_vbmi ? vbmi_linear() : vnni_linear(),
              AttentionWith<avx512_bf16::attention_kernels, avx512_bf16::takes, vnni_attention>::table(),
              avx512_vnni::row_kernels(), avx512_vnni::sparse_kernels()};
    case Isa::avx512_amx:
      return {isa,
              WithKernelsFor<avx512_amx::linear_kernels, avx512_amx::takes, amx_byte_linear>::table(),
              AttentionWith<avx512_amx::attention_kernels, avx512_amx::takes, vnni_attention>::table(),
              avx512_vnni::row_kernels(), avx512_vnni::sparse_kernels()};
  }
  TANDEM_CHECK(!"no instruction set");
  return {};
}

const Kernels& kernels(Isa isa) {
  static const std::vector<Kernels> tables = [] {
    std::vector<Kernels> all;
    for (const Isa each : kIsas) all.push_back(kernels_for(each, cpu_features()));
    return all;
  }();
  return tables[static_cast<size_t>(isa)];
}

}  // namespace tandem::cpu
