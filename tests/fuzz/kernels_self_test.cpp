// Compares the scalar kernels with a copy of them in which one is wrong: the comparison must find that. For the test of
// kernels_fuzz, on the same inputs.
#include "fuzz/kernels_check.h"

namespace tandem {
namespace {

// Wrong by a little in the last row, for one dtype alone.
void multiply(const cpu::LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  cpu::kernels(cpu::Isa::scalar).linear.multiply(call, row0, row1, scratch);
  if (call.dtype == DType::Q6_K && row1 == call.m) call.y[row1 - 1] *= 1.01f;
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const cpu::Kernels wrong = [] {
    cpu::Kernels kernels = cpu::kernels(cpu::Isa::scalar);
    kernels.linear.multiply = multiply;
    return kernels;
  }();
  fuzz::Input input(data, size);
  input.byte();  // kernels_fuzz chooses the instruction set by it
  fuzz::KernelsCheck(wrong, cpu::kernels(cpu::Isa::scalar)).run(input);
  return 0;
}
