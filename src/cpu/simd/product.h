// A register-blocked product of floats, C[rows, vectors] (+)= A B, with all of C in registers. The loops are
// unrolled because an array indexed by a loop would live in memory. Included after the ISA's vec.h.
//
// A step of the inner loop loads kVecs vectors of B, broadcasts kRows elements of A and does kRows * kVecs
// fused multiply-adds: 24 of them for 10 loads with AVX512, so the multipliers are the limit, not the load
// ports. An element may also be a word of two numbers, with a step of its own (bf16/attention.cpp).
#pragma once

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// How A lies in memory: element (row, i) of an inner product.
struct RowsOf {  // a row's elements side by side
  const float* a;
  int64_t ld;
  TANDEM_INLINE const float* at(int64_t row, int64_t i) const { return a + row * ld + i; }
};
struct ColumnsOf {  // a column's elements side by side
  const float* a;
  int64_t ld;
  TANDEM_INLINE const float* at(int64_t row, int64_t i) const { return a + i * ld + row; }
};

struct MultiplyAdd {
  TANDEM_INLINE static Vec step(Vec a, Vec b, Vec c) { return fma(a, b, c); }
};

// c[r][v] += sum over i < k of A(r, i) * b[i * ldb + lanes of v]
template <int kRows, int kVecs, class Op = MultiplyAdd, class A, class Sum>
TANDEM_INLINE void multiply_add(int64_t k, A a, const float* b, int64_t ldb, Sum (&c)[kRows][kVecs]) {
  for (int64_t i = 0; i < k; ++i, b += ldb) {
    Vec x[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) x[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec y = set1(*a.at(r, i));
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) c[r][v] = Op::step(y, x[v], c[r][v]);
    }
  }
}

// to[r * ldc ..] = A B
template <int kRows, int kVecs, class A>
void product_tile(int64_t k, A a, const float* b, int64_t ldb, float* to, int64_t ldc) {
  Vec c[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) c[r][v] = set1(0.0f);
  }
  multiply_add(k, a, b, ldb, c);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) store(to + r * ldc + v * kLanes, c[r][v]);
  }
}

// to[r * ldc ..] = to * factor[r] + A B
template <int kRows, int kVecs, class Op, class A>
void update_tile(int64_t k, A a, const float* b, int64_t ldb, const float* factor, float* to, int64_t ldc) {
  Vec c[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) c[r][v] = load(to + r * ldc + v * kLanes) * set1(factor[r]);
  }
  multiply_add<kRows, kVecs, Op>(k, a, b, ldb, c);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) store(to + r * ldc + v * kLanes, c[r][v]);
  }
}

// Calls f.template run<rows, vecs>(row, column) over an n_rows x n_vecs result, in tiles of at most kMaxRows
// x kMaxVecs and about equal height. Columns of tiles are outermost, so B's strip stays in L1.
template <int kRows, class F>
TANDEM_INLINE void with_vecs(int64_t vecs, int64_t row, int64_t column, F& f) {
  static_assert(kMaxVecs == 4 || kMaxVecs == 2);
  if constexpr (kMaxVecs == 4) {
    if (vecs == 4) return f.template run<kRows, 4>(row, column);
    if (vecs == 3) return f.template run<kRows, 3>(row, column);
  }
  if (vecs == 2) return f.template run<kRows, 2>(row, column);
  f.template run<kRows, 1>(row, column);
}
template <class F>
TANDEM_INLINE void for_each_tile(int64_t n_rows, int64_t n_vecs, F f) {
  const int64_t strips = (n_rows + kMaxRows - 1) / kMaxRows;
  for (int64_t v = 0; v < n_vecs; v += kMaxVecs) {
    const int64_t vecs = n_vecs - v < kMaxVecs ? n_vecs - v : kMaxVecs;
    for (int64_t s = 0; s < strips; ++s) {
      const int64_t row = s * n_rows / strips, rows = (s + 1) * n_rows / strips - row;
      switch (rows) {
        case 1: with_vecs<1>(vecs, row, v * kLanes, f); break;
        case 2: with_vecs<2>(vecs, row, v * kLanes, f); break;
        case 3: with_vecs<3>(vecs, row, v * kLanes, f); break;
        case 4: with_vecs<4>(vecs, row, v * kLanes, f); break;
        case 5: with_vecs<5>(vecs, row, v * kLanes, f); break;
        default: with_vecs<6>(vecs, row, v * kLanes, f); break;
      }
    }
  }
  static_assert(kMaxRows == 6);
}

template <class A>
struct Product {
  int64_t k;
  const float *a, *b;
  int64_t lda, ldb;
  float* to;
  int64_t ldc;
  template <int kRows, int kVecs>
  void run(int64_t row, int64_t column) const {
    const A first{A{a, lda}.at(row, 0), lda};
    product_tile<kRows, kVecs>(k, first, b + column, ldb, to + row * ldc + column, ldc);
  }
};

template <class A, class Op = MultiplyAdd>
struct Update {
  int64_t k;
  const float *a, *b;
  int64_t lda, ldb;
  const float* factor;
  float* to;
  int64_t ldc;
  template <int kRows, int kVecs>
  void run(int64_t row, int64_t column) const {
    const A first{A{a, lda}.at(row, 0), lda};
    update_tile<kRows, kVecs, Op>(k, first, b + column, ldb, factor + row, to + row * ldc + column, ldc);
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
