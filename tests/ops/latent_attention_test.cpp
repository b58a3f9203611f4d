// Latent attention in both forms, of every ISA, against a reference in double precision that makes every key and value;
// and which form a step takes.
#include <cmath>

#include "device/cache_dtypes.h"
#include "gguf/quants.h"
#include "graph/latent_form.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::OpBench;
using test::Random;

struct LatentCase {
  LatentAttentionParams op{.n_head = 3, .rank = 32, .n_rot = 8, .key = 24, .value = 20, .scale = 0.2f};
  DType cache = DType::F32, weights = DType::F32;
  int64_t block_size = 16;
  std::vector<SequenceStep> sequences{{40, 0}};
};

// Random weights and rows of a cache, and a step of the tokens after them.
class LatentScene {
 public:
  LatentScene(Random& random, const LatentCase& c)
      : case_(c), bench_(shape_of(c)), q_(random.normals(shape_of(c).max_tokens * c.op.n_head * c.op.key)) {
    const LatentAttentionParams& op = c.op;
    k_up_ = matrix(random, op.rank, op.key - op.n_rot);
    v_up_ = matrix(random, op.value, op.rank);
    q_id_ = bench_.activation(op.n_head * op.key);
    bench_.builder.set_layer(0);
    y_id_ = bench_.builder.latent_attention(q_id_, op, k_up_.weight, v_up_.weight);
    bench_.finish(y_id_);
    fill_cache(random);
    bench_.kv.push_back({cache_.data(), nullptr, c.cache, DType::F16, 1, op.rank + op.n_rot, 0, c.block_size,
                         static_cast<int64_t>(table_.size())});
    std::copy(q_.begin(), q_.end(), bench_.data(q_id_));
    int32_t* positions = bench_.input(Input::positions);
    int32_t* sequences = bench_.input(Input::sequences);
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      for (int64_t i = 0; i < c.sequences[s].n_tokens; ++i) {
        *positions++ = static_cast<int32_t>(c.sequences[s].n_past + i);
        *sequences++ = static_cast<int32_t>(s);
      }
    }
    std::copy(table_.begin(), table_.end(), bench_.input(Input::block_table));
  }

  // With the step's sequences known to the op, or not.
  std::vector<float> run(Isa isa, int n_threads, bool known = true) {
    const int64_t n = shape_of(case_).max_tokens;
    float* y = bench_.data(y_id_);
    const auto size = static_cast<size_t>(n * case_.op.n_head * case_.op.value);
    std::fill(y, y + size, std::nanf(""));
    StepShape shape{n, 0};
    if (known) shape.sequences = case_.sequences;
    bench_.run(isa, shape, n_threads);
    return {y, y + size};
  }

  void set_form(LatentForm form) {
    for (Node& node : bench_.graph.nodes) {
      if (auto* op = std::get_if<LatentAttentionOp>(&node.op)) op->form = form;
    }
  }

  void expect_near(const std::vector<float>& y, double tolerance, const std::string& what) {
    if (expected_.empty()) make_expected();
    double error = 0, size = 0;
    ASSERT_EQ(y.size(), expected_.size());
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_TRUE(std::isfinite(y[i])) << what << " " << i;
      error += std::pow(y[i] - expected_[i], 2);
      size += std::pow(expected_[i], 2);
    }
    EXPECT_LE(std::sqrt(error / size), tolerance) << what;
  }

 private:
  // Of each head, with its values as floats.
  struct Matrix {
    const Weight* weight = nullptr;
    std::vector<float> values;
  };

  static int64_t max_blocks(const LatentCase& c) {
    int64_t most = 0;
    for (const SequenceStep& s : c.sequences) most = std::max(most, s.n_past + s.n_tokens);
    return most / c.block_size + 2;
  }
  static ShapeClass shape_of(const LatentCase& c) {
    ShapeClass shape{0, 1, static_cast<int64_t>(c.sequences.size()), max_blocks(c)};
    for (const SequenceStep& s : c.sequences) shape.max_tokens += s.n_tokens;
    return shape;
  }

  Matrix matrix(Random& random, int64_t n_rows, int64_t n_cols) {
    const int64_t n = case_.op.n_head * n_rows * n_cols;
    Matrix m;
    m.values = random.normals(n, 0.3f);
    std::vector<std::byte> bytes(row_bytes(case_.weights, n));
    quantize_row(case_.weights, m.values.data(), bytes.data(), n);
    dequantize_row(case_.weights, bytes.data(), m.values.data(), n);
    auto* w = const_cast<Weight*>(bench_.raw_weight(case_.weights, std::move(bytes), n_rows, n_cols));
    w->n_mats = case_.op.n_head;
    m.weight = w;
    return m;
  }

  void fill_cache(Random& random) {
    const int64_t n_cols = case_.op.rank + case_.op.n_rot, blocks = max_blocks(case_);
    table_.resize(case_.sequences.size() * static_cast<size_t>(blocks));
    for (size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<int32_t>(i);
    random.shuffle(table_);
    const size_t row = row_bytes(case_.cache, n_cols);
    cache_.assign(row * table_.size() * static_cast<size_t>(case_.block_size), std::byte{0xff});  // NaN
    rows_.resize(case_.sequences.size());
    for (size_t s = 0; s < rows_.size(); ++s) {
      for (int64_t p = 0; p < case_.sequences[s].n_past + case_.sequences[s].n_tokens; ++p) {
        std::vector<float> x = random.normals(n_cols);
        const int32_t block =
            table_[s * static_cast<size_t>(blocks) + static_cast<size_t>(p / case_.block_size)];
        std::byte* to =
            cache_.data() + static_cast<size_t>(block * case_.block_size + p % case_.block_size) * row;
        quantize_row(case_.cache, x.data(), to, n_cols);
        dequantize_row(case_.cache, to, x.data(), n_cols);
        rows_[s].push_back(std::move(x));
      }
    }
  }

  // A head's key and value of a position.
  std::vector<double> key(int64_t head, const std::vector<float>& row) const {
    const LatentAttentionParams& op = case_.op;
    const int64_t n = op.key - op.n_rot;
    std::vector<double> key(static_cast<size_t>(op.key));
    for (int64_t r = 0; r < op.rank; ++r) {
      const float* w = k_up_.values.data() + (head * op.rank + r) * n;
      for (int64_t d = 0; d < n; ++d)
        key[static_cast<size_t>(d)] += static_cast<double>(row[static_cast<size_t>(r)]) * w[d];
    }
    for (int64_t d = 0; d < op.n_rot; ++d)
      key[static_cast<size_t>(n + d)] = row[static_cast<size_t>(op.rank + d)];
    return key;
  }
  std::vector<double> value(int64_t head, const std::vector<float>& row) const {
    const LatentAttentionParams& op = case_.op;
    std::vector<double> value(static_cast<size_t>(op.value));
    for (int64_t d = 0; d < op.value; ++d) {
      const float* w = v_up_.values.data() + (head * op.value + d) * op.rank;
      for (int64_t r = 0; r < op.rank; ++r)
        value[static_cast<size_t>(d)] += static_cast<double>(row[static_cast<size_t>(r)]) * w[r];
    }
    return value;
  }

  void make_expected() {
    const LatentAttentionParams& op = case_.op;
    expected_.resize(q_.size() / static_cast<size_t>(op.key) * static_cast<size_t>(op.value));
    for (int64_t head = 0; head < op.n_head; ++head) {
      int64_t token = 0;
      for (size_t s = 0; s < rows_.size(); ++s) {
        std::vector<std::vector<double>> keys, values;
        for (const std::vector<float>& row : rows_[s]) {
          keys.push_back(key(head, row));
          values.push_back(value(head, row));
        }
        for (int64_t i = 0; i < case_.sequences[s].n_tokens; ++i, ++token) {
          attend(token, head, case_.sequences[s].n_past + i, keys, values);
        }
      }
    }
  }

  void attend(int64_t token, int64_t head, int64_t own, const std::vector<std::vector<double>>& keys,
              const std::vector<std::vector<double>>& values) {
    const LatentAttentionParams& op = case_.op;
    const float* q = q_.data() + (token * op.n_head + head) * op.key;
    double* y = expected_.data() + (token * op.n_head + head) * op.value;
    double total = 0;
    for (int64_t p = first_seen(op, own); p <= own; ++p) {
      double score = 0;
      for (size_t d = 0; d < static_cast<size_t>(op.key); ++d)
        score += q[d] * keys[static_cast<size_t>(p)][d];
      score *= op.scale;
      if (op.softcap > 0) score = op.softcap * std::tanh(score / op.softcap);
      total += std::exp(score);
      for (size_t d = 0; d < static_cast<size_t>(op.value); ++d)
        y[d] += std::exp(score) * values[static_cast<size_t>(p)][d];
    }
    for (int64_t d = 0; d < op.value; ++d) y[d] /= total;
  }

  const LatentCase case_;
  OpBench bench_;
  std::vector<float> q_;
  Matrix k_up_, v_up_;
  TensorId q_id_, y_id_;
  std::vector<int32_t> table_;
  std::vector<std::byte> cache_;
  std::vector<std::vector<std::vector<float>>> rows_;  // by sequence and position, as the cache has them
  std::vector<double> expected_;
};

