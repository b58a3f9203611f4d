// The recurrences of recurrent layers for a chunk of tokens at once, for every vector ISA: matrix products with a tile of
// the result in registers (simd/product.h), whose inner loops are bound by multiplications. simd/rows.h includes it.
//
// With P[t] the product of the decays up to token t of the chunk, and L[t][u] of those between tokens u and t, a chunk of C
// tokens does to a state S[n, columns] (the WY form, arXiv:2412.06464):
//   delta rule   c[t] = beta[t] (v[t] - P[t] k[t]^T S - sum over u < t of L[t][u] (k[t]^T k[u]) c[u])
//                y[t] = P[t] q[t]^T S + sum over u <= t of L[t][u] (q[t]^T k[u]) c[u]
//                S = P[last] S + sum over u of k[u] (L[last][u] c[u])
//   Mamba-2      the same with b, c for k, q and dt[u] x[u] for c[u] (arXiv:2405.21060, 6), and y[t] += skip x[t]
// An element of the state costs 6 + 2 C / n operations a token (delta rule), 4 + C / n (Mamba-2). Products of two tokens do
// not depend on the columns: the op computes them once (lower_products) for all tiles and heads with the same keys.
// Decays only shrink: their products are running products, and what falls below kNothing is 0.
//
// Measured on a core of Zen 4 (a product of 16 floats a cycle with either ISA), states of 128 x 128, tiles of 64 columns, 512
// tokens, as shares of the peak that 6 (4) operations an element would take: delta rule 0.84 with AVX-512 and 0.78 with AVX2,
// Mamba-2 0.84 and 0.80; with the operations that are done, 0.95 of the peak. Blocks of four tokens with single vectors had
// 0.76 and 0.60, 0.80 and 0.60. Chunks of 8 to 32 tokens take the same time within 3%, those of 64 a tenth more: more operations
// for pairs of tokens, fewer loads and stores of the state. lower_products reaches 0.66 and 0.40.
#pragma once

#include "cpu/row_kernels.h"
#include "cpu/simd/product.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr float kNothing = 1e-30f;

TANDEM_INLINE Vec load_up_to(const float* p, int64_t n) {  // 0 beyond n, which may be negative
  if (n >= kLanes) return load(p);
  return n > 0 ? load_n(p, n) : set1(0.0f);
}
TANDEM_INLINE void store_up_to(float* p, Vec v, int64_t n) {
  if (n >= kLanes) {
    store(p, v);
  } else if (n > 0) {
    store_n(p, v, n);
  }
}

// kLanes products of four rows of a with kLanes / 4 of b, from the rows t and u on. Rows beyond the last repeat it.
TANDEM_INLINE void lower_tile(const LowerProducts& p, int64_t t, int64_t u) {
  constexpr int kColumns = kLanes / 4;
  const auto row = [&](const float* m, int64_t i) {
    return m + (i < p.n_rows ? i : p.n_rows - 1) * p.stride;
  };
  Vec sum[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) sum[i] = set1(0.0f);
  const auto add = [&](auto&& get) {
    Vec b[kColumns];
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) b[j] = get(row(p.b, u + j));
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const Vec a = get(row(p.a, t + r));
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) sum[r * kColumns + j] = fma(a, b[j], sum[r * kColumns + j]);
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= p.n; i += kLanes) add([i](const float* x) { return load(x + i); });
  if (i < p.n) add([i, &p](const float* x) { return load_n(x + i, p.n - i); });
  float sums[kLanes];
  store(sums, sum_each(sum));
  for (int64_t r = 0; r < 4 && t + r < p.n_rows; ++r) {
    for (int64_t j = 0; j < kColumns && u + j <= t + r; ++j)
      p.to[(t + r) * p.to_stride + u + j] = sums[r * kColumns + j];
  }
}

void lower_products(const LowerProducts& p) {
  for (int64_t t = 0; t < p.n_rows; t += 4) {
    for (int64_t u = 0; u <= t + 3 && u < p.n_rows; u += kLanes / 4) lower_tile(p, t, u);
  }
}

