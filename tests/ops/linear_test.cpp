// Matrix products of every instruction set against the scalar reference, and the scalar reference against
// plain sums of dequantized weights. Weights are random blocks, so that every bit pattern of quants and
// scales occurs.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <random>
#include <set>

#include "base/fp16.h"
#include "cpu/kernels.h"
#include "cpu/linear_generic.h"
#include "cpu/ops/linear_group.h"
#include "gguf/quants.h"
#include "support/dtypes.h"
#include "support/evex_vnni.h"
#include "support/linear_problem.h"

namespace tandem::cpu {
namespace {

using test::AlignedBytes;
using test::Extra;
using test::magnitudes;
using test::multiply;
using test::Problem;
using test::random_floats;

uint32_t fresh_seed() {
  static const uint32_t seed = [] {
    const uint32_t s = std::random_device{}();
    printf("seed %u\n", s);
    return s;
  }();
  return seed;
}

const std::vector<DType>& weight_dtypes() {
  static const std::vector<DType> dtypes = tandem::test::quantizable_dtypes();
  return dtypes;
}

// The scalar kernels, with the generic path for dtypes that they are not the reference of.
const LinearKernels& reference() {
  return cpu::kernels(Isa::scalar).linear;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want,
                  const std::vector<float>& magnitude, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  const auto [error, where] = test::worst_error(got, want, magnitude);
  EXPECT_LE(error, tolerance) << "at " << where << ": " << got[where] << ", reference " << want[where];
}

// An instruction set, or none for avx_vnni in the encoding of AVX-512.
using KernelSet = std::optional<Isa>;

std::vector<KernelSet> kernel_sets() {
  std::vector<KernelSet> sets(std::begin(kIsas), std::end(kIsas));
  sets.push_back(std::nullopt);
  return sets;
}

std::string name_of(KernelSet set) {
  return set ? std::string(isa_name(*set)) : "evex_vnni";
}

bool is_supported(KernelSet set) {
  if (!set) return test::has_evex_vnni();
  const std::vector<Isa>& isas = supported_isas();
  return std::find(isas.begin(), isas.end(), *set) != isas.end();
}

class Linear : public ::testing::TestWithParam<std::tuple<KernelSet, DType>> {
 protected:
  void SetUp() override {
    if (!is_supported(set())) GTEST_SKIP() << "not on this machine";
  }
  KernelSet set() const { return std::get<0>(GetParam()); }
  Isa isa() const { return set().value_or(Isa::avx_vnni); }
  DType dtype() const { return std::get<1>(GetParam()); }
  int64_t block() const { return dtype_info(dtype()).block_elements; }
  const LinearKernels& kernels() const {
    return set() ? cpu::kernels(*set()).linear : test::evex_vnni_products();
  }
  void expect_reference(const Problem& p, Extra extra) const {
    const test::Reference want = test::reference_of(isa(), p, extra);
    expect_close(multiply(kernels(), p, extra), want.values, magnitudes(p, extra), want.tolerance);
  }
  void expect_no_division();
  std::mt19937 rng{fresh_seed()};
};

TEST_P(Linear, AgreesWithTheReferenceAtEveryNumberOfTokens) {
  const int64_t k = block() == 1 ? 67 : 3 * block();
  for (int64_t n = 1; n <= 40; ++n) {
    SCOPED_TRACE(n);
    const Problem p(dtype(), n, 19, k, rng);
    expect_reference(p, Extra::none);
  }
}

// Kernels that this CPU does not choose.
struct AsOtherCpus {
  static void turn() {
    set_narrow_avx512(!narrow_avx512());
    set_reads_in_streams(!reads_in_streams());
  }
  AsOtherCpus() { turn(); }
  ~AsOtherCpus() { turn(); }
};
TEST_P(Linear, AgreesWithTheReferenceAsOtherCpusDoIt) {
  if (isa() < Isa::avx512 || !set()) GTEST_SKIP() << "all CPUs do it alike";
  const AsOtherCpus other;
  for (const int64_t k : {block(), 3 * block(), 7 * std::max<int64_t>(block(), 32)}) {
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 13, 30, 48, 49}) {
      SCOPED_TRACE(testing::Message() << "n " << n << " k " << k);
      const Problem p(dtype(), n, 19, k, rng);
      expect_reference(p, Extra::none);
    }
  }
}