// Rows of F16 round keys and values; products with blocks round activations to 8 bits; AMX and AVX-512 BF16 round to BF16.
double tolerance(const LatentCase& c, Isa isa) {
  if (c.weights != DType::F32 && c.weights != DType::F16 && c.weights != DType::BF16) return 2e-2;
  if (isa >= Isa::avx512_bf16 || c.cache == DType::BF16 || c.weights == DType::BF16) return 1e-2;
  return c.cache == DType::F32 && c.weights == DType::F32 ? 1e-5 : 2e-3;
}

constexpr LatentForm kForms[] = {LatentForm::absorbed, LatentForm::expanded, LatentForm::cheaper};

void check_forms(Random& random, LatentCase c, const std::string& what,
                 std::span<const LatentForm> forms = kForms) {
  for (const LatentForm form : forms) {
    c.op.form = form;
    LatentScene scene(random, c);
    for (Isa isa : supported_isas()) {
      const std::string name = format("{} form {} {}", what, static_cast<int>(form), isa_name(isa));
      const std::vector<float> one = scene.run(isa, 1);
      scene.expect_near(one, tolerance(c, isa), name);
      for (int threads : {2, 3}) {
        const std::vector<float> more = scene.run(isa, threads);
        EXPECT_EQ(std::memcmp(one.data(), more.data(), one.size() * sizeof(float)), 0)
            << name << " " << threads;
      }
    }
  }
}

