// The choice of instruction set: names, the sets of this machine, and separate kernels in each table.
#include "cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "cpu/kernels.h"

namespace tandem::cpu {
namespace {

TEST(Isa, NamesRoundTrip) {
  for (Isa isa : kIsas) EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  for (std::string_view name : {"", "?", "AVX2", "avx", "avxvnni", "avx512 ", "neon"}) {
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

constexpr CpuFeatures kSapphireRapids{true, true, true, true, true, true, true};

bool granted() {
  return true;
}
bool refused() {
  return false;
}
bool not_asked() {
  ADD_FAILURE() << "tiles asked for on a machine that lacks something else";
  return true;
}

TEST(Isa, AMachineListsWhatItHasEverythingFor) {
  using Isas = std::vector<Isa>;
  EXPECT_EQ(isas_with({}, not_asked), Isas{Isa::scalar});
  EXPECT_EQ(isas_with(kSapphireRapids, granted), Isas(std::begin(kIsas), std::end(kIsas)));
  CpuFeatures has = kSapphireRapids;
  has.amx = false;
  EXPECT_EQ(isas_with(has, not_asked).back(), Isa::avx512_bf16);  // Zen 5
  has.avx_vnni = false;                                           // Zen 4
  EXPECT_EQ(isas_with(has, not_asked), (Isas{Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_vnni,
                                             Isa::avx512_vbmi, Isa::avx512_bf16}));
  has.avx512_vbmi = false;  // Cooper Lake
  EXPECT_EQ(isas_with(has, not_asked),
            (Isas{Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16}));
  has = {.avx2_fma = true, .avx_vnni = true};  // Alder Lake
  EXPECT_EQ(isas_with(has, not_asked), (Isas{Isa::scalar, Isa::avx2, Isa::avx_vnni}));
  has = kSapphireRapids;
  has.avx512_bf16 = false;
  EXPECT_EQ(isas_with(has, not_asked).back(), Isa::avx512_vbmi);
  has.amx = false;  // Ice Lake
  EXPECT_EQ(isas_with(has, not_asked).back(), Isa::avx512_vbmi);
  has.avx512_vbmi = false;  // Cascade Lake
  EXPECT_EQ(isas_with(has, not_asked).back(), Isa::avx512_vnni);
  has = kSapphireRapids;
  has.avx512_vnni = false;
  EXPECT_EQ(isas_with(has, not_asked).back(), Isa::avx512);
  has.avx512 = false;
  EXPECT_EQ(isas_with(has, not_asked).back(), Isa::avx_vnni);
  has.avx_vnni = false;
  EXPECT_EQ(isas_with(has, not_asked).back(), Isa::avx2);
  has.avx2_fma = false;
  EXPECT_EQ(isas_with(has, not_asked), Isas{Isa::scalar});
}

// Its products must not need VBMI where the machine has none.
TEST(Isa, AttentionInBf16HasTheProductsOfTheMachine) {
  CpuFeatures cooper_lake = kSapphireRapids;
  cooper_lake.avx512_vbmi = cooper_lake.amx = false;
  const auto products = [](Isa isa, const CpuFeatures& features) {
    return kernels_for(isa, features).linear.multiply;
  };
  EXPECT_EQ(products(Isa::avx512_bf16, cooper_lake), products(Isa::avx512_vnni, cooper_lake));
  EXPECT_EQ(products(Isa::avx512_bf16, kSapphireRapids), products(Isa::avx512_vbmi, kSapphireRapids));
  EXPECT_NE(products(Isa::avx512_vbmi, kSapphireRapids), products(Isa::avx512_vnni, kSapphireRapids));
}

TEST(Isa, WithoutTheSystemsPermissionThereIsNoAmx) {
  EXPECT_EQ(isas_with(kSapphireRapids, refused).back(), Isa::avx512_bf16);
}

std::string refusal(std::string_view name) {
  try {
    supported_isa(name, "TANDEM_ISA: ");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.what();
  }
  return "accepted";
}

TEST(Isa, AnUnsupportedNameIsRefusedWithTheSupportedOnes) {
  std::string names;
  for (Isa isa : supported_isas()) names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  const std::string reason = " is no instruction set of this machine, which has " + names;
  EXPECT_EQ(refusal("avx1024"), "TANDEM_ISA: avx1024" + reason);
  for (Isa isa : kIsas) {
    const bool supported = std::count(supported_isas().begin(), supported_isas().end(), isa) == 1;
    const std::string name(isa_name(isa));
    EXPECT_EQ(refusal(name), supported ? "accepted" : "TANDEM_ISA: " + name + reason);
  }
}

// A kernel shared by two tables was compiled for one instruction set and may crash on a machine with only the
// other. As on a CPU that has them all: what this one has decides where avx512_bf16 takes its products from.
TEST(Isa, TablesShareNoKernels) {
  for (Isa a : kIsas) {
    EXPECT_EQ(kernels(a).isa, a);
    for (Isa b : kIsas) {
      if (a == b) continue;
      const Kernels ka = kernels_for(a, kSapphireRapids), kb = kernels_for(b, kSapphireRapids);
      if (std::max(a, b) == Isa::avx512_bf16 && std::min(a, b) == Isa::avx512_vbmi) {
        EXPECT_NE(ka.attention.attend, kb.attention.attend);  // the one thing that it brings
        continue;
      }
      EXPECT_NE(ka.linear.encode, kb.linear.encode) << isa_name(a) << " and " << isa_name(b);
      EXPECT_NE(ka.linear.multiply, kb.linear.multiply) << isa_name(a) << " and " << isa_name(b);
      if (std::min(a, b) >= Isa::avx512_vnni) continue;  // those above have no other row kernels
      if (std::min(a, b) == Isa::avx2 && std::max(a, b) == Isa::avx_vnni) continue;
      EXPECT_NE(ka.rows.rms_norm, kb.rows.rms_norm) << isa_name(a) << " and " << isa_name(b);
      EXPECT_NE(ka.rows.dequantize, kb.rows.dequantize) << isa_name(a) << " and " << isa_name(b);
      EXPECT_NE(ka.attention.attend, kb.attention.attend) << isa_name(a) << " and " << isa_name(b);
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