// Rows enough for several streams of weights, six at most, and one to five more.
TEST_P(Linear, AgreesWithTheReferenceInStreamsOfRows) {
  if (isa() == Isa::scalar || !set()) GTEST_SKIP() << "never in streams";
  const auto both_ways = [&] {
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 9, 12, 27, 40}) {
      const int64_t k = block() == 1 ? 1027 : (1056 + block() - 1) / block() * block();
      const auto row = static_cast<int64_t>(row_bytes(dtype(), k));
      const int64_t m = 6 * ((16384 + row - 1) / row) + 1 + static_cast<int64_t>(rng() % 5);
      SCOPED_TRACE(testing::Message() << "n " << n << " m " << m << " k " << k);
      const Problem p(dtype(), n, m, k, rng);
      expect_reference(p, Extra::both);
      const std::vector<float> whole = multiply(kernels(), p), parts = multiply(kernels(), p, Extra::none, 16);
      EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * 4), 0);
      if (n > 12) continue;  // another method, which adds in another order
      set_reads_in_streams(!reads_in_streams());
      const std::vector<float> otherwise = multiply(kernels(), p);
      set_reads_in_streams(!reads_in_streams());
      EXPECT_EQ(std::memcmp(whole.data(), otherwise.data(), whole.size() * 4), 0);
    }
  };
  both_ways();
  const AsOtherCpus other;
  both_ways();
}

// Sums that kernels keep in 16 bits are at their largest.
TEST_P(Linear, LargestCodesDoNotOverflow) {
  struct Part {
    DType dtype;
    size_t begin, end;  // of a block: codes, and scales that are no floats
  };
  const Part parts[] = {{DType::Q2_K, 0, 80},  {DType::Q3_K, 0, 108}, {DType::Q4_K, 4, 144},
                        {DType::Q5_K, 4, 176}, {DType::Q6_K, 0, 208}, {DType::Q4_0, 2, 18}, {DType::Q4_1, 4, 20},
                        {DType::Q5_0, 2, 22},  {DType::Q5_1, 4, 24},  {DType::MXFP4, 1, 17}};
  for (const Part& part : parts) {
    if (part.dtype != dtype()) continue;
    for (const float x : {1.0f, -1.0f}) {
      for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 70}) {
        for (const int bits : {0xff, 0x77, 0}) {
          Problem p(dtype(), n, 5, 512, rng);
          for (size_t b = 0; b < p.w.size(); b += dtype_info(dtype()).block_bytes)
            std::memset(p.w.data() + b + part.begin, bits, part.end - part.begin);
          for (float& v : p.x) v = x;
          expect_reference(p, Extra::none);
        }
      }
    }
  }
}

TEST_P(Linear, AgreesWithTheReferenceAtOddSizes) {
  const std::vector<int64_t> ks = block() == 1
                                      ? std::vector<int64_t>{1, 7, 8, 31, 192, 515}
                                      : std::vector<int64_t>{block(), 2 * block(), 5 * block(), 1792};
  const Extra extras[] = {Extra::none, Extra::bias, Extra::residual, Extra::both, Extra::residual_in_place};
  int which = 0;
  for (int64_t n : {1, 2, 3, 4, 6, 13, 67, 100}) {
    for (int64_t m : {1, 16, 33, 79}) {
      for (int64_t k : ks) {
        SCOPED_TRACE(testing::Message() << "n " << n << " m " << m << " k " << k);
        const Problem p(dtype(), n, m, k, rng);
        const Extra extra = extras[which++ % 5];
        expect_reference(p, extra);
      }
    }
  }
}