TEST(LatentAttention, EveryCacheDType) {
  Random random;
  for (DType dtype : kCacheDTypes) {
    LatentCase c;
    c.op.n_rot = 32;
    c.op.key = 56;
    c.cache = dtype;
    c.block_size = 1 + random.below(40);
    c.sequences = {{30 + random.below(20), random.below(100)}};
    check_forms(random, c, std::string(dtype_name(dtype)));
  }
}

TEST(LatentAttention, EveryKindOfWeight) {
  Random random;
  for (DType dtype : {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q5_1}) {
    LatentCase c;
    c.op = {.n_head = 2, .rank = 64, .n_rot = 16, .key = 48, .value = 40, .scale = 0.1f};
    c.cache = DType::F16;
    c.weights = dtype;
    c.sequences = {{70, 5}};
    check_forms(random, c, std::string(dtype_name(dtype)));
  }
}

TEST(LatentAttention, SizesOfAllKinds) {
  Random random;
  for (int i = 0; i < 12; ++i) {
    LatentCase c;
    c.op.n_head = 1 + random.below(7);
    c.op.rank = 1 + random.below(90);
    c.op.n_rot = 1 + random.below(30);
    c.op.key = c.op.n_rot + 1 + random.below(60);
    c.op.value = 1 + random.below(70);
    c.op.scale = 1.0f / std::sqrt(static_cast<float>(c.op.rank));
    if (random.below(2)) c.cache = DType::F16;
    c.block_size = 1 + random.below(70);
    if (random.below(2)) c.op.softcap = 4;
    if (random.below(2)) c.op.window = 1 + random.below(120);
    c.sequences.clear();
    for (int64_t s = random.below(4); s >= 0; --s)
      c.sequences.push_back({1 + random.below(90), random.below(3) * random.below(150)});
    check_forms(random, c,
                format("{} heads, rank {}, {} rotated, {} and {}, window {}", c.op.n_head, c.op.rank,
                       c.op.n_rot, c.op.key, c.op.value, c.op.window));
  }
}

