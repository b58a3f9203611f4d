// What unpacks a quantized format (avx512/linear_unpack.h, vbmi/linear_unpack.h) to pairs of bf16.
#pragma once

#include "cpu/amx/linear_layout.h"
#include "cpu/amx/linear_pairs.h"
#include "cpu/avx512/linear_strip.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <class Unpack, Order order>
int unpack_quantized(const WeightRows& from, int64_t n, std::byte* to) {
  const StripRows rows{from.base, from.stride};
  const int64_t n_units = n / Unpack::shape.unit;
  __m512i* panel = reinterpret_cast<__m512i*>(to);
  size_t at = 0;
  int64_t u = 0;
  if constexpr (requires { Unpack::group; }) {
    for (; u + Unpack::group <= n_units; u += Unpack::group) {
      PairSink<Unpack::shape, order> sink(panel);
      Unpack::unpack_group(rows, at, sink);
      at += Unpack::group * Unpack::block_bytes;
      panel += Unpack::group * (Unpack::shape.unit / 2);
    }
  }
  for (; u < n_units; u += block_units<Unpack>) {
    PairSink<Unpack::shape, order> sink(panel);
    Unpack::unpack(rows, at, sink);
    at += Unpack::block_bytes;
    panel += block_units<Unpack> * Unpack::shape.unit / 2;
  }
  return 1;
}

template <class Unpack, Order order = Order::columns>
constexpr Format format_of{Unpack::shape.unit * block_units<Unpack>, Unpack::block_bytes, 1, unpack_quantized<Unpack, order>};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
