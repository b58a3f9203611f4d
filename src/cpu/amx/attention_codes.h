// Attention of few queries (decode) over a cache of codes in tiles of bytes (see attention_codes.cpp), for calls that
// takes_code_tiles() of attention_kernels.h accepts.
#pragma once

#include "cpu/attention_kernels.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

size_t code_tiles_scratch_bytes(const AttentionCall& call);
void attend_code_tiles(const AttentionCall& call, std::byte* scratch);
// AttentionKernels::takes_heads() and attend_heads().
bool takes_code_tile_heads(const AttentionCall& call);
void attend_code_tile_heads(const AttentionCall* calls, int64_t n, std::byte* scratch);

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
