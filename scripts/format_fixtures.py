#!/usr/bin/env python3
"""Writes what gguf/ and its tests know of the formats with grids from the gguf package (pip install gguf numpy):

    scripts/format_fixtures.py grids > gguf/grids.h
    scripts/format_fixtures.py vectors > tests/unit/quants_vectors_grid.h

The grids are the format's own tables. A vector is one block of random bits with the floats that gguf.quants makes of it,
and a hash of the floats of many more, which a test makes again from the same seed.
"""

import sys

import gguf
import numpy as np
from gguf import quants

TYPES = {"TQ1_0": 256, "NVFP4": 64, "IQ2_XXS": 256, "IQ2_XS": 256, "IQ2_S": 256, "IQ3_XXS": 256, "IQ3_S": 256, "IQ1_S": 256,
         "IQ1_M": 256}
N_BLOCKS = 2000

GRIDS_HEAD = """\
// The grids of the IQ types: vectors of eight (four for IQ3) levels, of which a weight's index chooses one. They are facts
// of the format, written by scripts/format_fixtures.py from the gguf package.
//
// A vector is packed in 16 bits, element j from bit 2j on (3j for IQ3). A code c stands for
//   8, 25, 43           IQ2      (c = 0, 1, 2)
//   -1, 0, 1            IQ1
//   8 c + 4, 62 for 7   IQ3_XXS
//   2 c + 1             IQ3_S
#pragma once

#include <cstdint>

#include "base/fp16.h"

namespace tandem {

struct Grids {
"""

GRIDS_TAIL = """\
#ifdef __CUDACC__
static __device__ const Grids kDeviceGrids = kGrids;
#endif

// The tables on the side that asks: a GPU cannot read the host's.
TANDEM_INLINE constexpr const Grids& grids() {
#ifdef __CUDA_ARCH__
  return kDeviceGrids;
#else
  return kGrids;
#endif
}

}  // namespace tandem
"""


def grid_codes(name):
    """The packed vectors of one type."""
    cls = getattr(quants, name)
    cls.init_grid()
    grid = cls.grid.reshape(cls.grid_shape).astype(int)
    bits = 3 if cls.grid_shape[1] == 4 else 2
    codes = np.array([[cls.grid_map.index(v) for v in row] for row in grid])
    return (codes << (bits * np.arange(codes.shape[1]))).sum(axis=1)


def write_grids():
    print(GRIDS_HEAD, end="")
    names = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S"]
    for name in names:
        print(f"  uint16_t {name.lower().replace('iq1_s', 'iq1')}[{len(grid_codes(name))}];")
    print("};\n\n// clang-format off\ninline constexpr Grids kGrids = {")
    for name in names:
        codes = grid_codes(name)
        print("  {")
        for at in range(0, len(codes), 20):
            print("    " + "".join(f"{c}," for c in codes[at:at + 20]))
        print("  },")
    print("};\n// clang-format on\n")
    print(GRIDS_TAIL, end="")


def random_bytes(n, seed):
    """Byte i is the top byte of splitmix64's output i."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, n + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(56)).astype(np.uint8)


def tame(name, blocks):
    """Makes every scale a finite number: the high bits of the exponent of a half are cleared, and E4M3 scales of NaN."""
    if name == "NVFP4":
        blocks[:, :4] = np.where(blocks[:, :4] & 0x7F == 0x7F, 0x38, blocks[:, :4])
    elif name == "IQ1_M":  # the half's high nibble is that of the last byte
        blocks[:, -1] &= 0xBF
    elif name == "TQ1_0":
        blocks[:, -1] &= 0xBF
    else:
        blocks[:, 1] &= 0xBF
    return blocks


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def c_string(data, indent):
    text = data.hex()
    return "\n".join(f'{indent}"{text[at:at + 96]}"' for at in range(0, len(text), 96))


def write_vectors():
    print("// Known answers for the formats with grids, ternary digits and E4M3 scales, written by\n"
          "// scripts/format_fixtures.py with the Python package gguf.\n#pragma once\n\n#include \"unit/quants_vectors.h\"\n\n"
          "namespace tandem::test {\n\ninline const DequantizeVector kGridVectors[] = {")
    hashes = []
    for name in TYPES:
        dtype = gguf.GGMLQuantizationType[name]
        n_bytes = gguf.GGML_QUANT_SIZES[dtype][1]
        blocks = tame(name, random_bytes(N_BLOCKS * n_bytes, int(dtype)).reshape(N_BLOCKS, n_bytes))
        floats = quants.dequantize(blocks, dtype).astype("<f4")
        print(f"    {{DType::{name},\n{c_string(blocks[0].tobytes(), '     ')},\n{c_string(floats[0].tobytes(), '     ')}}},")
        hashes.append(f"    {{DType::{name}, {fnv(floats.tobytes()):#x}}},")
    print("};\n\n// FNV-1a of the floats of `kHashedBlocks` blocks made by splitmix64 from the dtype's number.\n"
          f"inline constexpr int kHashedBlocks = {N_BLOCKS};\nstruct DequantizeHash {{\n  DType dtype;\n  uint64_t hash;\n}};\n"
          "inline constexpr DequantizeHash kDequantizeHashes[] = {")
    print("\n".join(hashes))
    print("};\n\n}  // namespace tandem::test")


if __name__ == "__main__":
    {"grids": write_grids, "vectors": write_vectors}[sys.argv[1]]()