// More tokens and rows than a product holds at once.
TEST_P(Linear, AgreesWithTheReferenceBeyondWhatIsMultipliedAtOnce) {
  if (isa() != Isa::avx512_amx) GTEST_SKIP() << "others keep sums of a strip";
  const Problem p(dtype(), 530, 275, block() == 1 ? 300 : (320 + block() - 1) / block() * block(), rng);
  expect_reference(p, Extra::both);
}

void Linear::expect_no_division() {
  for (int64_t n : {1, 3, 9, 30, 79, 200}) {
    SCOPED_TRACE(n);
    const Problem p(dtype(), n, n < 100 ? 147 : 83, 4 * block(), rng);
    const std::vector<float> whole = multiply(kernels(), p, Extra::residual_in_place);
    for (int64_t rows : {1, 40, 64}) {
      const std::vector<float> parts = multiply(kernels(), p, Extra::residual_in_place, rows);
      EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * 4), 0) << rows << " rows at once";
    }
    for (int64_t tokens : {1, 25, 64}) {
      if (n < kDividedTokens) continue;
      const std::vector<float> parts = multiply(kernels(), p, Extra::residual_in_place, 64, tokens);
      EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * 4), 0) << tokens << " tokens at once";
    }
  }
}

TEST_P(Linear, ResultsDoNotDependOnDivisionOrAlignment) {
  expect_no_division();
  if (isa() < Isa::avx512 || !set()) return;
  const AsOtherCpus other;
  expect_no_division();
}

// Bias and residual come after the whole sum, in this order, wherever the columns are cut: so a product whose
// residual another op adds (rows divided between devices) is the same bit for bit.
TEST_P(Linear, BiasAndResidualAreAddedLast) {
  for (const int64_t n : {1, 3, 9, 40, 72}) {
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
  for (int64_t n : {1, 3, 20, 75}) {
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

// Kernels read behind a row where it ends within what they take at a time.
TEST_P(Linear, NansOfARowStayInIt) {
  const auto expect_own_rows = [&] {
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 70}) {
      for (const int64_t blocks : {1, 3, 5, 18}) {
        SCOPED_TRACE(testing::Message() << "n " << n << " blocks " << blocks);
        Problem p(dtype(), n, 7, blocks * block(), rng);
        const size_t row = row_bytes(dtype(), p.k);
        const auto fill_odd_rows = [&](int with) {
          for (size_t r = 1; r < 7; r += 2) std::memset(p.w.data() + r * row, with, row);
        };
        fill_odd_rows(0);
        const std::vector<float> want = multiply(kernels(), p);
        fill_odd_rows(0xff);
        const std::vector<float> got = multiply(kernels(), p);
        for (size_t i = 0; i < got.size(); ++i) {
          if (i % 7 % 2 == 0) {
            EXPECT_EQ(got[i], want[i]) << "row " << i % 7;
          }
        }
      }
    }
  };
  expect_own_rows();
  if (isa() < Isa::avx512 || !set()) return;
  const AsOtherCpus other;
  expect_own_rows();
}

// Weights that end where a page begins that may not be read.
class FencedWeights {
 public:
  explicit FencedWeights(const std::vector<std::byte>& w)
      : n_(w.size()),
        pages_((n_ + kPage - 1) / kPage * kPage),
        memory_(mmap(nullptr, pages_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    std::memcpy(data(), w.data(), n_);
    if (mprotect(data() + n_, kPage, PROT_NONE) != 0) throw std::bad_alloc();
  }
  ~FencedWeights() { munmap(memory_, pages_ + kPage); }
  FencedWeights(const FencedWeights&) = delete;
  FencedWeights& operator=(const FencedWeights&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_) + (pages_ - n_); }

 private:
  static constexpr size_t kPage = 4096;
  size_t n_, pages_;
  void* memory_;
};

TEST_P(Linear, NothingIsReadBehindTheWeights) {
  const auto expect_the_same = [&] {
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 70}) {
      for (const int64_t blocks : {1, 3, 18}) {
        for (const int64_t m : {1, 16, 18}) {
          SCOPED_TRACE(testing::Message() << "n " << n << " blocks " << blocks << " rows " << m);
          Problem p(dtype(), n, m, blocks * block(), rng);
          const std::vector<float> want = multiply(kernels(), p);
          const FencedWeights fenced(p.w);
          p.elsewhere = fenced.data();
          const std::vector<float> got = multiply(kernels(), p);
          EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * 4), 0);
        }
      }
    }
  };
  expect_the_same();
  if (isa() < Isa::avx512 || !set()) return;
  const AsOtherCpus other;
  expect_the_same();
}

