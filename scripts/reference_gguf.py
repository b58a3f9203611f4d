#!/usr/bin/env python3
"""Writes tests/golden/gguf_package.gguf: a small file by the Python package gguf, for tests of the reader.

    scripts/reference_gguf.py [--out tests/golden/gguf_package.gguf]

Needs the Python packages gguf and numpy. The file has a value of every metadata type and a tensor of several dtypes; all
values are simple formulas, which tests/unit/gguf_file_test.cpp repeats.
"""

import argparse
import pathlib
import sys

try:
    import gguf
    import numpy as np
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit(0)
    sys.exit(f"reference_gguf.py: the Python package {error.name} is missing")

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "golden" / "gguf_package.gguf")
    options = parser.parse_args()
    writer = gguf.GGUFWriter(options.out, "llama")
    writer.add_name("w\u00f6rter")
    writer.add_custom_alignment(64)
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint32("a.u32", 4000000000)
    writer.add_int32("a.i32", -2000000000)
    writer.add_uint64("a.u64", 1 << 63)
    writer.add_int64("a.i64", -(1 << 63))
    writer.add_float32("a.f32", 1.5)
    writer.add_float64("a.f64", -0.1)
    writer.add_bool("a.bool", True)
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_token_list(["<unk>", "\u2581a", "b"])
    values = ((np.arange(3 * 64) % 7 - 3) / 4).astype(np.float32).reshape(3, 64)
    kinds = gguf.GGMLQuantizationType
    for name, kind in (("f32", kinds.F32), ("f16", kinds.F16), ("bf16", kinds.BF16), ("q8_0", kinds.Q8_0)):
        data = values if kind == kinds.F32 else gguf.quants.quantize(values, kind)
        writer.add_tensor(f"t.{name}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
