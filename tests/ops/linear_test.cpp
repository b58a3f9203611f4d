// Matrix products of every instruction set against the scalar reference, and the scalar reference against
// plain sums of dequantized weights. Weights are random blocks, so that every bit pattern of quants and
// scales occurs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "base/fp16.h"
#include "cpu/kernels.h"
#include "cpu/linear_generic.h"
#include "gguf/quants.h"
#include "support/dtypes.h"

namespace tandem::cpu {
namespace {

struct AlignedBytes {
  explicit AlignedBytes(size_t n) : p(static_cast<std::byte*>(std::aligned_alloc(64, (n + 127) / 64 * 64))) {}
  ~AlignedBytes() { std::free(p); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  std::byte* p;
};

uint32_t fresh_seed() {
  static const uint32_t seed = [] {
    const uint32_t s = std::random_device{}();
    printf("seed %u\n", s);
    return s;
  }();
  return seed;
}

const std::vector<DType>& weight_dtypes() {
  static const std::vector<DType> dtypes = test::quantizable_dtypes();
  return dtypes;
}

// Random bits whose values are finite and of moderate size.
void random_block(const DTypeInfo& info, std::byte* block, std::mt19937& rng) {
  std::vector<float> values(info.block_elements);
  float largest = 0;
  do {
    for (size_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<std::byte>(rng());
    if (info.dtype == DType::NVFP4) {  // four scales at once are hardly ever small
      for (int i = 0; i < 4; ++i) block[i] &= std::byte{0x1f};
    }
    info.to_float(block, values.data(), static_cast<int64_t>(values.size()));
    largest = 0;
    for (float v : values) largest = std::abs(v) <= largest ? largest : std::abs(v);  // NaN stays
  } while (!(largest > 1e-3f && largest < 1.0f));
}

// [m, k] of random codes and scales.
std::vector<std::byte> random_weights(DType dtype, int64_t m, int64_t k, std::mt19937& rng) {
  const DTypeInfo& info = dtype_info(dtype);
  std::vector<std::byte> w(row_bytes(dtype, k) * static_cast<size_t>(m));
  if (info.block_elements == 1) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(m * k));
    for (float& v : values) v = normal(rng);
    quantize_row(dtype, values.data(), w.data(), m * k);
    return w;
  }
  for (size_t at = 0; at < w.size(); at += info.block_bytes) random_block(info, w.data() + at, rng);
  return w;
}

std::vector<float> random_floats(int64_t n, std::mt19937& rng) {
  std::vector<float> v(static_cast<size_t>(n));
  std::normal_distribution<float> normal;
  for (float& x : v) x = normal(rng) * (rng() % 64 == 0 ? 8.0f : 1.0f);
  return v;
}

// The scalar kernels, with the generic path for dtypes that they are not the reference of.
const LinearKernels& reference() {
  return cpu::kernels(Isa::scalar).linear;
}

struct Problem {
  DType dtype;
  int64_t n, m, k;
  std::vector<std::byte> w;
  std::vector<float> x, bias, residual;

