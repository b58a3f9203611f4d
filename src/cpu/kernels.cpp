#include "cpu/kernels.h"

#include "cpu/linear_generic.h"

namespace tandem::cpu {

const Kernels& kernels(Isa isa) {
#define TANDEM_KERNELS(name)                                                              \
  {                                                                                       \
    Isa::name, WithGenericPath<name::linear_kernels>::table(), name::attention_kernels(), \
        name::row_kernels()                                                               \
  }
  static const Kernels table[] = {TANDEM_KERNELS(scalar), TANDEM_KERNELS(avx2), TANDEM_KERNELS(avx512),
                                  TANDEM_KERNELS(avx512_vnni)};
#undef TANDEM_KERNELS
  return table[static_cast<int>(isa)];
}

}  // namespace tandem::cpu