// The factors of a chunk, in the tile's scratch.
struct ChunkFactors {
  float before[kStateChunk];               // P
  float kept[kStateChunk];                 // L[last]
  float within[kStateChunk][kStateChunk];  // of c[u] in y[t]; 0 for u > t
  float keys[kStateChunk][kStateChunk];    // of c[u] in c[t], for u < t; of the delta rule
};
constexpr int64_t kStripColumns = kMaxVecs * kLanes;
struct ChunkScratch {
  ChunkFactors factors;
  float c[kStateChunk * kStripColumns];  // of a strip of columns
};
static_assert(sizeof(ChunkScratch) <= kStateScratch * sizeof(float));

// Calls row(t, u, L) for each token t and vectors of tokens u, with L[t][u] (0 for u > t), and fills `before` and `kept`.
template <class Row>
TANDEM_INLINE void for_decays(const float* decay, int64_t n, ChunkFactors& f, Row&& row) {
  for (int64_t u = 0; u < kStateChunk; u += kLanes) store(f.kept + u, set1(0.0f));
  for (int64_t t = 0; t < n; ++t) {
    const Vec d = set1(decay[t]), nothing = set1(kNothing);
    for (int64_t u = 0; u < n; u += kLanes) {
      const Vec l = load(f.kept + u) * d;
      store(f.kept + u, keep(not_less(l, nothing), l));
    }
    f.kept[t] = 1.0f;
    f.before[t] = decay[0] * f.kept[0];
    for (int64_t u = 0; u < n; u += kLanes) row(t, u, load(f.kept + u));
  }
}

// A strip of columns that is one tile wide, of the state [n, columns] with rows `stride` apart.
struct ChunkStrip {
  const ChunkFactors& factors;
  int64_t n, n_tokens, n_cols;
  const float *k, *q;  // [n_tokens, n]
  int64_t kq_stride;
  float* state;
  int64_t stride;
  const float* v;  // [n_tokens, n_cols]
  int64_t v_stride;
  const float* beta;
  float* y;
  int64_t y_stride;
  float* c;  // [n_tokens, kStripColumns]
};

template <int kRows, int kVecs>
TANDEM_INLINE void clear(Vec (&a)[kRows][kVecs]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) a[r][v] = set1(0.0f);
  }
}

// c of the delta rule: the rows of a tile by those before it, then each by the ones above it.
struct Corrections {
  const ChunkStrip& s;
  template <int kRows, int kVecs>
  void run(int64_t t, int64_t) const {
    Vec a[kRows][kVecs];
    clear(a);
    multiply_add(s.n, RowsOf{s.k + t * s.kq_stride, s.kq_stride}, s.state, s.stride, a);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec beta = set1(s.beta[t + r]), before = beta * set1(s.factors.before[t + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        a[r][v] = fnma(before, a[r][v],
                       beta * load_up_to(s.v + (t + r) * s.v_stride + v * kLanes, s.n_cols - v * kLanes));
    }
    const RowsOf keys{s.factors.keys[t], kStateChunk};
    multiply_add(t, keys, s.c, kStripColumns, a);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int u = 0; u < r; ++u) {
        const Vec key = set1(*keys.at(r, t + u));
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) a[r][v] = fma(key, a[u][v], a[r][v]);
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) store(s.c + (t + r) * kStripColumns + v * kLanes, a[r][v]);
    }
  }
};

struct Results {
  const ChunkStrip& s;
  template <int kRows, int kVecs>
  void run(int64_t t, int64_t) const {
    Vec a[kRows][kVecs];
    clear(a);
    multiply_add(s.n, RowsOf{s.q + t * s.kq_stride, s.kq_stride}, s.state, s.stride, a);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec before = set1(s.factors.before[t + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) a[r][v] = a[r][v] * before;
    }
    multiply_add(t + kRows, RowsOf{s.factors.within[t], kStateChunk}, s.c, kStripColumns, a);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        store_up_to(s.y + (t + r) * s.y_stride + v * kLanes, a[r][v], s.n_cols - v * kLanes);
    }
  }
};

