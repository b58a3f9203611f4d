// The kernels of one instruction set, as tables of functions: one interface, one implementation per folder
// (scalar/, avx2/, avx512/; the products of avx2/ and all of avx512/ are compiled twice, without and with VNNI). avx_vnni takes
// attention and rows from avx2. vbmi/ has products of the IQ2 and IQ3 formats only, bf16/ attention of many queries only, amx/
// kernels for some and for many tokens only; their tables take the others from avx512_vnni. The scalar kernels are the reference for
// testing the others. Weights whose dtype has no products in a folder take the generic path
// (linear_generic.h). Kernels do not allocate, do not throw and know nothing about threads: ops/ divides the work.
#pragma once

#include "cpu/attention_kernels.h"
#include "cpu/isa.h"
#include "cpu/linear_kernels.h"
#include "cpu/row_kernels.h"
#include "cpu/sparse_kernels.h"

namespace tandem::cpu {

struct Kernels {
  Isa isa;
  LinearKernels linear;
  AttentionKernels attention;
  RowKernels rows;
  SparseKernels sparse;
};

const Kernels& kernels(Isa isa);  // isa must be supported by this machine

// The same for a machine with these features.
Kernels kernels_for(Isa isa, const CpuFeatures& features);

}  // namespace tandem::cpu
