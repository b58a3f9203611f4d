// Elementary functions on vectors, for the kernels of every vector ISA. Included after the ISA's vec.h. The
// polynomials are our own minimax fits. NaN gives NaN.
#pragma once

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// e^r, where n is x / ln(2), rounded, and r the rest of x.
struct Exponent {
  Vec n, power_of_r;

  TANDEM_INLINE explicit Exponent(Vec x) {
    const Vec shift = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    n = fma(x, set1(1.44269504f), shift) - shift;
    const Vec r = fnma(n, set1(0.69314718f), x);
    Vec p = set1(0.0083125243f);  // (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, to 1e-7 of e^r
    p = fma(p, r, set1(0.0418901220f));
    p = fma(p, r, set1(0.1666711420f));
    p = fma(p, r, set1(0.4999923110f));
    p = fma(p, r, set1(1.0f));
    power_of_r = fma(p, r, set1(1.0f));
  }
};

// e^x for x below 89, within 2e-7 (relative) near 0 and 4e-7 at the ends. 0 below e^-87.33, where results
// would be subnormal. Fourteen operations: attention computes one for every query and position.
TANDEM_INLINE Vec vexp_bounded(Vec x) {
  const Mask normal = not_less(x, set1(-87.33f));
  const Exponent e(x);
  return keep(normal, times_power_of_2(e.power_of_r, e.n));
}
// As above for x that are not above 0.
TANDEM_INLINE Vec vexp_at_most_1(Vec x) {
  const Mask normal = not_less(x, set1(-87.33f));
  const Exponent e(x);
  return keep(normal, times_small_power_of_2(e.power_of_r, e.n));
}

// As above for any x; infinity above 88.73.
TANDEM_INLINE Vec vexp(Vec x) {
  return vexp_bounded(vmin(set1(89.0f), x));
}

// tanh x within 3e-7 (relative).
TANDEM_INLINE Vec vtanh(Vec x) {
  const Vec a = vabs(x), s = x * x;
  const Vec two = set1(2.0f), one = set1(1.0f);
  const Vec large = copy_sign(one - two / (vexp(a * two) + one), x);
  Vec p = set1(-0.0057170447f);  // (tanh(x) / x - 1) / x^2 for |x| < 0.625
  p = fma(p, s, set1(0.0206505861f));
  p = fma(p, s, set1(-0.0537434965f));
  p = fma(p, s, set1(0.1333149076f));
  p = fma(p, s, set1(-0.3333328366f));
  const Vec small = fma(p * s, x, x);
  return select(less(a, set1(0.625f)), small, large);
}

// 1 / (1 + e^-x)
TANDEM_INLINE Vec vsigmoid(Vec x) {
  return set1(1.0f) / (set1(1.0f) + vexp(set1(0.0f) - x));
}

// erfc(|z|) = t * exp(-z^2 + P(t)) with t = 1 / (1 + |z| / 2); P to 7e-8.
TANDEM_INLINE Vec verfc_abs(Vec z) {
  const Vec a = vabs(z);
  const Vec t = set1(1.0f) / fma(a, set1(0.5f), set1(1.0f));
  Vec p = set1(0.1682309210f);
  p = fma(p, t, set1(-0.8064573407f));
  p = fma(p, t, set1(1.4488530159f));
  p = fma(p, t, set1(-1.0794730186f));
  p = fma(p, t, set1(0.2311509699f));
  p = fma(p, t, set1(-0.1606580019f));
  p = fma(p, t, set1(0.0882282332f));
  p = fma(p, t, set1(0.3757836223f));
  p = fma(p, t, set1(0.9998465180f));
  p = fma(p, t, set1(-1.2655048370f));
  return t * vexp(fnma(a, a, p));
}

// x * Phi(x), Phi the normal distribution function.
TANDEM_INLINE Vec vgelu(Vec x) {
  const Vec half_erfc = set1(0.5f) * verfc_abs(x * set1(0.70710678f));
  return x * select(less(x, set1(0.0f)), half_erfc, set1(1.0f) - half_erfc);
}

TANDEM_INLINE Vec vgelu_tanh(Vec x) {
  const Vec u = x * fma(x * x, set1(2 * 0.79788456f * 0.044715f), set1(2 * 0.79788456f));
  return x * vsigmoid(u);  // (1 + tanh(u / 2)) / 2
}

// cos and sin of angles up to 2^24 radians, within 1e-10. Subtracts the quarter turns in double precision,
// evaluates polynomials in the rest, |r| <= pi / 4, and swaps and negates them by quadrant.
struct CosSin {
  DVec cos, sin;
};
TANDEM_INLINE CosSin vcos_sin(DVec angle) {
  const DVec n = dnearest(angle * dset1(0.63661977236758134));
  DVec r =
      dfma(n, dset1(-1.5707963267341256), angle);  // pi / 2 in two parts, the first with 26 bits of zeros
  r = dfma(n, dset1(-6.0771005065061922e-11), r);
  const DVec s = r * r, one = dset1(1.0);
  DVec ps = dset1(-2.4761627246889059e-8), pc = dset1(-2.721016903327547e-7);
  ps = dfma(ps, s, dset1(2.7555357451922838e-6));
  ps = dfma(ps, s, dset1(-1.9841263821757191e-4));
  ps = dfma(ps, s, dset1(8.333333325269823e-3));
  ps = dfma(ps, s, dset1(-0.1666666666663158));
  pc = dfma(pc, s, dset1(2.4799519187521914e-5));
  pc = dfma(pc, s, dset1(-1.3888883750342786e-3));
  pc = dfma(pc, s, dset1(0.041666666622793065));
  const DVec sin_r = dfma(ps * s, r, r);
  const DVec cos_r = dfma(pc * s, s, dfma(s, dset1(-0.5), one));
  const DVec quadrant = n - dset1(4.0) * dfloor(n * dset1(0.25));  // 0 1 2 3
  const DVec half = dfloor(quadrant * dset1(0.5));                 // 0 0 1 1
  const DVec swapped = quadrant - dset1(2.0) * half;               // 0 1 0 1
  const DVec sin_sign = one - dset1(2.0) * half;
  const DVec cos_sign = sin_sign * (one - dset1(2.0) * swapped);
  return {cos_sign * dselect_equal(swapped, one, sin_r, cos_r),
          sin_sign * dselect_equal(swapped, one, cos_r, sin_r)};
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
