// Attention over long texts: in chunks that are merged, heads read together.
#include "cpu/linear_kernels.h"
#include "ops/attention_scene.h"

namespace tandem::cpu {
namespace {

using test::AttentionCase;
using test::check_all_isas;
using test::Random;
using test::range;

// While it lives, memory is read in streams, or is not.
struct InStreams {
  const bool before = reads_in_streams();
  explicit InStreams(bool reads) { set_reads_in_streams(reads); }
  ~InStreams() { set_reads_in_streams(before); }
};

TEST(Attention, LongContextsAreSplitAndMerged) {
  Random random;
  for (int64_t n_head : {1, 8}) {
    AttentionCase c;
    c.n_head = n_head;
    c.n_head_kv = 1;
    c.lengths = {2000 + random.below(200)};
    c.sinks = true;
    c.k_dtype = DType::Q8_0;
    check_all_isas(random, c, "decode");
    c.window = 700;
    check_all_isas(random, c, "decode in a window");
    c.window = 0;
    const int32_t n = static_cast<int32_t>(c.lengths[0]);
    c.tokens = {range(n - 11, n)};
    check_all_isas(random, c, "small batch");
  }
}

// Items of a long text's step are chunks of all heads, whose rows in a block are neighbours; more heads than are read at a
// time, and few queries of each.
TEST(Attention, HeadsOfALongTextAreReadTogether) {
  AttentionCall two;
  two.k_dtype = two.v_dtype = DType::F16;
  two.head_dim_k = two.head_dim_v = 64;
  two.block_size = 32;
  two.n_queries = 2;
  AttentionCall eight = two;
  eight.n_queries = 8;
  for (const Isa isa : supported_isas()) {
    const AttentionKernels& kernels = test::attention_of(isa);
    EXPECT_EQ(kernels.takes_heads && kernels.takes_heads(two), isa != Isa::scalar) << isa_name(isa);
    for (const bool in_streams : {false, true}) {
      const InStreams set(in_streams);
      EXPECT_EQ(kernels.takes_heads && kernels.takes_heads(eight), in_streams && isa >= Isa::avx512)
          << isa_name(isa);
    }
  }
  Random random;
  const DType dtypes[] = {DType::F16, DType::BF16, DType::F32};
  const int64_t dims[] = {16, 48, 64, 128, 272}, blocks[] = {16, 32, 48, 64};
  for (int round = 0; round < 20; ++round) {
    const InStreams set(round < 10);
    AttentionCase c;
    c.n_head_kv = round % 10 == 0 ? 35 : 2 + random.below(4);
    const int64_t group = round == 1 ? 8 : 1 + random.below(8);  // query heads that share a key head
    c.n_head = c.n_head_kv * group;
    c.head_dim_k = round % 10 == 0 ? 16 : dims[random.below(5)];
    c.head_dim_v = round % 10 == 0 ? 16 : dims[random.below(5)];
    c.block_size = blocks[random.below(4)];
    c.k_dtype = dtypes[random.below(3)];
    c.v_dtype = dtypes[random.below(3)];
    c.softcap = random.below(3) == 0 ? 20.0f : 0.0f;
    c.sinks = random.below(2) != 0;
    c.lengths = {random.below(8) == 0 ? 4095 : 4096 + random.below(1000)};
    const auto n = static_cast<int32_t>(c.lengths[0]);
    const auto n_tokens = static_cast<int32_t>(1 + random.below(8 / group));
    c.tokens = {range(n - n_tokens, n)};
    c.spills = round % 2 != 0;
    check_all_isas(random, c, "round " + std::to_string(round));
  }
}

// The same of caches in codes, where memory is read in streams.
TEST(Attention, HeadsOfALongTextInCodesAreReadTogether) {
  const InStreams set(true);
  AttentionCall two;
  two.head_dim_k = two.head_dim_v = 64;
  two.n_queries = 2;
  for (const Isa isa : supported_isas()) {
    const AttentionKernels& kernels = test::attention_of(isa);
    for (const DType dtype : {DType::Q8_0, DType::Q4_0, DType::Q5_1}) {
      two.k_dtype = two.v_dtype = dtype;
      for (const int64_t block_size : {16, 32, 64, 128}) {
        two.block_size = block_size;
        EXPECT_EQ(kernels.takes_heads && kernels.takes_heads(two), isa != Isa::scalar && block_size <= 64)
            << isa_name(isa) << ' ' << dtype_name(dtype) << ' ' << block_size;
      }
    }
  }
  Random random;
  const DType dtypes[] = {DType::Q8_0, DType::Q4_0, DType::Q5_1, DType::Q4_1, DType::Q5_0, DType::IQ4_NL};
  const int64_t dims[] = {32, 64, 96, 128, 256};
  for (int round = 0; round < 20; ++round) {
    AttentionCase c;
    c.n_head_kv = round == 0 ? 35 : 2 + random.below(4);
    const int64_t group = round == 1 ? 8 : 1 + random.below(8);  // query heads that share a key head
    c.n_head = c.n_head_kv * group;
    c.head_dim_k = round == 0 ? 32 : dims[random.below(5)];
    c.head_dim_v = round == 0 ? 32 : dims[random.below(5)];
    c.block_size = 16 << random.below(3);
    c.k_dtype = dtypes[random.below(round % 2 == 0 ? 2 : 6)];
    c.v_dtype = dtypes[random.below(round % 2 == 0 ? 2 : 6)];
    c.softcap = random.below(3) == 0 ? 20.0f : 0.0f;
    c.sinks = random.below(2) != 0;
    c.lengths = {4096 + random.below(1000)};
    const auto n = static_cast<int32_t>(c.lengths[0]);
    const auto n_tokens = static_cast<int32_t>(1 + random.below(8 / group));
    c.tokens = {range(n - n_tokens, n)};
    c.spills = round % 3 == 0;
    check_all_isas(random, c, "round " + std::to_string(round));
  }
}

// The long text is cut into chunks that are merged, short ones are not, and one tile has several queries.
TEST(Attention, ALongTextAmongManyShortOnes) {
  Random random;
  for (const DType dtype : {DType::F16, DType::Q8_0}) {
    AttentionCase c;
    c.n_head = 4;
    c.n_head_kv = 2;
    c.k_dtype = c.v_dtype = dtype;
    c.block_size = 32;
    c.lengths.clear();
    for (int64_t i = 0; i < 70; ++i) c.lengths.push_back(1 + random.below(40));
    c.lengths[33] = 3000 + random.below(100);
    c.sinks = true;
    check_all_isas(random, c, "decode");
    for (const int64_t n : c.lengths) c.tokens.push_back({static_cast<int32_t>(n - 1)});
    c.tokens[33] = range(static_cast<int32_t>(c.lengths[33]) - 5, static_cast<int32_t>(c.lengths[33]));
    check_all_isas(random, c, "several tokens of the long text");
  }
}

}  // namespace
}  // namespace tandem::cpu
