// Compares the kernels of an instruction set with the scalar ones, on sizes and values that an input chooses: products of
// every dtype, rows, attention. The tolerances are those of tests/ops; where these hold against double precision, twice
// as much, because both sides are rounded.
#pragma once

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "cpu/kernels.h"
#include "fuzz/fuzz_target.h"
#include "gguf/quants.h"
#include "support/dtypes.h"
#include "support/linear_problem.h"

namespace tandem::fuzz {

class KernelsCheck {
 public:
  KernelsCheck(const cpu::Kernels& tested, const cpu::Kernels& scalar) : tested_(tested), scalar_(scalar) {}

  void run(Input input) const {
    const uint8_t what = input.byte();
    std::mt19937 rng(static_cast<uint32_t>(input.between(0, 0xffff)));
    switch (what % 5) {
      case 0:
      case 1: return product(input, rng);
      case 2: return rows(input, rng);
      case 3: return dequantize(input);
      case 4: return attention(input, rng);
    }
  }

 private:
  using Floats = std::vector<float>;

  static DType dtype_of(Input& input) {
    static const std::vector<DType> dtypes = test::quantizable_dtypes();
    return dtypes[static_cast<size_t>(input.between(0, static_cast<int64_t>(dtypes.size()) - 1))];
  }

  // Elements alike, up to the tolerance. Where the reference is not finite, the other is not either.
  static void check_near(const Floats& got, const Floats& want, double relative, double absolute) {
    for (size_t i = 0; i < want.size(); ++i) {
      const double error = std::abs(static_cast<double>(got[i]) - want[i]);
      const bool near = std::isfinite(want[i])
                            ? error <= std::abs(want[i]) * relative + absolute
                            : std::isnan(want[i]) == std::isnan(got[i]) && !std::isfinite(got[i]);
      if (!near) fprintf(stderr, "element %zu: %a, scalar %a\n", i, got[i], want[i]);
      TANDEM_CHECK(near);
    }
  }

  // Weights are blocks of the input where those have moderate values, and random ones elsewhere.
  void product(Input& input, std::mt19937& rng) const {
    const DType dtype = dtype_of(input);
    const DTypeInfo& info = dtype_info(dtype);
    const int64_t n = input.between(1, input.byte() % 4 == 0 ? 40 : 9), m = input.between(1, 40);
    const int64_t k =
        info.block_elements == 1 ? input.between(1, 300) : info.block_elements * input.between(1, 4);
    const auto extra = static_cast<cpu::test::Extra>(input.between(0, 4));
    const int64_t rows_at_once = input.between(0, 40);
    cpu::test::Problem problem(dtype, n, m, k, rng);
    for (float& x : problem.x) {
      if (rng() % 16 == 0) x = rng() % 2 == 0 ? 0.0f : 1e-39f;
    }
    std::byte* weight = problem.w.data();
    std::vector<uint64_t> block(info.block_bytes / sizeof(uint64_t) + 1);  // aligned like a mapping
    for (auto rest = input.bytes(); info.block_elements > 1 && rest.size() >= info.block_bytes;) {
      if (weight == problem.w.data() + problem.w.size()) break;
      std::memcpy(block.data(), rest.data(), info.block_bytes);
      if (cpu::test::is_moderate(info, reinterpret_cast<const std::byte*>(block.data()))) {
        std::memcpy(weight, block.data(), info.block_bytes);
      }
      weight += info.block_bytes;
      rest = rest.subspan(info.block_bytes);
    }
    const Floats got = cpu::test::multiply(tested_.linear, problem, extra, rows_at_once);
    const cpu::test::Reference reference = cpu::test::reference_of(tested_.isa, problem, extra);
    const Floats& want = reference.values;
    const auto [error, where] = cpu::test::worst_error(got, want, cpu::test::magnitudes(problem, extra));
    const bool near = error <= reference.tolerance;
    if (!near) {
      fprintf(stderr, "%s: %s [%d, %d] x %d: at %zu %a, scalar %a, error %g, allowed %g\n",
              std::string(cpu::isa_name(tested_.isa)).c_str(), std::string(dtype_name(dtype)).c_str(),
              static_cast<int>(m), static_cast<int>(k), static_cast<int>(n), where, got[where], want[where],
              error, reference.tolerance);
    }
    TANDEM_CHECK(near);
  }