// Heads so many that chunks have 256 positions: results over several are joined, and the first tokens see none of the
// last.
TEST(LatentAttention, ChunksOfPositions) {
  Random random;
  LatentCase c;
  c.op = {.n_head = 26, .rank = 8, .n_rot = 64, .key = 192, .value = 128, .scale = 0.05f};
  c.cache = DType::F16;
  c.block_size = 32;
  c.sequences = {{12, 505}};
  check_forms(random, c, "without a window", std::span(kForms).subspan(1, 1));
  c.op.window = 100;
  c.sequences = {{70, 240}};
  check_forms(random, c, "with a window", std::span(kForms).subspan(1, 1));
}

// Either form leaves its own rounding in the result, which shows which one ran: equal bits if it ran for as many tokens at once,
// else far less of a difference (a product of few tokens sums in another order). Not with tiles, which round many tokens in a way of
// their own.
TEST(LatentAttention, TakesTheCheaperFormForEachSequence) {
  std::vector<Isa> isas = supported_isas();
  std::erase(isas, Isa::avx512_amx);
  Random random;
  LatentCase c;
  c.op = {.n_head = 2, .rank = 256, .n_rot = 16, .key = 48, .value = 32, .scale = 0.1f};
  c.cache = DType::F16;
  c.weights = DType::Q8_0;
  c.sequences = {{1, 50}, {60, 0}, {2, 300}, {40, 300}, {1, 0}};
  LatentScene scene(random, c);
  const auto run = [&](LatentForm form, bool known) {
    scene.set_form(form);
    return scene.run(isas.back(), 2, known);
  };
  const std::vector<float> absorbed = run(LatentForm::absorbed, true),
                           expanded = run(LatentForm::expanded, true),
                           cheaper = run(LatentForm::cheaper, true);
  EXPECT_EQ(run(LatentForm::cheaper, false), absorbed) << "of sequences that are not known";
  auto at = std::ptrdiff_t{0};
  int n_expanded = 0;
  for (const SequenceStep& s : c.sequences) {
    const bool expect = expands(c.op, static_cast<double>(s.n_tokens), static_cast<double>(s.n_past));
    n_expanded += expect;
    const std::ptrdiff_t n = s.n_tokens * c.op.n_head * c.op.value;
    const auto equal = [&](const std::vector<float>& other) {
      return std::equal(cheaper.begin() + at, cheaper.begin() + at + n, other.begin() + at);
    };
    EXPECT_EQ(equal(expanded), expect || s.n_tokens == 1) << s.n_tokens << " behind " << s.n_past;
    const auto distance = [&](const std::vector<float>& other) {
      double sum = 0;
      for (std::ptrdiff_t i = at; i < at + n; ++i) {
        const auto j = static_cast<size_t>(i);
        sum += std::pow(cheaper[j] - other[j], 2);
      }
      return std::sqrt(sum);
    };
    if (s.n_tokens > 1) {
      EXPECT_EQ(2 * distance(absorbed) < distance(expanded), !expect) << s.n_tokens << " behind " << s.n_past;
    }
    at += n;
  }
  EXPECT_EQ(n_expanded, 2);
}

TEST(LatentForm, TheCheaperOneByOperations) {
  LatentAttentionParams v3{.n_head = 128, .rank = 512, .n_rot = 64, .key = 192, .value = 128};
  EXPECT_FALSE(expands(v3, 1, 0));
  EXPECT_FALSE(expands(v3, 51, 0));
  EXPECT_TRUE(expands(v3, 52, 0));
  EXPECT_FALSE(expands(v3, 170, 1e7));
  EXPECT_TRUE(expands(v3, 172, 1e7));
  const LatentOps ops = latent_ops(v3, 512, 4096);
  const double pairs = 512 * 4096 + 512 * 513 / 2;
  EXPECT_DOUBLE_EQ(ops.absorbed, 2.0 * 128 * (pairs * (576 + 512) + 512.0 * 512 * 256));
  EXPECT_DOUBLE_EQ(ops.expanded, 2.0 * 128 * (pairs * (192 + 128) + (4096.0 + 512 + 8) * 512 * 256));
  v3.form = LatentForm::expanded;
  EXPECT_FALSE(expands(v3, 1, 0)) << "steps of one token are recorded";
  EXPECT_TRUE(expands(v3, 2, 5000));
  v3.form = LatentForm::absorbed;
  EXPECT_FALSE(expands(v3, 512, 0));
}

}  // namespace
}  // namespace tandem::cpu
