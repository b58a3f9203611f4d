// Runs the kernels of every instruction set of this machine on arbitrary blocks and sizes: they must agree with the
// scalar ones.
//
// The first byte selects the instruction set, if there are several.
#include "fuzz/kernels_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const std::vector<cpu::Isa> isas = cpu::supported_isas();
  if (isas.size() == 1) return 0;  // the scalar ones alone
  fuzz::Input input(data, size);
  const cpu::Isa isa = isas[1 + input.byte() % (isas.size() - 1)];
  fuzz::KernelsCheck(cpu::kernels(isa), cpu::kernels(cpu::Isa::scalar)).run(input);
  return 0;
}