  // Every bit pattern, those of NaN and infinity included.
  void dequantize(Input& input) const {
    const DType dtype = dtype_of(input);
    const DTypeInfo& info = dtype_info(dtype);
    const auto n_blocks = static_cast<int64_t>(std::min<size_t>(input.bytes().size() / info.block_bytes, 64));
    if (n_blocks == 0) return;
    const int64_t n = n_blocks * info.block_elements;
    // Aligned like a mapping.
    cpu::test::AlignedBytes row(row_bytes(dtype, n));
    std::memcpy(row.p, input.bytes().data(), row_bytes(dtype, n));
    Floats got(static_cast<size_t>(n)), want(static_cast<size_t>(n));
    tested_.rows.dequantize(dtype, row.p, got.data(), n);
    scalar_.rows.dequantize(dtype, row.p, want.data(), n);
    for (size_t i = 0; i < want.size(); ++i) {
      const bool same = std::isnan(want[i]) ? std::isnan(got[i]) : std::memcmp(&got[i], &want[i], 4) == 0;
      if (!same) fprintf(stderr, "%zu: %a, scalar %a\n", i, got[i], want[i]);
      TANDEM_CHECK(same);
    }
  }

  // A row kernel's result with both sets.
  template <class Run>
  void check_rows(const Floats& before, double relative, double absolute, Run&& run) const {
    Floats got = before, want = before;
    run(tested_.rows, got.data());
    run(scalar_.rows, want.data());
    check_near(got, want, relative, absolute);
  }

  void rows(Input& input, std::mt19937& rng) const {
    const uint8_t kernel = input.byte();
    const int64_t n = input.between(1, 300), n_rot = 2 * n;
    std::normal_distribution<float> normal;
    // Values in steps of powers of two from the input, then normal ones.
    const auto values = [&](int64_t count, float deviation) {
      Floats x(static_cast<size_t>(count));
      for (float& v : x) {
        const uint8_t scale = input.byte();
        v = normal(rng) * deviation * (scale == 0 ? 1.0f : std::ldexp(1.0f, scale % 16 - 8));
      }
      return x;
    };
    const Floats a = values(n, 1), b = values(n, 1), c = values(n, 1), wide = values(n_rot, 1);
    Floats cos = a, sin = b;
    std::vector<double> frequency(a.begin(), a.end());
    switch (kernel % 10) {
      case 0:
        // What is normalized is at most the root of n, and the sum with the bias may cancel.
        return check_rows(
            a, 2e-6, 2e-6 * (largest_of(b) * std::sqrt(static_cast<double>(n)) + largest_of(c)),
            [&](const cpu::RowKernels& k, float* y) { k.rms_norm(y, b.data(), c.data(), 1e-5f, y, n); });
      case 1: {
        // The rounding of the mean is divided by the deviation, which may be small.
        double mean = 0, squares = 0, largest = 0;
        for (const float x : a) mean += x / static_cast<double>(n);
        for (const float x : a) squares += (x - mean) * (x - mean);
        for (const float w : b) largest = std::max<double>(largest, std::abs(w));
        const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
        return check_rows(
            a, 2e-6, 1e-6 * (1 + std::abs(mean)) * scale * (1 + largest) + 2e-6,
            [&](const cpu::RowKernels& k, float* y) { k.layer_norm(y, b.data(), c.data(), 1e-5f, y, n); });
      }
      case 2:
        return check_rows(a, 0, 2e-7, [&](const cpu::RowKernels& k, float* y) {
          Floats other(static_cast<size_t>(n));
          k.rotations(frequency.data(), 1000.5, 1.0f, y, other.data(), n);
          check_near(other, sines(frequency, 1000.5), 0, 2e-7);
        });
      case 3:
      case 4:
        for (int64_t i = 0; i < n; ++i) {
          cos[static_cast<size_t>(i)] = std::cos(a[static_cast<size_t>(i)]);
          sin[static_cast<size_t>(i)] = std::sin(a[static_cast<size_t>(i)]);
        }
        // The sum of two products may cancel.
        return check_rows(wide, 1e-6, 1e-6 * largest_of(wide), [&](const cpu::RowKernels& k, float* y) {
          (kernel % 10 == 3 ? k.rope_pair : k.rope_half)(y, cos.data(), sin.data(), n_rot);
        });
      case 5:
        return check_rows(a, 1e-6, 1e-6 * largest_of(b), [&](const cpu::RowKernels& k, float* y) {
          k.add(y, b.data(), kernel < 128 ? 1.0f : 0.3f, y, n);
        });
      case 6: return check_rows(a, 0, 0, [&](const cpu::RowKernels& k, float* y) { k.scale(y, 0.3f, y, n); });
      case 7:
        return check_rows(a, 1e-6, 1e-30,
                          [&](const cpu::RowKernels& k, float* y) { k.softcap(y, 30.0f, y, n); });
      default: {
        const auto activation = static_cast<Activation>(kernel / 10 % 5);
        return check_rows(a, 4e-6, 4e-6 * (1 + largest_of(b)),
                          [&](const cpu::RowKernels& k, float* y) { k.glu(activation, y, b.data(), y, n); });
      }
    }
  }

