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

float dot(const float* a, const float* b, int64_t n) {
  Vec sum = set1(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = fma(load(a + i), load(b + i), sum);
  if (i < n) sum = fma(load_n(a + i, n - i), load_n(b + i, n - i), sum);
  return sum_lanes(sum);
}

// What kTokens tokens in a row do to a state S, by the state before them (the WY form, arXiv:2412.06464): with P[t]
// the product of the decays up to token t, and L[t][u] of those between tokens u and t,
//   c[t] = beta[t] (v[t] - P[t] k[t]^T S - sum over u < t of (k[t]^T k[u]) L[t][u] c[u])
//   y[t] = P[t] q[t]^T S + sum over u <= t of (q[t]^T k[u]) L[t][u] c[u]
//   S = P[last] S + sum over u of k[u] (L[last][u] c[u])
// So each element of the state is read twice and written once for all of them, with 3 kTokens + 1 operations
// instead of 4 kTokens.
template <int kTokens>
struct DeltaRuleBlock {
  float before[kTokens];  // P
  float kept[kTokens];    // L[last][u]
  float keys[kTokens][kTokens],
      queries[kTokens][kTokens];  // the factors of c[u] in c[t] / beta[t] and in y[t]

  DeltaRuleBlock(const DeltaRuleTile& t, int64_t token) {
    float product = 1.0f;
    for (int i = 0; i < kTokens; ++i) before[i] = product *= t.decay[token + i];
    for (int u = 0; u < kTokens; ++u) {
      const float* k = t.k + (token + u) * t.head_dim_k;
      float between = 1.0f;
      for (int i = u; i < kTokens; ++i) {
        if (i > u) between *= t.decay[token + i];
        const int64_t at = (token + i) * t.head_dim_k;
        if (i > u) keys[i][u] = between * dot(t.k + at, k, t.head_dim_k);
        queries[i][u] = between * dot(t.q + at, k, t.head_dim_k);
      }
      kept[u] = between;
    }
  }
};

// kVecs whole vectors of columns, or the first `n` columns of one.
template <int kTokens, int kVecs, bool kWhole>
TANDEM_INLINE void delta_rule_block(const DeltaRuleTile& t, const DeltaRuleBlock<kTokens>& block,
                                    int64_t token, int64_t first, int64_t n) {
  const auto get = [&](const float* p) { return kWhole ? load(p) : load_n(p, n); };
  const auto put = [&](float* p, Vec v) { kWhole ? store(p, v) : store_n(p, v, n); };
  const float *q[kTokens], *k[kTokens];
  for (int u = 0; u < kTokens; ++u) {
    q[u] = t.q + (token + u) * t.head_dim_k;
    k[u] = t.k + (token + u) * t.head_dim_k;
  }
  Vec c[kTokens][kVecs], y[kTokens][kVecs];  // c begins as k^T S
  for (int u = 0; u < kTokens; ++u) {
    for (int v = 0; v < kVecs; ++v) c[u][v] = y[u][v] = set1(0.0f);
  }
  const float* const old = (token == 0 ? t.old : t.state) + first;
  const float* from = old;
  for (int64_t i = 0; i < t.head_dim_k; ++i, from += t.state_stride) {
    Vec s[kVecs];
    for (int v = 0; v < kVecs; ++v) s[v] = get(from + v * kLanes);
    for (int u = 0; u < kTokens; ++u) {
      const Vec ki = set1(k[u][i]), qi = set1(q[u][i]);
      for (int v = 0; v < kVecs; ++v) {
        c[u][v] = fma(s[v], ki, c[u][v]);
        y[u][v] = fma(s[v], qi, y[u][v]);
      }
    }
  }
  for (int i = 0; i < kTokens; ++i) {
    const Vec before = set1(block.before[i]);
    for (int v = 0; v < kVecs; ++v) {
      Vec known = before * c[i][v], result = before * y[i][v];
      for (int u = 0; u < i; ++u) {
        known = fma(c[u][v], set1(block.keys[i][u]), known);
        result = fma(c[u][v], set1(block.queries[i][u]), result);
      }
      const float* values = t.v + (token + i) * t.v_stride + first + v * kLanes;
      c[i][v] = (get(values) - known) * set1(t.beta[token + i]);
      put(t.y + (token + i) * t.y_stride + first + v * kLanes,
          fma(c[i][v], set1(block.queries[i][i]), result));
    }
  }
  for (int u = 0; u < kTokens; ++u) {
    for (int v = 0; v < kVecs; ++v) c[u][v] = c[u][v] * set1(block.kept[u]);
  }
  const Vec before = set1(block.before[kTokens - 1]);
  from = old;
  float* at = t.state + first;
  for (int64_t i = 0; i < t.head_dim_k; ++i, from += t.state_stride, at += t.state_stride) {
    Vec s[kVecs];
    for (int v = 0; v < kVecs; ++v) s[v] = before * get(from + v * kLanes);
    for (int u = 0; u < kTokens; ++u) {
      const Vec ki = set1(k[u][i]);
      for (int v = 0; v < kVecs; ++v) s[v] = fma(ki, c[u][v], s[v]);
    }
    for (int v = 0; v < kVecs; ++v) put(at + v * kLanes, s[v]);
  }
}

constexpr int kBlockTokens = 4;
constexpr int kBlockVecs = kLanes == 16 ? 2 : 1;  // as many as the registers hold

// The next kBlockTokens tokens.
TANDEM_INLINE void delta_rule_tokens(const DeltaRuleTile& t, int64_t token) {
  const DeltaRuleBlock<kBlockTokens> block(t, token);
  int64_t first = 0;
  for (; first + kBlockVecs * kLanes <= t.n_cols; first += kBlockVecs * kLanes)
    delta_rule_block<kBlockTokens, kBlockVecs, true>(t, block, token, first, 0);
  for (; first + kLanes <= t.n_cols; first += kLanes)
    delta_rule_block<kBlockTokens, 1, true>(t, block, token, first, 0);
  if (first < t.n_cols) delta_rule_block<kBlockTokens, 1, false>(t, block, token, first, t.n_cols - first);
}

// What a block leaves, token by token.
TANDEM_INLINE void delta_rule_rest(const DeltaRuleTile& t) {
  int64_t first = 0;
  for (; first + 2 * kLanes <= t.n_cols; first += 2 * kLanes) delta_rule_columns<2, true>(t, first, 0);
  for (; first + kLanes <= t.n_cols; first += kLanes) delta_rule_columns<1, true>(t, first, 0);
  if (first < t.n_cols) delta_rule_columns<1, false>(t, first, t.n_cols - first);
}

void delta_rule(const DeltaRuleTile& t) {
  int64_t token = 0;
  for (; token + kBlockTokens <= t.n_tokens; token += kBlockTokens) delta_rule_tokens(t, token);
  if (token == t.n_tokens) return;
  DeltaRuleTile rest = t;
  if (token > 0) rest.old = rest.state;
  rest.n_tokens -= token;
  rest.q += token * t.head_dim_k;
  rest.k += token * t.head_dim_k;
  rest.v += token * t.v_stride;
  rest.decay += token;
  rest.beta += token;
  rest.y += token * t.y_stride;
  delta_rule_rest(rest);
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
};

// kVecs whole vectors of columns, or the first `n` columns of one.
template <int kTokens, int kVecs, bool kWhole>
TANDEM_INLINE void ssm_scan_columns(const SsmScanTile& t, const SsmScanBlock<kTokens>& block, int64_t token,
                                    int64_t first, int64_t n) {
  const auto get = [&](const float* p) { return kWhole ? load(p) : load_n(p, n); };
  const auto put = [&](float* p, Vec v) { kWhole ? store(p, v) : store_n(p, v, n); };
  const float* const x = t.x + token * t.stride + first;
  Vec y[kTokens][kVecs], added[kTokens][kVecs];
  for (int u = 0; u < kTokens; ++u) {
    for (int v = 0; v < kVecs; ++v) {
      added[u][v] = get(x + u * t.stride + v * kLanes) * set1(block.kept[u]);
      y[u][v] = set1(0.0f);
    }
  }
  const Vec before = set1(block.before[kTokens - 1]);
  const float *b[kTokens], *c[kTokens];
  for (int u = 0; u < kTokens; ++u) {
    b[u] = t.b + (token + u) * t.stride;
    c[u] = t.c + (token + u) * t.stride;
  }
  const float* from = (token == 0 ? t.old : t.state) + first;
  float* at = t.state + first;
  for (int64_t i = 0; i < t.n_state; ++i, from += t.state_stride, at += t.state_stride) {
    Vec old[kVecs], s[kVecs];
    for (int v = 0; v < kVecs; ++v) old[v] = get(from + v * kLanes);
    for (int v = 0; v < kVecs; ++v) s[v] = old[v] * before;
    for (int u = 0; u < kTokens; ++u) {
      const Vec bi = set1(b[u][i]), ci = set1(c[u][i]);
      for (int v = 0; v < kVecs; ++v) {
        y[u][v] = fma(old[v], ci, y[u][v]);
        s[v] = fma(added[u][v], bi, s[v]);
      }
    }
    for (int v = 0; v < kVecs; ++v) put(at + v * kLanes, s[v]);
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
  const SsmScanBlock<kTokens> block(t, token);
  int64_t first = 0;
  for (; first + kBlockVecs * kLanes <= t.n_cols; first += kBlockVecs * kLanes)
    ssm_scan_columns<kTokens, kBlockVecs, true>(t, block, token, first, 0);
  for (; first + kLanes <= t.n_cols; first += kLanes)
    ssm_scan_columns<kTokens, 1, true>(t, block, token, first, 0);
  if (first < t.n_cols) ssm_scan_columns<kTokens, 1, false>(t, block, token, first, t.n_cols - first);
}

void ssm_scan(const SsmScanTile& t) {
  int64_t token = 0;
  for (; token + kBlockTokens <= t.n_tokens; token += kBlockTokens) ssm_scan_tokens<kBlockTokens>(t, token);
  for (; token < t.n_tokens; ++token) ssm_scan_tokens<1>(t, token);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
