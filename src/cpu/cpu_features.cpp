// What this machine has, asked of the CPU and of what the system saves of it.
#include <cpuid.h>

#include "cpu/isa.h"

namespace tandem::cpu {
namespace {

// Bits of XCR0: the state that the system saves when it switches threads.
constexpr uint32_t kTileState = 3u << 17;  // configuration and data

bool system_saves_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kOsxsave = 1u << 27;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & kOsxsave) == 0) return false;
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

// The compilers' builtin has no name for AMX and AVX-VNNI in all the versions that build this.
bool has_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kAll) == kAll && system_saves_tiles();
}

bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAvxVnni = 1u << 4;
  // A CPU without the leaf 7.1 answers zeros or says in 7.0 that there is none.
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || eax < 1) return false;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & kAvxVnni) != 0;
}

}  // namespace

CpuFeatures cpu_features() {
  __builtin_cpu_init();
  CpuFeatures has;
  // Every CPU with AVX2 has F16C; this compiler's builtin has no name for it.
  has.avx2_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  has.avx_vnni = has_avx_vnni();
  has.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  has.avx512_vnni = __builtin_cpu_supports("avx512vnni");
  has.avx512_vbmi = __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni");
  has.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
  has.amx = has_amx();
  return has;
}

}  // namespace tandem::cpu
