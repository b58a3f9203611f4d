// The row kernels of recurrent layers, for every vector ISA: element-wise ones, and the recurrences token by token. simd/rows.h
// includes it.
#pragma once

#include "cpu/row_kernels.h"
#include "cpu/simd/math.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <class Factor>
TANDEM_INLINE void gate_with(Factor factor, const float* x, const float* gates, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(x + i) * factor(load(gates + i)));
  if (i < n) store_n(to + i, load_n(x + i, n - i) * factor(load_n(gates + i, n - i)), n - i);
}

void gate(GateKind kind, const float* x, const float* gates, float* to, int64_t n) {
  switch (kind) {
    case GateKind::sigmoid: return gate_with([](Vec g) { return vsigmoid(g); }, x, gates, to, n);
    case GateKind::silu: return gate_with([](Vec g) { return g * vsigmoid(g); }, x, gates, to, n);
    case GateKind::gelu_tanh: return gate_with([](Vec g) { return vgelu_tanh(g); }, x, gates, to, n);
    case GateKind::product: return gate_with([](Vec g) { return g; }, x, gates, to, n);
    case GateKind::relu:
      return gate_with([](Vec g) { return keep(not_less(g, set1(0.0f)), g); }, x, gates, to, n);
  }
}

void causal_conv(const float* const* rows, const float* w, int64_t kernel, ConvActivation activation,
                 float* to, int64_t n) {
  const auto act = [activation](Vec v) { return activation == ConvActivation::silu ? v * vsigmoid(v) : v; };
  const float* const bias = w + kernel * n;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    if (rest >= kLanes) {
      Vec sum = load(bias + i);
      for (int64_t j = 0; j < kernel; ++j) sum = fma(load(w + j * n + i), load(rows[j] + i), sum);
      store(to + i, act(sum));
    } else {
      Vec sum = load_n(bias + i, rest);
      for (int64_t j = 0; j < kernel; ++j)
        sum = fma(load_n(w + j * n + i, rest), load_n(rows[j] + i, rest), sum);
      store_n(to + i, act(sum), rest);
    }
  }
}

// kVecs whole vectors of columns, or the first `n` columns of one. The state of a tile stays in the first cache
// for all tokens; each token reads and writes it once: while it is updated with a token, the next one's k is
// already multiplied with it.
template <int kVecs, bool kWhole>
TANDEM_INLINE void delta_rule_columns(const DeltaRuleTile& t, int64_t first, int64_t n) {
  const auto get = [&](const float* p) { return kWhole ? load(p) : load_n(p, n); };
  const auto put = [&](float* p, Vec v) { kWhole ? store(p, v) : store_n(p, v, n); };
  const float* from = t.old + first;
  Vec known[kVecs];
  for (int v = 0; v < kVecs; ++v) known[v] = set1(0.0f);
  for (int64_t i = 0; i < t.head_dim_k; ++i) {
    const Vec k = set1(t.k[i]);
    for (int v = 0; v < kVecs; ++v) known[v] = fma(get(from + i * t.state_stride + v * kLanes), k, known[v]);
  }
  for (int64_t token = 0; token < t.n_tokens; ++token) {
    const float *q = t.q + token * t.head_dim_k, *k = t.k + token * t.head_dim_k;
    const float* next = token + 1 < t.n_tokens ? k + t.head_dim_k : k;  // of the last one unused
    const Vec decay = set1(t.decay[token]), beta = set1(t.beta[token]);
    Vec correction[kVecs], y[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      correction[v] = fnma(decay, known[v], get(t.v + token * t.v_stride + first + v * kLanes)) * beta;
      y[v] = known[v] = set1(0.0f);
    }
    for (int64_t i = 0; i < t.head_dim_k; ++i) {
      const Vec ki = set1(k[i]), qi = set1(q[i]), ni = set1(next[i]);
      for (int v = 0; v < kVecs; ++v) {
        const int64_t at = i * t.state_stride + v * kLanes;
        const Vec s = fma(ki, correction[v], decay * get(from + at));
        put(t.state + first + at, s);
        y[v] = fma(s, qi, y[v]);
        known[v] = fma(s, ni, known[v]);
      }
    }
    for (int v = 0; v < kVecs; ++v) put(t.y + token * t.y_stride + first + v * kLanes, y[v]);
    from = t.state + first;
  }
}

void delta_rule(const DeltaRuleTile& t) {
  int64_t first = 0;
  for (; first + 2 * kLanes <= t.n_cols; first += 2 * kLanes) delta_rule_columns<2, true>(t, first, 0);
  for (; first + kLanes <= t.n_cols; first += kLanes) delta_rule_columns<1, true>(t, first, 0);
  if (first < t.n_cols) delta_rule_columns<1, false>(t, first, t.n_cols - first);
}

// As in delta_rule_columns; each token reads and writes the state once.
template <int kVecs, bool kWhole>
TANDEM_INLINE void ssm_scan_columns(const SsmScanTile& t, int64_t first, int64_t n) {
  const auto get = [&](const float* p) { return kWhole ? load(p) : load_n(p, n); };
  const auto put = [&](float* p, Vec v) { kWhole ? store(p, v) : store_n(p, v, n); };
  const float* from = t.old + first;
  float* const to = t.state + first;
  for (int64_t token = 0; token < t.n_tokens; ++token, from = to) {
    const float *b = t.b + token * t.bc_stride, *c = t.c + token * t.bc_stride;
    const float* x = t.x + token * t.stride + first;
    const Vec decay = set1(t.decay[token]), dt = set1(t.dt[token]), skip = set1(t.skip);
    Vec added[kVecs], y[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const Vec xv = get(x + v * kLanes);
      added[v] = xv * dt;
      y[v] = xv * skip;
    }
    for (int64_t i = 0; i < t.n_state; ++i) {
      const Vec bi = set1(b[i]), ci = set1(c[i]);
      for (int v = 0; v < kVecs; ++v) {
        const int64_t at = i * t.state_stride + v * kLanes;
        const Vec s = fma(bi, added[v], decay * get(from + at));
        put(to + at, s);
        y[v] = fma(s, ci, y[v]);
      }
    }
    for (int v = 0; v < kVecs; ++v) put(t.y + token * t.y_stride + first + v * kLanes, y[v]);
  }
}

void ssm_scan(const SsmScanTile& t) {
  int64_t first = 0;
  for (; first + 2 * kLanes <= t.n_cols; first += 2 * kLanes) ssm_scan_columns<2, true>(t, first, 0);
  for (; first + kLanes <= t.n_cols; first += kLanes) ssm_scan_columns<1, true>(t, first, 0);
  if (first < t.n_cols) ssm_scan_columns<1, false>(t, first, t.n_cols - first);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