TEST_P(Linear, ZeroAndTinyInputsGiveZero) {
  for (int64_t n : {1, 20, 75}) {
    Problem p(dtype(), n, 17, 2 * block(), rng);
    for (float& x : p.x) x = rng() % 2 == 0 ? 0.0f : 1e-39f;
    for (float y : multiply(kernels(), p)) EXPECT_NEAR(y, 0.0f, 1e-30f);
  }
}

// A shared encoding must be the same for both dtypes.
TEST_P(Linear, SharedEncodingsAreEqual) {
  for (int64_t n : {1, 2, 7, 50, 70}) {
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
                         ::testing::Combine(::testing::ValuesIn(kernel_sets()),
                                            ::testing::ValuesIn(weight_dtypes())),
                         [](const auto& test) {
                           return name_of(std::get<0>(test.param)) + "_" +
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

LinearKernels generic_kernels(KernelSet set) {
  if (!set) return WithGenericPath<only_floats<evex_vnni::linear_kernels>>::table();
  switch (*set) {
    case Isa::scalar: return WithGenericPath<only_floats<scalar::linear_kernels>>::table();
    case Isa::avx2: return WithGenericPath<only_floats<avx2::linear_kernels>>::table();
    case Isa::avx_vnni: return WithGenericPath<only_floats<avx_vnni::linear_kernels>>::table();
    case Isa::avx512: return WithGenericPath<only_floats<avx512::linear_kernels>>::table();
    case Isa::avx512_vnni:
    case Isa::avx512_vbmi:
    case Isa::avx512_bf16:
    case Isa::avx512_amx: return WithGenericPath<only_floats<avx512_vnni::linear_kernels>>::table();
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
  const LinearKernels generic = generic_kernels(set());
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

// A plan asks for sizes of every product, again and again: it must not ask for each number of tokens.
TEST_P(Linear, FewNumbersOfTokensDecideTheSizes) {
  if (!kernels().has_kernel(dtype())) return;
  const LinearKernels& k = kernels();
  std::mt19937 engine{fresh_seed()};
  const int64_t unit = std::max<int64_t>(dtype_info(dtype()).block_elements, 32);
  const auto random = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  };
  for (const int64_t n_cols : {unit, unit * random(2, 40)}) {
    const int64_t most = random(1, 3000);
    struct Sizes {
      size_t encoded = 0, per_token = 0, scratch = 0;
      int64_t granularity = 0;
      bool operator==(const Sizes&) const = default;
    };
    const auto add = [&](Sizes& s, int64_t n) {
      const size_t n_bytes = k.encoded_bytes(dtype(), n, n_cols);
      s.encoded = std::max(s.encoded, n_bytes);
      s.per_token = std::max(s.per_token, n_bytes / static_cast<size_t>(n));
      s.scratch = std::max(s.scratch, k.scratch_bytes(dtype(), n, n_cols));
      s.granularity = std::max(s.granularity, std::min(n, k.encode_granularity(dtype(), n)));
    };
    Sizes all, few;
    for (int64_t n = 1; n <= most; ++n) add(all, n);
    cpu::for_deciding_numbers(most, [&](int64_t n) { add(few, n); });
    EXPECT_EQ(all, few) << most << " tokens of " << n_cols;
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