  Problem(DType type, int64_t tokens, int64_t rows, int64_t columns, std::mt19937& rng)
      : dtype(type),
        n(tokens),
        m(rows),
        k(columns),
        w(random_weights(type, rows, columns, rng)),
        x(random_floats(tokens * columns, rng)),
        bias(random_floats(rows, rng)),
        residual(random_floats(tokens * rows, rng)) {}
};

enum class Extra { none, bias, residual, both, residual_in_place };

// Rows handed out `rows_at_once` at a time (rounded up to the kernels' granularity); 0: all at once.
std::vector<float> multiply(const LinearKernels& kernels, const Problem& p, Extra extra = Extra::none,
                            int64_t rows_at_once = 0) {
  AlignedBytes encoded(kernels.encoded_bytes(p.dtype, p.n, p.k)),
      scratch(kernels.scratch_bytes(p.dtype, p.n, p.k));
  const int64_t tokens = kernels.encode_granularity(p.n);
  for (int64_t t = 0; t < p.n; t += tokens) {
    kernels.encode(p.dtype, p.x.data(), p.k, p.n, p.k, t, std::min(t + tokens, p.n), encoded.p);
  }
  std::vector<float> y(static_cast<size_t>(p.n * p.m), -77.0f);
  LinearCall call;
  call.dtype = p.dtype;
  call.w = p.w.data();
  call.n = p.n;
  call.m = p.m;
  call.k = p.k;
  call.x = encoded.p;
  call.y = y.data();
  call.ldy = call.ld_residual = p.m;
  if (extra == Extra::bias || extra == Extra::both) call.bias = p.bias.data();
  if (extra == Extra::residual || extra == Extra::both) call.residual = p.residual.data();
  if (extra == Extra::residual_in_place) {
    y = p.residual;
    call.residual = y.data();
  }
  const int64_t step = kernels.row_granularity(p.dtype, p.n, p.m, p.k);
  const int64_t rows = rows_at_once == 0 ? p.m : (rows_at_once + step - 1) / step * step;
  for (int64_t r = 0; r < p.m; r += rows) kernels.multiply(call, r, std::min(r + rows, p.m), scratch.p);
  return y;
}

// Sum of |w| |x| of each output, with bias and residual: rounding errors are relative to it.
std::vector<float> magnitudes(const Problem& p, Extra extra = Extra::none) {
  const bool has_bias = extra == Extra::bias || extra == Extra::both;
  const bool has_residual = extra != Extra::none && extra != Extra::bias;
  std::vector<float> w(static_cast<size_t>(p.k)), out(static_cast<size_t>(p.n * p.m));
  for (int64_t r = 0; r < p.m; ++r) {
    dequantize_row(p.dtype, p.w.data() + row_bytes(p.dtype, p.k) * static_cast<size_t>(r), w.data(), p.k);
    for (int64_t t = 0; t < p.n; ++t) {
      double sum = 0;
      if (has_bias) sum += std::abs(p.bias[static_cast<size_t>(r)]);
      if (has_residual) sum += std::abs(p.residual[static_cast<size_t>(t * p.m + r)]);
      for (int64_t i = 0; i < p.k; ++i) {
        sum +=
            std::abs(static_cast<double>(w[static_cast<size_t>(i)]) * p.x[static_cast<size_t>(t * p.k + i)]);
      }
      out[static_cast<size_t>(t * p.m + r)] = static_cast<float>(sum);
    }
  }
  return out;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want,
                  const std::vector<float>& magnitude, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want[i]) / (magnitude[i] + 1e-3);
    if (!(error <= worst)) worst = error, where = i;
  }
  EXPECT_LE(worst, tolerance) << "at " << where << ": " << got[where] << ", reference " << want[where];
}

class Linear : public ::testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  void SetUp() override {
    const std::vector<Isa> isas = supported_isas();
    if (std::find(isas.begin(), isas.end(), isa()) == isas.end()) GTEST_SKIP() << "not on this machine";
  }
  Isa isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  int64_t block() const { return dtype_info(dtype()).block_elements; }
  const LinearKernels& kernels() const { return cpu::kernels(isa()).linear; }
  // An ISA may round activations to BF16 for BF16 weights; everything else differs by the order of float sums
  // only.
  double tolerance() const { return dtype() == DType::BF16 ? 0x1p-8 : 1e-5; }
  std::mt19937 rng{fresh_seed()};
};

TEST_P(Linear, AgreesWithTheReferenceAtEveryNumberOfTokens) {
  const int64_t k = block() == 1 ? 67 : 3 * block();
  for (int64_t n = 1; n <= 40; ++n) {
    SCOPED_TRACE(n);
    const Problem p(dtype(), n, 19, k, rng);
    expect_close(multiply(kernels(), p), multiply(reference(), p), magnitudes(p), tolerance());
  }
}

TEST_P(Linear, AgreesWithTheReferenceAtOddSizes) {
  const std::vector<int64_t> ks = block() == 1
                                      ? std::vector<int64_t>{1, 7, 8, 31, 192, 515}
                                      : std::vector<int64_t>{block(), 2 * block(), 5 * block(), 1792};
  const Extra extras[] = {Extra::none, Extra::bias, Extra::residual, Extra::both, Extra::residual_in_place};
  int which = 0;
  for (int64_t n : {1, 2, 5, 13, 67}) {
    for (int64_t m : {1, 16, 33, 79}) {
      for (int64_t k : ks) {
        SCOPED_TRACE(testing::Message() << "n " << n << " m " << m << " k " << k);
        const Problem p(dtype(), n, m, k, rng);
        const Extra extra = extras[which++ % 5];
        expect_close(multiply(kernels(), p, extra), multiply(reference(), p, extra), magnitudes(p, extra),
                     tolerance());
      }
    }
  }
}

