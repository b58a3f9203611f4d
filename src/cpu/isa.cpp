#include "cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "base/error.h"
#include "cpu/linear_kernels.h"

namespace tandem::cpu {
namespace {

// Tiles are 8 KB that every thread's saved state grows by, so Linux (from 5.16) gives them to processes that ask.
bool ask_linux_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// A Zen 4; a Zen 3, of the same family, has no AVX-512.
std::atomic<bool>& narrow() {
  static std::atomic<bool> is_narrow{__builtin_cpu_is("amdfam19h") != 0};
  return is_narrow;
}

std::atomic<bool>& streams() {
  static std::atomic<bool> reads{__builtin_cpu_is("intel") != 0};
  return reads;
}

}  // namespace

bool narrow_avx512() {
  return narrow();
}
void set_narrow_avx512(bool is_narrow) {
  narrow() = is_narrow;
}
bool reads_in_streams() {
  return streams();
}
void set_reads_in_streams(bool reads) {
  streams() = reads;
}

size_t near_cache_bytes() {
  static const size_t n_bytes = [] {
    const long known = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    return known > 0 ? static_cast<size_t>(known) : size_t{32} << 10;
  }();
  return n_bytes;
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avx_vnni: return "avx_vnni";
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

std::vector<Isa> isas_with(const CpuFeatures& features, bool (*ask_for_tiles)()) {
  std::vector<Isa> isas{Isa::scalar};
  if (!features.avx2_fma) return isas;
  isas.push_back(Isa::avx2);
  if (features.avx_vnni) isas.push_back(Isa::avx_vnni);
  if (!features.avx512) return isas;
  isas.push_back(Isa::avx512);
  if (!features.avx512_vnni) return isas;
  isas.push_back(Isa::avx512_vnni);
  if (features.avx512_vbmi) isas.push_back(Isa::avx512_vbmi);
  if (features.avx512_bf16) isas.push_back(Isa::avx512_bf16);
  const bool has_all = features.avx512_vbmi && features.avx512_bf16 && features.amx;
  if (has_all && ask_for_tiles()) isas.push_back(Isa::avx512_amx);
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