  static double largest_of(const Floats& x) {
    double largest = 0;
    for (const float v : x) largest = std::max<double>(largest, std::abs(v));
    return largest;
  }

  static Floats sines(const std::vector<double>& frequency, double position) {
    Floats y;
    for (const double f : frequency) y.push_back(static_cast<float>(std::sin(f * position)));
    return y;
  }

  // Key-value heads' cache, its blocks in any order; rows past the last position are NaN and must not be read.
  struct Cache {
    DType dtype;
    int64_t head_dim, block_size, n_heads;
    std::vector<std::byte> bytes;
    std::vector<double> squares;  // [n_heads, n_positions, head_dim / 32] sums of squares of 32 columns
    double largest = 0;           // magnitude of an element

    size_t row() const { return row_bytes(dtype, head_dim); }
    size_t of_head() const { return row() * static_cast<size_t>(block_size); }  // in a block
    size_t block() const { return of_head() * static_cast<size_t>(n_heads); }
  };

  static Cache make_cache(DType dtype, int64_t head_dim, int64_t block_size, int64_t n_heads,
                          const std::vector<int32_t>& table, int64_t n_positions, std::mt19937& rng) {
    Cache cache{dtype, head_dim, block_size, n_heads, {}, {}};
    cache.bytes.assign(cache.block() * table.size(), std::byte{0xff});
    for (int64_t i = 0; i < n_heads * n_positions; ++i) {
      const int64_t p = i % n_positions, head = i / n_positions;
      const Floats x = cpu::test::random_floats(head_dim, rng);
      for (size_t d = 0; d + 32 <= x.size(); d += 32)
        cache.squares.push_back(std::inner_product(&x[d], &x[d] + 32, &x[d], 0.0));
      cache.largest = std::max(cache.largest, largest_of(x));
      const auto block = static_cast<size_t>(table[static_cast<size_t>(p / block_size)]);
      quantize_row(
          dtype, x.data(),
          cache.bytes.data() + block * cache.block() + static_cast<size_t>(head) * cache.of_head() +
              static_cast<size_t>(p % block_size) * cache.row(),
          head_dim);
    }
    return cache;
  }