// The state after the chunk, of c times L[last].
struct NextState {
  const ChunkStrip& s;
  template <int kRows, int kVecs>
  void run(int64_t row, int64_t) const {
    const Vec before = set1(s.factors.before[s.n_tokens - 1]);
    float* const to = s.state + row * s.stride;
    Vec a[kRows][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) a[r][v] = load(to + r * s.stride + v * kLanes) * before;
    }
    multiply_add(s.n_tokens, ColumnsOf{s.k + row, s.kq_stride}, s.c, kStripColumns, a);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) store(to + r * s.stride + v * kLanes, a[r][v]);
    }
  }
};

// Calls f(strip, first column, vectors) for strips of at most kMaxVecs vectors.
template <class F>
TANDEM_INLINE void for_each_strip(int64_t n_cols, F&& f) {
  const int64_t n_vecs = (n_cols + kLanes - 1) / kLanes;
  for (int64_t v = 0; v < n_vecs; v += kMaxVecs) f(v * kLanes, n_vecs - v < kMaxVecs ? n_vecs - v : kMaxVecs);
}

TANDEM_INLINE void finish_strip(const ChunkStrip& s, int64_t n_vecs) {
  for_each_tile(s.n_tokens, n_vecs, Results{s});
  for (int64_t t = 0; t < s.n_tokens; ++t) {
    const Vec kept = set1(s.factors.kept[t]);
    float* const c = s.c + t * kStripColumns;
    for (int64_t v = 0; v < n_vecs; ++v) store(c + v * kLanes, load(c + v * kLanes) * kept);
  }
  for_each_tile(s.n, n_vecs, NextState{s});
}

void delta_rule_chunk(const DeltaRuleTile& t) {
  auto& scratch = *reinterpret_cast<ChunkScratch*>(t.scratch);
  ChunkFactors& f = scratch.factors;
  for_decays(t.decay, t.n_tokens, f, [&](int64_t i, int64_t u, Vec l) {
    const Vec keys = load_up_to(t.keys + i * kStateChunk + u, i - u);
    const Vec queries = load_up_to(t.queries + i * kStateChunk + u, i + 1 - u);
    store(f.keys[i] + u, keys * l * set1(-t.beta[i]));
    store(f.within[i] + u, queries * l);
  });
  for_each_strip(t.n_cols, [&](int64_t first, int64_t n_vecs) {
    const ChunkStrip s{f,          t.head_dim_k, t.n_tokens,      t.n_cols - first, t.k,
                       t.q,        t.head_dim_k, t.state + first, t.state_stride,   t.v + first,
                       t.v_stride, t.beta,       t.y + first,     t.y_stride,       scratch.c};
    for_each_tile(t.n_tokens, n_vecs, Corrections{s});
    finish_strip(s, n_vecs);
  });
}

void ssm_scan_chunk(const SsmScanTile& t) {
  auto& scratch = *reinterpret_cast<ChunkScratch*>(t.scratch);
  ChunkFactors& f = scratch.factors;
  for_decays(t.decay, t.n_tokens, f, [&](int64_t i, int64_t u, Vec l) {
    const Vec products = load_up_to(t.products + i * kStateChunk + u, i + 1 - u);
    store(f.within[i] + u, products * l * load_up_to(t.dt + u, t.n_tokens - u));
  });
  for (int64_t i = 0; i < t.n_tokens; ++i) {
    f.within[i][i] += t.skip;
    f.kept[i] *= t.dt[i];
  }
  for_each_strip(t.n_cols, [&](int64_t first, int64_t n_vecs) {
    const ChunkStrip s{f,   t.n_state,   t.n_tokens,      t.n_cols - first, t.b,
                       t.c, t.bc_stride, t.state + first, t.state_stride,   nullptr,
                       0,   nullptr,     t.y + first,     t.y_stride,       scratch.c};
    for (int64_t i = 0; i < t.n_tokens; ++i) {
      for (int64_t v = 0; v < n_vecs; ++v)
        store(scratch.c + i * kStripColumns + v * kLanes,
              load_up_to(t.x + i * t.stride + first + v * kLanes, t.n_cols - first - v * kLanes));
    }
    finish_strip(s, n_vecs);
  });
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
