#include "cpu/avx512/vec.h"  // first: the rest is written in its vectors

#include "cpu/simd/attention.h"
#ifdef __AVX512VNNI__
#include "cpu/avx512/attention_kivi.h"
#include "cpu/simd/attention_code_heads.h"
#endif

namespace tandem::cpu::TANDEM_ISA {

const AttentionKernels& attention_kernels() {
#ifdef __AVX512VNNI__
  static constexpr AttentionKernels table{kMaxQueries,
                                          scratch_bytes_with_kivi,
                                          [](const AttentionCall& call, std::byte* scratch) {
                                            takes_kivi(call)    ? attend_kivi(call, scratch)
                                            : takes_codes(call) ? attend_codes(call, scratch)
                                                                : attend(call, scratch);
                                          },
                                          store_row,
                                          [](const AttentionCall& call) {
                                            return takes_heads(call) || takes_code_heads(call);
                                          },
                                          [](const AttentionCall* calls, int64_t n, std::byte* scratch) {
                                            takes_codes(calls[0]) ? attend_code_heads(calls, n, scratch)
                                                                  : attend_heads(calls, n, scratch);
                                          }};
  return table;
#else
  return kAttentionKernels;
#endif
}

#ifdef __AVX512VNNI__
bool takes(const AttentionCall& call) {
  return takes_codes(call);
}
#endif

}  // namespace tandem::cpu::TANDEM_ISA
