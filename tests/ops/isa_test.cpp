// The choice of instruction set: names, the sets of this machine, and separate kernels in each table.
#include "cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/kernels.h"

namespace tandem::cpu {
namespace {

TEST(Isa, NamesRoundTrip) {
  for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_vnni})
    EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  for (std::string_view name : {"", "?", "AVX2", "avx", "avx512 ", "neon"}) {
    EXPECT_EQ(isa_from_name(name), std::nullopt) << name;
  }
}

TEST(Isa, SupportedOnesStartAtScalarAndAscendToTheBest) {
  const std::vector<Isa> isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::scalar);
  EXPECT_EQ(std::adjacent_find(isas.begin(), isas.end(), std::greater_equal<>()), isas.end());
  EXPECT_EQ(best_isa(), isas.back());
}

// A kernel shared by two tables was compiled for one instruction set and may crash on a machine with only the
// other.
TEST(Isa, TablesShareNoKernels) {
  const Isa isas[] = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_vnni};
  for (Isa a : isas) {
    EXPECT_EQ(kernels(a).isa, a);
    for (Isa b : isas) {
      if (a == b) continue;
      const Kernels &ka = kernels(a), &kb = kernels(b);
      EXPECT_NE(ka.linear.encode, kb.linear.encode) << isa_name(a) << " and " << isa_name(b);
      EXPECT_NE(ka.linear.multiply, kb.linear.multiply) << isa_name(a) << " and " << isa_name(b);
      EXPECT_NE(ka.rows.rms_norm, kb.rows.rms_norm) << isa_name(a) << " and " << isa_name(b);
      EXPECT_NE(ka.rows.dequantize, kb.rows.dequantize) << isa_name(a) << " and " << isa_name(b);
      EXPECT_NE(ka.attention.attend, kb.attention.attend) << isa_name(a) << " and " << isa_name(b);
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
