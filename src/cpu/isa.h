// The instruction sets that have CPU kernels. The device picks one when it is created.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::cpu {

// From slow to fast, where a machine has several. What each needs:
//   avx2         AVX2, FMA and F16C
//   avx_vnni     avx2 and AVX-VNNI (Alder Lake and later)
//   avx512       avx2 and AVX-512 F, BW, DQ, VL
//   avx512_vnni  avx512 and VNNI
//   avx512_vbmi  avx512_vnni, VBMI and GFNI
//   avx512_bf16  avx512_vnni and BF16 (with products from VBMI where the machine has it)
//   avx512_amx   avx512_vbmi, avx512_bf16 and the AMX tiles with their bf16 and int8 products
enum class Isa { scalar, avx2, avx_vnni, avx512, avx512_vnni, avx512_vbmi, avx512_bf16, avx512_amx };
inline constexpr Isa kIsas[] = {Isa::scalar,      Isa::avx2,        Isa::avx_vnni,    Isa::avx512,
                                Isa::avx512_vnni, Isa::avx512_vbmi, Isa::avx512_bf16, Isa::avx512_amx};

std::string_view isa_name(Isa isa);  // as above: "scalar", "avx2", ...
std::optional<Isa> isa_from_name(std::string_view name);

// What a machine has: CPU and operating system.
struct CpuFeatures {
  bool avx2_fma = false;
  bool avx_vnni = false;
  bool avx512 = false;  // F, BW, DQ, VL
  bool avx512_vnni = false;
  bool avx512_vbmi = false;  // VBMI and GFNI
  bool avx512_bf16 = false;
  bool amx = false;  // tiles, bf16, int8; the system saves tiles, but a process has to ask for them
};
CpuFeatures cpu_features();  // of this machine

// The instruction sets that a machine with these features can run, ascending. `ask_for_tiles` is called once if all
// else is there for AMX; false: the system refuses.
std::vector<Isa> isas_with(const CpuFeatures& features, bool (*ask_for_tiles)());

// Those of this machine, ascending; never empty. The first call asks the system to let this process use AMX tiles.
// The permission holds for all its threads.
const std::vector<Isa>& supported_isas();
Isa best_isa();

// The instruction set of this name. Throws Error(usage) that lists those of this machine if it is none of them; `prefix`
// says where the name comes from.
Isa supported_isa(std::string_view name, std::string_view prefix = "");

}  // namespace tandem::cpu
