#include "cpu/avx2/vec.h"  // first: the rest is written in its vectors

#include "cpu/avx2/attention_codes.h"
#include "cpu/simd/attention.h"
#include "cpu/simd/attention_code_heads.h"

namespace tandem::cpu::TANDEM_ISA {

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels table{kMaxQueries,
                                          scratch_bytes_with_codes,
                                          [](const AttentionCall& call, std::byte* scratch) {
                                            takes_codes(call) ? attend_codes(call, scratch)
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
}

bool takes(const AttentionCall& call) {
  return takes_codes(call);
}

}  // namespace tandem::cpu::TANDEM_ISA
