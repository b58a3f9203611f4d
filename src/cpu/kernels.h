// The kernels of one instruction set, as tables of functions: one generic interface, one implementation a
// folder (scalar/, avx2/, avx512/; the last is compiled twice, without and with VNNI and BF16). The scalar
// ones are the reference that the others are tested against. Weights of a dtype that a folder has no products
// for go the generic way (linear_generic.h). Kernels do not allocate, do not throw and know
// nothing of threads: ops/ divides the work.
#pragma once

#include "cpu/attention_kernels.h"
#include "cpu/isa.h"
#include "cpu/linear_kernels.h"
#include "cpu/row_kernels.h"

namespace tandem::cpu {

struct Kernels {
  Isa isa;
  LinearKernels linear;
  AttentionKernels attention;
  RowKernels rows;
};

const Kernels& kernels(Isa isa);  // isa must be supported by this machine

}  // namespace tandem::cpu
