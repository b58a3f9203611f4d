#include "cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"

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

// The compilers' builtin has no name for AMX in all the versions that build this.
bool has_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kAll) == kAll && system_saves_tiles();
}

// Tiles are 8 KB that every thread's saved state grows by, so Linux (from 5.16) gives them to processes that ask.
bool ask_linux_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_vnni: return "avx512_vnni";
    case Isa::avx512_vbmi: return "avx512_vbmi";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::avx512_amx: return "avx512_amx";
  }
  return "?";
}

std::optional<Isa> isa_from_name(std::string_view name) {
  for (Isa isa : kIsas) {
    if (isa_name(isa) == name) return isa;
  }
  return std::nullopt;
}

CpuFeatures cpu_features() {
  __builtin_cpu_init();
  CpuFeatures has;
  // Every CPU with AVX2 has F16C; this compiler's builtin has no name for it.
  has.avx2_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  has.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  has.avx512_vnni = __builtin_cpu_supports("avx512vnni");
  has.avx512_vbmi = __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni");
  has.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
  has.amx = has_amx();
  return has;
}

std::vector<Isa> isas_with(const CpuFeatures& features, bool (*ask_for_tiles)()) {
  std::vector<Isa> isas{Isa::scalar};
  if (!features.avx2_fma) return isas;
  isas.push_back(Isa::avx2);
  if (!features.avx512) return isas;
  isas.push_back(Isa::avx512);
  if (!features.avx512_vnni) return isas;
  isas.push_back(Isa::avx512_vnni);
  if (!features.avx512_vbmi) return isas;
  isas.push_back(Isa::avx512_vbmi);
  if (!features.avx512_bf16) return isas;
  isas.push_back(Isa::avx512_bf16);
  if (features.amx && ask_for_tiles()) isas.push_back(Isa::avx512_amx);
  return isas;
}

const std::vector<Isa>& supported_isas() {
  static const std::vector<Isa> isas = isas_with(cpu_features(), ask_linux_for_tiles);
  return isas;
}

Isa best_isa() {
  return supported_isas().back();
}

Isa supported_isa(std::string_view name, std::string_view prefix) {
  const std::vector<Isa>& supported = supported_isas();
  const std::optional<Isa> isa = isa_from_name(name);
  if (isa && std::find(supported.begin(), supported.end(), *isa) != supported.end()) return *isa;
  std::string names;
  for (Isa s : supported) names += (names.empty() ? "" : ", ") + std::string(isa_name(s));
  throw_error(ErrorCode::usage, "{}{} is no instruction set of this machine, which has {}", prefix,
              printable(name), names);
}

}  // namespace tandem::cpu
