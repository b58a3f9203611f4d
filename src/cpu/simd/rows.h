// The row kernels of every vector ISA. One source of each ISA's folder includes it, after vec.h.
#pragma once

#include "cpu/row_kernels.h"
#include "cpu/simd/cache_rows.h"
#include "cpu/simd/hadamard.h"
#include "cpu/simd/math.h"
#include "cpu/simd/recurrent.h"
#include "cpu/simd/recurrent_chunks.h"
#include "gguf/quants.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// to[i] = f(a[i], ...): whole vectors, then a masked rest.
template <class F>
TANDEM_INLINE void map1(F f, const float* a, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, f(load(a + i)));
  if (i < n) store_n(to + i, f(load_n(a + i, n - i)), n - i);
}
template <class F>
TANDEM_INLINE void map2(F f, const float* a, const float* b, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, f(load(a + i), load(b + i)));
  if (i < n) store_n(to + i, f(load_n(a + i, n - i), load_n(b + i, n - i)), n - i);
}

// Sum of f(x[i]). Four vectors of partial sums give an error of about 2^-24 * sqrt(n / 64) and hide the
// adder's latency. f(0) must be 0.
template <class F>
TANDEM_INLINE float sum_of(F f, const float* x, int64_t n) {
  Vec sum[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int64_t j = 0; j < 4; ++j) sum[j] = sum[j] + f(load(x + i + j * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) sum[0] = sum[0] + f(load(x + i));
  if (i < n) {
    const int64_t rest = n - i;  // lanes past the end must stay 0 whatever f does
    alignas(64) float tail[kLanes] = {};
    store(tail, f(load_n(x + i, rest)));
    sum[1] = sum[1] + load_n(tail, rest);
  }
  return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// to = (x - mean) * scale * w + bias
TANDEM_INLINE void normalize(const float* x, const float* w, const float* bias, float mean, float scale,
                             float* to, int64_t n) {
  const Vec m = set1(mean), s = set1(scale);
  map2([&](Vec a, Vec b) { return (a - m) * s * b; }, x, w, to, n);
  if (bias != nullptr) map2([](Vec a, Vec b) { return a + b; }, to, bias, to, n);
}

void rms_norm(const float* x, const float* w, const float* bias, float eps, float* to, int64_t n) {
  const float squares = sum_of([](Vec v) { return v * v; }, x, n);
  normalize(x, w, bias, 0.0f, 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps), to, n);
}

void layer_norm(const float* x, const float* w, const float* bias, float eps, float* to, int64_t n) {
  const float mean = sum_of([](Vec v) { return v; }, x, n) / static_cast<float>(n);
  const Vec m = set1(mean);
  const float squares = sum_of([&](Vec v) { return (v - m) * (v - m); }, x, n);
  normalize(x, w, bias, mean, 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps), to, n);
}

void rotations(const double* frequency, double position, float magnitude, float* cos, float* sin, int64_t n) {
  const DVec p = dset1(position), m = dset1(magnitude);
  for (int64_t i = 0; i < n; i += kDLanes) {
    const int64_t count = n - i < kDLanes ? n - i : kDLanes;
    const CosSin r = vcos_sin(p * (count == kDLanes ? dload(frequency + i) : dload_n(frequency + i, count)));
    dstore_n(cos + i, r.cos * m, count);
    dstore_n(sin + i, r.sin * m, count);
  }
}

// Adds products without fma, so an element does not depend on its place in the row.
void rope_pair(float* x, const float* cos, const float* sin, int64_t n_rot) {
  const int64_t n = n_rot / 2;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Pairs p = load_pairs(x + 2 * i);
    const Vec c = load(cos + i), s = load(sin + i);
    store_pairs(x + 2 * i, {p.even * c - p.odd * s, p.even * s + p.odd * c});
  }
  for (; i < n; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = a * sin[i] + b * cos[i];
  }
}

void rope_half(float* x, const float* cos, const float* sin, int64_t n_rot) {
  const int64_t n = n_rot / 2;
  float* y = x + n;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec a = load(x + i), b = load(y + i), c = load(cos + i), s = load(sin + i);
    store(x + i, a * c - b * s);
    store(y + i, a * s + b * c);
  }
  for (; i < n; ++i) {
    const float a = x[i], b = y[i];
    x[i] = a * cos[i] - b * sin[i];
    y[i] = a * sin[i] + b * cos[i];
  }
}

void add(const float* a, const float* b, float factor, float* to, int64_t n) {
  const Vec f = set1(factor);
  map2([&](Vec x, Vec y) { return fma(y, f, x); }, a, b, to, n);
}

void scale(const float* x, float factor, float* to, int64_t n) {
  const Vec f = set1(factor);
  map1([&](Vec v) { return v * f; }, x, to, n);
}

void softcap(const float* x, float cap, float* to, int64_t n) {
  const Vec c = set1(cap);
  map1([&](Vec v) { return c * vtanh(v / c); }, x, to, n);
}

void glu(Activation activation, const float* gate, const float* up, float* to, int64_t n) {
  switch (activation) {
    case Activation::silu: return map2([](Vec g, Vec u) { return g * vsigmoid(g) * u; }, gate, up, to, n);
    case Activation::gelu: return map2([](Vec g, Vec u) { return vgelu(g) * u; }, gate, up, to, n);
    case Activation::gelu_tanh: return map2([](Vec g, Vec u) { return vgelu_tanh(g) * u; }, gate, up, to, n);
    case Activation::relu2:
      return map2([](Vec g, Vec u) { return keep(not_less(g, set1(0.0f)), g * g) * u; }, gate, up, to, n);
    case Activation::swiglu_oai:
      return map2(
          [](Vec g, Vec u) {
            const Vec most = set1(7.0f), least = set1(-7.0f);
            g = select(less(most, g), most, g);  // NaN stays NaN
            u = select(less(most, u), most, select(less(u, least), least, u));
            return g * vsigmoid(g * set1(1.702f)) * (u + set1(1.0f));
          },
          gate, up, to, n);
  }
}

void dequantize(DType dtype, const std::byte* row, float* to, int64_t n) {
  const LoadRows load_rows = load_rows_fn(dtype);
  if (load_rows != nullptr) return load_rows(row, to, n);
  dequantize_fn(dtype)(row, to, n);
}

constexpr RowKernels kRowKernels{
    rms_norm,   layer_norm,       rotations, rope_pair,      rope_half,      add,
    scale,      softcap,          glu,       dequantize,     gate,           causal_conv,
    delta_rule, delta_rule_chunk, ssm_scan,  ssm_scan_chunk, lower_products, hadamard};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