  void attention(Input& input, std::mt19937& rng) const {
    constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0};
    constexpr int64_t kBlockSizes[] = {1, 3, 8, 16, 32, 48, 64, 128};
    cpu::AttentionCall call;
    call.k_dtype = kDTypes[input.between(0, 4)];
    call.v_dtype = kDTypes[input.between(0, 4)];
    const auto head_dim = [&](DType dtype) {
      const int64_t block = dtype_info(dtype).block_elements;
      return block == 1 ? input.between(1, 80) : block * input.between(1, 3);
    };
    call.head_dim_k = head_dim(call.k_dtype);
    call.head_dim_v = head_dim(call.v_dtype);
    call.block_size = kBlockSizes[input.between(0, 7)];
    call.scale = 1.0f / std::sqrt(static_cast<float>(call.head_dim_k));
    if (input.byte() % 3 == 0) call.softcap = 5.0f;
    if (input.byte() % 3 == 0) call.window = input.between(1, 100);
    call.n_queries = input.between(1, std::min<int64_t>(40, tested_.attention.max_queries));
    const int64_t n_positions = input.between(1, 90), n_blocks = (n_positions - 1) / call.block_size + 1;

    std::vector<int32_t> table(static_cast<size_t>(n_blocks));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    std::shuffle(table.begin(), table.end(), rng);
    call.block_table = table.data();
    const Floats q = cpu::test::random_floats(call.n_queries * call.head_dim_k, rng);
    std::vector<const float*> queries;
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < call.n_queries; ++i) {
      queries.push_back(q.data() + i * call.head_dim_k);
      positions.push_back(static_cast<int32_t>(input.between(0, n_positions - 1)));
    }
    call.q = queries.data();
    call.positions = positions.data();
    call.kv_begin = input.between(0, n_blocks - 1) * call.block_size;
    call.kv_end = n_positions;
    const int64_t n_heads = input.between(1, 3);
    const Cache keys = make_cache(call.k_dtype, call.head_dim_k, call.block_size, n_heads, table, n_positions, rng);
    const Cache values = make_cache(call.v_dtype, call.head_dim_v, call.block_size, n_heads, table, n_positions, rng);
    const bool read_in_streams = cpu::reads_in_streams();
    cpu::set_reads_in_streams(input.byte() % 2 == 0);
    attention_of_heads(call, keys, values);
    cpu::set_reads_in_streams(read_in_streams);
  }

  static cpu::AttentionCall call_of_head(cpu::AttentionCall call, const Cache& keys, const Cache& values,
                                         int64_t head) {
    call.k = keys.bytes.data() + static_cast<size_t>(head) * keys.of_head();
    call.v = values.bytes.data() + static_cast<size_t>(head) * values.of_head();
    call.k_block_stride = keys.block();
    call.v_block_stride = values.block();
    return call;
  }

  // Of heads whose rows of a block are neighbours, together if the set has that for such calls.
  void attention_of_heads(const cpu::AttentionCall& call, const Cache& keys, const Cache& values) const {
    const cpu::AttentionKernels& kernels = tested_.attention;
    std::vector<cpu::AttentionCall> calls;
    std::vector<Attended> got(static_cast<size_t>(keys.n_heads), Attended(call));
    for (int64_t h = 0; h < keys.n_heads; ++h) {
      calls.push_back(call_of_head(call, keys, values, h));
      got[static_cast<size_t>(h)].receive(calls.back());
    }
    const bool together = kernels.takes_heads && kernels.takes_heads(calls[0]);
    const size_t n_bytes = kernels.scratch_bytes(calls[0]) * calls.size();
    const cpu::test::AlignedBytes scratch(n_bytes);
    std::memset(scratch.p, 0xff, n_bytes);
    if (together) kernels.attend_heads(calls.data(), keys.n_heads, scratch.p);
    for (size_t h = 0; h < calls.size(); ++h) {
      if (!together || keys.n_heads == 1) got[h] = attend(kernels, calls[h]);
      check_attended(calls[h], got[h], keys, values);
    }
  }

  // How far the score of a query may be off whose columns are rounded to 2^-15 of the greatest of 32: six deviations of the sum of
  // these roundings times a key's columns, of the key where it is largest.
  static double score_rounding(const float* q, const Cache& keys, float scale) {
    const size_t n_blocks = static_cast<size_t>(keys.head_dim) / 32;
    double largest = 0;
    for (size_t p = 0; n_blocks > 0 && p < keys.squares.size(); p += n_blocks) {
      double variance = 0;
      for (size_t b = 0; b < n_blocks; ++b) {
        const double step = largest_of(Floats(q + 32 * b, q + 32 * b + 32)) * scale / 32512;
        variance += step * step / 12 * keys.squares[p + b];
      }
      largest = std::max(largest, variance);
    }
    return 6 * std::sqrt(largest);
  }

  struct Attended {
    Floats acc, sum, max;

    explicit Attended(const cpu::AttentionCall& call)
        : acc(static_cast<size_t>(call.n_queries * call.head_dim_v), NAN),
          sum(static_cast<size_t>(call.n_queries), NAN),
          max(sum) {}
    void receive(cpu::AttentionCall& call) {
      call.acc = acc.data();
      call.sum = sum.data();
      call.max = max.data();
    }
  };

  static Attended attend(const cpu::AttentionKernels& kernels, cpu::AttentionCall call) {
    Attended to(call);
    to.receive(call);
    const cpu::test::AlignedBytes scratch(kernels.scratch_bytes(call));
    std::memset(scratch.p, 0xff, kernels.scratch_bytes(call));
    kernels.attend(call, scratch.p);
    return to;
  }

  // The sums are relative to a maximum, which a set may choose in its own way.
  void check_attended(const cpu::AttentionCall& call, const Attended& got, const Cache& keys,
                      const Cache& values) const {
    const Attended want = attend(scalar_.attention, call);
    const auto n_columns = static_cast<size_t>(call.head_dim_v);
    // Weights are cut off to bf16, in the sum too, which is 2^-7 of one that is just more than a power of two, and are off by 0.3% before;
    // values are rounded to bf16, queries and keys to 16 bits.
    const bool pairs = tested_.isa == cpu::Isa::avx512_bf16 && cpu::avx512_bf16::takes(call);
    const bool amx = tested_.isa == cpu::Isa::avx512_amx;
    const bool code_tiles = amx && cpu::avx512_amx::takes_code_tiles(call);
    const bool tiles = pairs || (amx && cpu::avx512_amx::takes(call) && !code_tiles);
    // Vector kernels and tiles of codes multiply codes of Q8_0 and Q4_0 with 16 bits of query and weight.
    const auto coded = [](DType dtype) { return dtype == DType::Q8_0 || dtype == DType::Q4_0; };
    const bool codes = tested_.isa != cpu::Isa::scalar && coded(call.k_dtype) && coded(call.v_dtype);
    for (size_t i = 0; i < want.sum.size(); ++i) {
      if (want.sum[i] == 0) {  // sees no position
        TANDEM_CHECK(got.sum[i] == 0 && got.max[i] == -INFINITY && got.acc[i * n_columns] == 0);
        continue;
      }
      const double rounding = codes ? score_rounding(call.q[i], keys, call.scale) : 0;
      const double log_sum = std::log(static_cast<double>(want.sum[i])) + want.max[i];
      const bool near = std::abs(std::log(static_cast<double>(got.sum[i])) + got.max[i] - log_sum) <=
                        (tiles   ? 0x1.6p-7
                         : codes ? 4e-4
                                 : 1e-5) *
                                std::max(1.0, std::abs(log_sum)) +
                            rounding;
      if (!near)
        fprintf(stderr, "query %zu: sum %a max %a, scalar %a %a\n", i, got.sum[i], got.max[i], want.sum[i],
                want.max[i]);
      TANDEM_CHECK(near);
      Floats y(n_columns), expected(n_columns);
      for (size_t d = 0; d < n_columns; ++d) {
        y[d] = got.acc[i * n_columns + d] / got.sum[i];
        expected[d] = want.acc[i * n_columns + d] / want.sum[i];
      }
      check_near(
          y, expected, 0,
          (tiles   ? 0x1p-6
           : codes ? 4e-4
                   : 2e-5) *
                  std::max(largest_of(expected), tiles ? 2.0 : 0.1) +  // results may cancel: of the values
              2 * rounding * values.largest);
    }
  }

  const cpu::Kernels& tested_;
  const cpu::Kernels& scalar_;
};

}  // namespace tandem::fuzz