TEST_P(Linear, ResultsDoNotDependOnDivisionOrAlignment) {
  for (int64_t n : {1, 3, 9, 30}) {
    SCOPED_TRACE(n);
    const Problem p(dtype(), n, 147, 4 * block(), rng);
    const std::vector<float> whole = multiply(kernels(), p, Extra::residual_in_place);
    for (int64_t rows : {1, 40, 64}) {
      const std::vector<float> parts = multiply(kernels(), p, Extra::residual_in_place, rows);
      EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * 4), 0) << rows << " rows at once";
    }
  }
}

// Bias and residual come after the whole sum, in this order, wherever the columns are cut: so a product whose
// residual another op adds (rows divided between devices) is the same bit for bit.
TEST_P(Linear, BiasAndResidualAreAddedLast) {
  for (const int64_t n : {1, 3, 9, 40}) {
    for (const int64_t k : {256, 512, 1280, 2304}) {
      const Problem p(dtype(), n, 37, k, rng);
      const std::vector<float> plain = multiply(kernels(), p);
      const std::vector<float> both = multiply(kernels(), p, Extra::both);
      const std::vector<float> in_place = multiply(kernels(), p, Extra::residual_in_place);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(both[i], plain[i] + p.bias[i % 37] + p.residual[i]) << n << " x " << k << " at " << i;
        EXPECT_EQ(in_place[i], plain[i] + p.residual[i]) << n << " x " << k << " at " << i;
      }
    }
  }
}

TEST_P(Linear, NanAndInfinityGiveNan) {
  for (int64_t n : {1, 3, 20}) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Problem p(dtype(), n, 21, 2 * block(), rng);
      const int64_t token = n / 2;
      for (int64_t t = 0; t < 2; ++t) {  // two opposite infinities make a NaN in every format
        p.x[static_cast<size_t>(token * p.k + t * (p.k - 1))] = t == 0 ? bad : -bad;
      }
      const std::vector<float> y = multiply(kernels(), p);
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t r = 0; r < p.m; ++r) {
          const float v = y[static_cast<size_t>(t * p.m + r)];
          if (t == token) {
            EXPECT_FALSE(std::isfinite(v)) << "token " << t << " row " << r << " of " << n;
          } else {
            EXPECT_TRUE(std::isfinite(v)) << "token " << t << " row " << r << " of " << n;
          }
        }
      }
    }
  }
}

TEST_P(Linear, ZeroAndTinyInputsGiveZero) {
  for (int64_t n : {1, 20}) {
    Problem p(dtype(), n, 17, 2 * block(), rng);
    for (float& x : p.x) x = rng() % 2 == 0 ? 0.0f : 1e-39f;
    for (float y : multiply(kernels(), p)) EXPECT_NEAR(y, 0.0f, 1e-30f);
  }
}

