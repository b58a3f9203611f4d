// Latent attention in both forms against the scalar reference.
#include "device/cache_dtypes.h"
#include "gpu/attention_scene.h"
#include "graph/latent_form.h"

namespace tandem::gpu_test {
namespace {

std::vector<SequenceStep> one_sequence(int64_t n_tokens, int64_t n_past) {
  std::vector<SequenceStep> one(1);
  one[0].n_tokens = n_tokens;
  one[0].n_past = n_past;
  return one;
}

struct LatentCase {
  LatentAttentionParams op{.n_head = 3, .rank = 64, .n_rot = 32, .key = 64, .value = 32, .scale = 0.1f};
  DType cache = DType::F16, weights = DType::F16, v_weights = DType::F16;
  int64_t block_size = 32;
  std::vector<SequenceStep> sequences = one_sequence(40, 30);

  std::string text() const {
    return format(
        "{} heads of {} and {}, rank {} + {}, cache {}, weights {} and {}, {} tokens behind {}, window {}, "
        "form {}",
        op.n_head, op.key, op.value, op.rank, op.n_rot, dtype_name(cache), dtype_name(weights),
        dtype_name(v_weights), sequences.front().n_tokens, sequences.front().n_past, op.window,
        static_cast<int>(op.form));
  }
};

class GpuLatentAttention : public GpuTest {
 protected:
  void check(LatentCase c, LatentForm form) {
    c.op.form = form;
    SCOPED_TRACE(c.text());
    AttentionCase cache;
    cache.n_head = c.op.n_head;
    cache.n_head_kv = 1;
    cache.head_dim_k = c.op.rank + c.op.n_rot;
    cache.head_dim_v = c.op.rank;
    cache.block_size = c.block_size;
    cache.k_dtype = c.cache;
    cache.values_in_keys = true;
    cache.lengths.clear();
    cache.n_queries.clear();
    for (const SequenceStep& s : c.sequences) {
      cache.lengths.push_back(s.n_past + s.n_tokens);
      cache.n_queries.push_back(s.n_tokens);
    }
    OpCase op(random_, cache.shape());
    AttentionScene(random_, cache).give(op);
    op.builder.set_layer(0);
    const Weight* k_up = op.matrix(c.weights, c.op.rank, c.op.key - c.op.n_rot, c.op.n_head);
    const Weight* v_up = op.matrix(c.v_weights, c.op.value, c.op.rank, c.op.n_head);
    op.finish(op.builder.latent_attention(op.activation(c.op.n_head * c.op.key), c.op, k_up, v_up));
    const StepShape shape{cache.n_tokens(), 1, c.sequences};
    const bool floats = c.cache == DType::F32 && c.weights == DType::F32;
    const bool bfloats = c.cache == DType::BF16 || c.weights == DType::BF16;
    op.expect_match(*device_, shape, floats ? kF32 : bfloats ? 2e-2 : kRounded, OpCase::Rounding::allowed);
  }
  void check_forms(const LatentCase& c) {
    for (const LatentForm form : {LatentForm::expanded, LatentForm::absorbed}) check(c, form);
  }
};

TEST_F(GpuLatentAttention, EveryCacheDtype) {
  for (DType dtype : kCacheDTypes) {
    LatentCase c;
    c.cache = dtype;
    c.block_size = dtype == DType::F16 ? 10 : 32;
    check_forms(c);
  }
}

// Keys of so few columns have no blocks of 256.
TEST_F(GpuLatentAttention, EveryKindOfWeight) {
  using Pair = std::pair<DType, DType>;
  for (const auto& [k, v] : {Pair{DType::F32, DType::F32},
                             {DType::Q8_0, DType::Q8_0},
                             {DType::BF16, DType::F16},
                             {DType::Q4_0, DType::Q4_K},
                             {DType::Q5_1, DType::Q6_K},
                             {DType::IQ4_NL, DType::TQ1_0}}) {
    LatentCase c;
    c.op = {.n_head = 2, .rank = 256, .n_rot = 8, .key = 72, .value = 24, .scale = 0.05f};
    c.weights = k;
    c.v_weights = v;
    c.sequences.front() = {20, 3};
    check(c, LatentForm::expanded);
  }
}

TEST_F(GpuLatentAttention, SizesOfAllKinds) {
  LatentCase wide, uneven, odd;
  wide.op = {.n_head = 2, .rank = 512, .n_rot = 64, .key = 192, .value = 128, .scale = 0.05f};
  uneven.op = {.n_head = 5, .rank = 72, .n_rot = 8, .key = 88, .value = 136, .scale = 0.1f};
  odd.op = {.n_head = 3, .rank = 20, .n_rot = 6, .key = 17, .value = 9, .scale = 0.1f};
  for (LatentCase c : {wide, uneven, odd}) {
    for (const SequenceStep& step : some_of<SequenceStep>({{70, 130}, {5, 0}, {130, 1}, {65, 64}}, 2)) {
      c.sequences = {step};
      check(c, LatentForm::expanded);
    }
  }
  for (int i = 0; i < 6; ++i) {
    LatentCase c;
    c.op.n_head = 1 + random_.below(6);
    c.op.rank = 8 * (1 + random_.below(20));
    c.op.n_rot = 8 * (1 + random_.below(4));
    c.op.key = c.op.n_rot + 8 * (1 + random_.below(12));
    c.op.value = 8 * (1 + random_.below(12));
    if (random_.below(2)) c.op.softcap = 5;
    if (random_.below(2)) c.op.window = 1 + random_.below(90);
    c.sequences = {{2 + random_.below(60), random_.below(100)}};
    check_forms(c);
  }
}

// Longer than a chunk of positions whose keys and values are made at once; with the window behind the first one.
TEST_F(GpuLatentAttention, ChunksOfPositions) {
  LatentCase c;
  c.op = {.n_head = 2, .rank = 8, .n_rot = 8, .key = 16, .value = 8, .scale = 0.2f};
  c.block_size = 64;
  c.sequences = {{12, 4090}};
  check(c, LatentForm::expanded);
  c.op.window = 300;
  check(c, LatentForm::expanded);
  c.op.window = 4096;
  c.sequences = {{3, 8200}};
  check(c, LatentForm::expanded);
}

TEST_F(GpuLatentAttention, SequencesInBothForms) {
  LatentCase c;
  c.op = {.n_head = 2, .rank = 128, .n_rot = 8, .key = 40, .value = 32, .scale = 0.1f};
  c.sequences = {{1, 50}, {60, 0}, {2, 200}, {1, 0}, {70, 10}};
  std::vector<bool> forms;
  for (const SequenceStep& s : c.sequences)
    forms.push_back(expands(c.op, static_cast<double>(s.n_tokens), static_cast<double>(s.n_past)));
  EXPECT_EQ(forms, (std::vector<bool>{false, true, false, false, true}));
  check(c, LatentForm::cheaper);
  check(c, LatentForm::expanded);
}

// Of float weights and a cache of F16, the forms round differently, so the bits show which one ran.
TEST_F(GpuLatentAttention, TakesTheFormOfTheHost) {
  LatentCase c;
  c.sequences = {{64, 0}};
  AttentionCase cache;
  cache.n_head_kv = 1;
  cache.head_dim_k = c.op.rank + c.op.n_rot;
  cache.head_dim_v = c.op.rank;
  cache.values_in_keys = true;
  cache.lengths = cache.n_queries = {64};
  OpCase op(random_, cache.shape());
  AttentionScene(random_, cache).give(op);
  op.builder.set_layer(0);
  const Weight* k_up = op.matrix(DType::F16, c.op.rank, c.op.key - c.op.n_rot, c.op.n_head);
  const Weight* v_up = op.matrix(DType::F16, c.op.value, c.op.rank, c.op.n_head);
  c.op.form = LatentForm::expanded;
  op.finish(op.builder.latent_attention(op.activation(c.op.n_head * c.op.key), c.op, k_up, v_up));
  const std::vector<float> known = op.run(*device_, {64, 1, c.sequences}).front().values;
  const std::vector<float> unknown = op.run(*device_, {64, 1}).front().values;
  EXPECT_NE(known, unknown);
  EXPECT_LT(relative_error(known, unknown), kRounded);
}

}  // namespace
}  // namespace tandem::gpu_test
