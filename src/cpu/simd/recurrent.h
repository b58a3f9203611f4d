// The row kernels of recurrent layers, for every vector ISA. simd/rows.h includes it.
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
  float* const state = t.state + first;
  Vec known[kVecs];
  for (int v = 0; v < kVecs; ++v) known[v] = set1(0.0f);
  for (int64_t i = 0; i < t.head_dim_k; ++i) {
    const Vec k = set1(t.k[i]);
    for (int v = 0; v < kVecs; ++v) known[v] = fma(get(state + i * t.state_stride + v * kLanes), k, known[v]);
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
        float* at = state + i * t.state_stride + v * kLanes;
        const Vec s = fma(ki, correction[v], decay * get(at));
        put(at, s);
        y[v] = fma(s, qi, y[v]);
        known[v] = fma(s, ni, known[v]);
      }
    }
    for (int v = 0; v < kVecs; ++v) put(t.y + token * t.y_stride + first + v * kLanes, y[v]);
  }
}

void delta_rule(const DeltaRuleTile& t) {
  int64_t first = 0;
  for (; first + 2 * kLanes <= t.n_cols; first += 2 * kLanes) delta_rule_columns<2, true>(t, first, 0);
  for (; first + kLanes <= t.n_cols; first += kLanes) delta_rule_columns<1, true>(t, first, 0);
  if (first < t.n_cols) delta_rule_columns<1, false>(t, first, t.n_cols - first);
}

// What kTokens tokens in a row do to a state S, by the state before them (arXiv:2405.21060, 6): with
// P[t] the product of the decays up to token t, and L[t][u] of those between tokens u and t,
//   y[t] = P[t] c[t]^T S + sum over u <= t of (c[t]^T b[u]) L[t][u] dt[u] x[u] + skip x[t]
//   S = P[last] S + sum over u of b[u] (L[last][u] dt[u] x[u])
// So each element of the state is read and written once for all of them, with 2 kTokens + 1 operations instead of
// 3 kTokens.
template <int kTokens>
struct SsmScanBlock {
  float before[kTokens];           // P
  float kept[kTokens];             // L[last][u] dt[u]
  float within[kTokens][kTokens];  // the factors of x[u] in y[t]

  SsmScanBlock(const SsmScanTile& t, int64_t token) {
    float product = 1.0f;
    for (int i = 0; i < kTokens; ++i) before[i] = product *= t.decay[token + i];
    for (int u = 0; u < kTokens; ++u) {
      float factor = t.dt[token + u];
      for (int i = u; i < kTokens; ++i) {
        if (i > u) factor *= t.decay[token + i];
        within[i][u] = factor * dot(t.c + (token + i) * t.stride, t.b + (token + u) * t.stride, t.n_state);
      }
      kept[u] = factor;
      within[u][u] += t.skip;
    }
  }

  static float dot(const float* a, const float* b, int64_t n) {
    Vec sum = set1(0.0f);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) sum = fma(load(a + i), load(b + i), sum);
    if (i < n) sum = fma(load_n(a + i, n - i), load_n(b + i, n - i), sum);
    return sum_lanes(sum);
  }
};

// kVecs whole vectors of columns, or the first `n` columns of one.
template <int kTokens, int kVecs, bool kWhole>
TANDEM_INLINE void ssm_scan_columns(const SsmScanTile& t, const SsmScanBlock<kTokens>& block, int64_t token,
                                    int64_t first, int64_t n) {
  const auto get = [&](const float* p) { return kWhole ? load(p) : load_n(p, n); };
  const auto put = [&](float* p, Vec v) { kWhole ? store(p, v) : store_n(p, v, n); };
  const float *const b = t.b + token * t.stride, *const c = t.c + token * t.stride;
  const float* const x = t.x + token * t.stride + first;
  Vec y[kTokens][kVecs], added[kTokens][kVecs];
  for (int u = 0; u < kTokens; ++u) {
    for (int v = 0; v < kVecs; ++v) {
      added[u][v] = get(x + u * t.stride + v * kLanes) * set1(block.kept[u]);
      y[u][v] = set1(0.0f);
    }
  }
  const Vec before = set1(block.before[kTokens - 1]);
  for (int64_t i = 0; i < t.n_state; ++i) {
    for (int v = 0; v < kVecs; ++v) {
      float* const at = t.state + i * t.state_stride + first + v * kLanes;
      const Vec old = get(at);
      Vec s = old * before;
      for (int u = 0; u < kTokens; ++u) {
        y[u][v] = fma(old, set1(c[u * t.stride + i]), y[u][v]);
        s = fma(added[u][v], set1(b[u * t.stride + i]), s);
      }
      put(at, s);
    }
  }
  for (int i = 0; i < kTokens; ++i) {
    for (int v = 0; v < kVecs; ++v) {
      Vec result = y[i][v] * set1(block.before[i]);
      for (int u = 0; u <= i; ++u)
        result = fma(get(x + u * t.stride + v * kLanes), set1(block.within[i][u]), result);
      put(t.y + (token + i) * t.y_stride + first + v * kLanes, result);
    }
  }
}

template <int kTokens>
TANDEM_INLINE void ssm_scan_tokens(const SsmScanTile& t, int64_t token) {
  constexpr int kVecs = kLanes == 16 ? 2 : 1;  // as many as the registers hold
  const SsmScanBlock<kTokens> block(t, token);
  int64_t first = 0;
  for (; first + kVecs * kLanes <= t.n_cols; first += kVecs * kLanes)
    ssm_scan_columns<kTokens, kVecs, true>(t, block, token, first, 0);
  for (; first + kLanes <= t.n_cols; first += kLanes)
    ssm_scan_columns<kTokens, 1, true>(t, block, token, first, 0);
  if (first < t.n_cols) ssm_scan_columns<kTokens, 1, false>(t, block, token, first, t.n_cols - first);
}

void ssm_scan(const SsmScanTile& t) {
  constexpr int kTokens = 4;
  int64_t token = 0;
  for (; token + kTokens <= t.n_tokens; token += kTokens) ssm_scan_tokens<kTokens>(t, token);
  for (; token < t.n_tokens; ++token) ssm_scan_tokens<1>(t, token);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
