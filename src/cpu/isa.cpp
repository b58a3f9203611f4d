#include "cpu/isa.h"

namespace tandem::cpu {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_vnni: return "avx512_vnni";
  }
  return "?";
}

std::optional<Isa> isa_from_name(std::string_view name) {
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_vnni}) {
    if (isa_name(isa) == name) return isa;
  }
  return std::nullopt;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas{Isa::scalar};
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return isas;
  // Every CPU with AVX2 has F16C; this compiler's builtin has no name for it.
  isas.push_back(Isa::avx2);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return isas;
  }
  isas.push_back(Isa::avx512);
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
    isas.push_back(Isa::avx512_vnni);
  return isas;
}

Isa best_isa() {
  return supported_isas().back();
}

}  // namespace tandem::cpu
