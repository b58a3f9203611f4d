// The instruction sets that have CPU kernels. The device picks one when it is created.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace tandem::cpu {

// avx512 needs F, BW, DQ, VL; avx512_vnni also needs VNNI and BF16. Each includes the ones before it.
enum class Isa { scalar, avx2, avx512, avx512_vnni };

std::string_view isa_name(Isa isa);  // "scalar", "avx2", "avx512", "avx512_vnni"
std::optional<Isa> isa_from_name(std::string_view name);
std::vector<Isa> supported_isas();  // by this machine, ascending; never empty
Isa best_isa();

}  // namespace tandem::cpu