// A shared encoding must be the same for both dtypes.
TEST_P(Linear, SharedEncodingsAreEqual) {
  for (int64_t n : {1, 2, 7, 50}) {
    for (DType other : weight_dtypes()) {
      if (!kernels().same_encoding(dtype(), other, n)) continue;
      const int64_t k = 512;
      const std::vector<float> x = random_floats(n * k, rng);
      const size_t size = kernels().encoded_bytes(dtype(), n, k);
      ASSERT_EQ(size, kernels().encoded_bytes(other, n, k));
      AlignedBytes a(size), b(size);
      std::memset(a.p, 0, size);
      std::memset(b.p, 0, size);
      kernels().encode(dtype(), x.data(), k, n, k, 0, n, a.p);
      kernels().encode(other, x.data(), k, n, k, 0, n, b.p);
      EXPECT_EQ(std::memcmp(a.p, b.p, size), 0) << dtype_name(other);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Linear,
                         ::testing::Combine(::testing::Values(Isa::scalar, Isa::avx2, Isa::avx512,
                                                              Isa::avx512_vnni),
                                            ::testing::ValuesIn(weight_dtypes())),
                         [](const auto& test) {
                           return std::string(isa_name(std::get<0>(test.param))) + "_" +
                                  std::string(dtype_name(std::get<1>(test.param)));
                         });

// An instruction set's products with nothing but its F32 kernels: all other dtypes go the generic way.
template <const LinearKernels& (*own)()>
const LinearKernels& only_floats() {
  static const LinearKernels table = [] {
    LinearKernels kernels = own();
    kernels.has_kernel = [](DType dtype) { return dtype == DType::F32; };
    return kernels;
  }();
  return table;
}

LinearKernels generic_kernels(Isa isa) {
  switch (isa) {
    case Isa::scalar: return WithGenericPath<only_floats<scalar::linear_kernels>>::table();
    case Isa::avx2: return WithGenericPath<only_floats<avx2::linear_kernels>>::table();
    case Isa::avx512: return WithGenericPath<only_floats<avx512::linear_kernels>>::table();
    case Isa::avx512_vnni: return WithGenericPath<only_floats<avx512_vnni::linear_kernels>>::table();
  }
  return {};
}

// The weights' values as F32.
Problem as_floats(const Problem& p) {
  Problem floats = p;
  floats.dtype = DType::F32;
  floats.w.resize(sizeof(float) * static_cast<size_t>(p.m * p.k));
  dequantize_row(p.dtype, p.w.data(), reinterpret_cast<float*>(floats.w.data()), p.m * p.k);
  return floats;
}

// Also of the dtypes with kernels, so that those test the path which a new one takes.
TEST_P(Linear, TheGenericPathIsTheProductOfFloats) {
  const LinearKernels generic = generic_kernels(isa());
  ASSERT_EQ(generic.has_kernel(dtype()), dtype() == DType::F32);
  const Extra extras[] = {Extra::none, Extra::bias, Extra::residual, Extra::both, Extra::residual_in_place};
  int which = 0;
  for (int64_t n : {1, 2, 5, 6, 12, 13, 67}) {
    for (int64_t m : {1, 15, 16, 33, 79}) {
      for (int64_t k : {block(), 3 * block(), std::max<int64_t>(1792, block())}) {
        SCOPED_TRACE(testing::Message() << "n " << n << " m " << m << " k " << k);
        const Problem p(dtype(), n, m, k, rng), floats = as_floats(p);
        const Extra extra = extras[which++ % 5];
        const std::vector<float> y = multiply(generic, p, extra);
        EXPECT_EQ(y, multiply(kernels(), floats, extra));
        EXPECT_EQ(y, multiply(generic, p, extra, 40));
        expect_close(y, multiply(reference(), floats, extra), magnitudes(p, extra), 1e-5);
      }
    }
  }
}

TEST_P(Linear, HasNoKernelWithoutAReference) {
  EXPECT_TRUE(reference().has_kernel(dtype()) || !kernels().has_kernel(dtype()));
}

// The reference itself: equal to the product of floats up to the rounding of activations.
TEST(LinearReference, EqualsTheProductUpToActivationRounding) {
  std::mt19937 rng{fresh_seed()};
  for (DType dtype : weight_dtypes()) {
    SCOPED_TRACE(dtype_name(dtype));
    const int64_t block = dtype_info(dtype).block_elements;
    const Problem p(dtype, 3, 5, std::max<int64_t>(256, block), rng);
    const std::vector<float> y = multiply(reference(), p, Extra::both);
    std::vector<float> w(static_cast<size_t>(p.k));
    for (int64_t r = 0; r < p.m; ++r) {
      dequantize_row(dtype, p.w.data() + row_bytes(dtype, p.k) * static_cast<size_t>(r), w.data(), p.k);
      for (int64_t t = 0; t < p.n; ++t) {
        double want = p.bias[static_cast<size_t>(r)] + p.residual[static_cast<size_t>(t * p.m + r)];
        double bound = 1e-5;
        for (int64_t b = 0; b < p.k; b += std::max<int64_t>(block, 32)) {
          double max = 0, sum = 0;
          for (int64_t i = b; i < b + std::max<int64_t>(block, 32); ++i) {
            const double x = p.x[static_cast<size_t>(t * p.k + i)], wi = w[static_cast<size_t>(i)];
            want += x * wi;
            max = std::max(max, std::abs(x));
            sum += std::abs(wi);
          }
          bound += block == 1 ? 1e-6 * max * sum
                              : max / 254 * 1.001 * sum;  // half a quantization level for each activation
        }
        EXPECT_NEAR(y[static_cast<size_t>(t * p.m + r)], want, bound);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
