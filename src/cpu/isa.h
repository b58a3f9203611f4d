// The instruction sets that the CPU kernels are written for. Chosen once, when the device is made.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace tandem::cpu {

// avx512 needs F, BW, DQ, VL; avx512_vnni needs VNNI and BF16 on top. Each contains the ones before it.
enum class Isa { scalar, avx2, avx512, avx512_vnni };

std::string_view isa_name(Isa isa);  // "scalar", "avx2", "avx512", "avx512_vnni"
std::optional<Isa> isa_from_name(std::string_view name);
std::vector<Isa> supported_isas();  // by this machine, ascending; never empty
Isa best_isa();

}  // namespace tandem::cpu
