// tandem synth: type mixes against the counts of public files, random weights against the reference
// dequantizers, vocabularies against the rules of their tokenizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "gguf/dtype.h"
#include "gguf/file.h"
#include "gguf/metadata.h"
#include "gguf/quants.h"
#include "support/dtypes.h"
#include "support/gguf_bytes.h"
#include "support/text_files.h"
#include "tools/quantize/mix.h"
#include "tools/synth/random_vocab.h"
#include "tools/synth/random_weights.h"
#include "tools/synth/shape_model.h"
#include "tools/synth/shapes.h"
#include "tools/synth/synth.h"

namespace tandem::tools {
namespace {

using Counts = std::map<std::string, int>;
using test::file_bytes;

std::vector<DType> dtypes_of(const Shape& shape, FileType type, Mix mix = Mix::standard) {
  const std::vector<ShapeTensor> tensors = tensors_of(shape);
  std::vector<MixTensor> list;
  for (const ShapeTensor& t : tensors) list.push_back({t.name, t.dims, DType::F32});
  return quant_mix(type, {shape.arch, shape.n_layer, shape.n_head, shape.n_head_kv, shape.n_expert}, list,
                   mix);
}

Counts count_dtypes(const char* shape, FileType type, Mix mix = Mix::standard) {
  Counts counts;
  for (const DType dtype : dtypes_of(*find_shape(shape), type, mix)) ++counts[std::string(dtype_name(dtype))];
  return counts;
}

// The numbers of tensors by type that llama.cpp prints when it loads the published files.
TEST(QuantMix, MatchesPublishedFiles) {
  EXPECT_EQ(count_dtypes("tinyllama-1.1b", FileType::Q4_K_M),
            (Counts{{"F32", 45}, {"Q4_K", 135}, {"Q6_K", 21}}));
  EXPECT_EQ(count_dtypes("llama-2-7b", FileType::Q4_0), (Counts{{"F32", 65}, {"Q4_0", 225}, {"Q6_K", 1}}));
  EXPECT_EQ(count_dtypes("llama-2-7b", FileType::Q4_K_M), (Counts{{"F32", 65}, {"Q4_K", 193}, {"Q6_K", 33}}));
  EXPECT_EQ(count_dtypes("llama-2-7b", FileType::Q5_K_M), (Counts{{"F32", 65}, {"Q5_K", 193}, {"Q6_K", 33}}));
  EXPECT_EQ(count_dtypes("llama-2-7b", FileType::Q2_K),
            (Counts{{"F32", 65}, {"Q2_K", 129}, {"Q3_K", 96}, {"Q6_K", 1}}));
  EXPECT_EQ(count_dtypes("llama-2-7b", FileType::Q3_K_M),
            (Counts{{"F32", 65}, {"Q3_K", 129}, {"Q4_K", 92}, {"Q5_K", 4}, {"Q6_K", 1}}));
  EXPECT_EQ(count_dtypes("llama-2-70b", FileType::Q4_K_M),
            (Counts{{"F32", 161}, {"Q4_K", 441}, {"Q5_K", 40}, {"Q6_K", 81}}));
  EXPECT_EQ(count_dtypes("llama-3.1-8b", FileType::Q4_K_M),
            (Counts{{"F32", 66}, {"Q4_K", 193}, {"Q6_K", 33}}));
  EXPECT_EQ(count_dtypes("llama-3.1-8b", FileType::Q8_0), (Counts{{"F32", 66}, {"Q8_0", 226}}));
  EXPECT_EQ(count_dtypes("llama-3.2-3b", FileType::Q4_K_M),
            (Counts{{"F32", 58}, {"Q4_K", 168}, {"Q6_K", 29}}));
  EXPECT_EQ(count_dtypes("llama-2-7b", FileType::Q2_K_S),
            (Counts{{"F32", 65}, {"Q2_K", 221}, {"Q4_K", 4}, {"Q6_K", 1}}));
  EXPECT_EQ(count_dtypes("llama-2-7b", FileType::IQ2_M),
            (Counts{{"F32", 65}, {"IQ2_S", 156}, {"IQ3_S", 69}, {"Q5_K", 1}}));
  EXPECT_EQ(count_dtypes("llama-3.1-8b", FileType::IQ2_XS),
            (Counts{{"F32", 66}, {"IQ2_XS", 188}, {"Q2_K", 5}, {"Q4_K", 32}, {"Q5_K", 1}}));
  EXPECT_EQ(count_dtypes("llama-2-7b", FileType::IQ3_M),
            (Counts{{"F32", 65}, {"IQ3_S", 161}, {"Q4_K", 64}, {"Q6_K", 1}}));
  // 896 is no multiple of 256: every K type falls back.
  EXPECT_EQ(count_dtypes("qwen2.5-0.5b", FileType::Q4_K_M),
            (Counts{{"F32", 121}, {"Q4_K", 12}, {"Q5_0", 132}, {"Q6_K", 12}, {"Q8_0", 13}}));
}

TEST(QuantMix, LeavesFloatsAndSmallTensorsAlone) {
  EXPECT_EQ(count_dtypes("tinyllama-1.1b", FileType::F16), (Counts{{"F32", 45}, {"F16", 156}}));
  // Norms, and the routers of 48 layers.
  EXPECT_EQ(count_dtypes("qwen3-30b-a3b", FileType::Q8_0)["F32"], 48 * 5 + 1);
  EXPECT_EQ(count_dtypes("mixtral-8x7b", FileType::Q4_K_M)["Q8_0"], 64);  // attn_k and attn_v
  EXPECT_EQ(count_dtypes("qwen3-30b-a3b", FileType::MXFP4)["MXFP4"], 48 * 3);
  EXPECT_EQ(count_dtypes("tinyllama-1.1b", FileType::MXFP4, Mix::pure),
            (Counts{{"F32", 45}, {"MXFP4", 156}}));
}

TEST(QuantMix, EveryRowIsAWholeNumberOfBlocks) {
  for (const Shape& shape : all_shapes()) {
    const std::vector<ShapeTensor> tensors = tensors_of(shape);
    for (const FileTypeInfo& type : all_file_types()) {
      for (const Mix mix : {Mix::standard, Mix::pure}) {
        const std::vector<DType> dtypes = dtypes_of(shape, type.type, mix);
        for (size_t i = 0; i < tensors.size(); ++i) {
          ASSERT_EQ(tensors[i].dims[0] % dtype_info(dtypes[i]).block_elements, 0)
              << shape.name << tensors[i].name;
          ASSERT_TRUE(dtype_info(dtypes[i]).from_float);
        }
      }
    }
  }
}

TEST(QuantMix, NamesOfFileTypes) {
  EXPECT_EQ(file_type_from_name("q4_k_m"), FileType::Q4_K_M);
  EXPECT_EQ(file_type_from_name("Q4_K"), FileType::Q4_K_M);
  EXPECT_EQ(file_type_from_name("mxfp4_moe"), FileType::MXFP4);
  EXPECT_EQ(file_type_from_name("Q9"), std::nullopt);
  for (const FileTypeInfo& info : all_file_types()) EXPECT_EQ(file_type_from_name(info.name), info.type);
}

int64_t n_parameters(const char* shape) {
  int64_t n = 0;
  for (const ShapeTensor& tensor : tensors_of(*find_shape(shape))) {
    if (tensor.role != TensorRole::rope_factors) n += tensor.n_elements();
  }
  return n;
}

// The engine takes every kind of shape: tensors and hyperparameters are those that its architecture asks for.
TEST(Shapes, AreModels) {
  std::set<std::string> kinds;
  for (const Shape& shape : all_shapes()) {
    SCOPED_TRACE(shape.name);
    if (!kinds.insert(format("{} {} {}", shape.arch, shape.tied, shape.n_expert > 0)).second) continue;
    Shape few = shape;
    few.n_layer = 2;
    const std::unique_ptr<Model> model = load_shape(few, {.type = FileType::Q4_K_M}, {});
    EXPECT_EQ(model->hparams().n_layer, 2);
    EXPECT_EQ(model->hparams().n_vocab, shape.n_vocab);
    EXPECT_EQ(model->hparams().n_ctx_train, shape.n_ctx);
    EXPECT_TRUE(model->may_leave_on_disk());
  }
}

// The parameter counts in the model cards.
TEST(Shapes, HaveTheirModelsParameters) {
  EXPECT_EQ(n_parameters("tinyllama-1.1b"), 1100048384);
  EXPECT_EQ(n_parameters("llama-2-7b"), 6738415616);
  EXPECT_EQ(n_parameters("llama-2-13b"), 13015864320);
  EXPECT_EQ(n_parameters("llama-2-70b"), 68976648192);
  EXPECT_EQ(n_parameters("llama-3.1-8b"), 8030261248);
  EXPECT_EQ(n_parameters("llama-3.1-70b"), 70553706496);
  EXPECT_EQ(n_parameters("llama-3.2-1b"), 1235814400);
  EXPECT_EQ(n_parameters("llama-3.2-3b"), 3212749824);
  EXPECT_EQ(n_parameters("mistral-7b"), 7241732096);
  EXPECT_EQ(n_parameters("mixtral-8x7b"), 46702792704);
  EXPECT_EQ(n_parameters("qwen2.5-0.5b"), 494032768);
  EXPECT_EQ(n_parameters("qwen2.5-1.5b"), 1543714304);
  EXPECT_EQ(n_parameters("qwen2.5-7b"), 7615616512);
  EXPECT_EQ(n_parameters("qwen2.5-72b"), 72706203648);
  EXPECT_EQ(n_parameters("qwen3-8b"), 8190735360);
  EXPECT_EQ(n_parameters("qwen3-30b-a3b"), 30532122624);
  EXPECT_EQ(n_parameters("gemma-2-2b"), 2614341888);
  EXPECT_EQ(n_parameters("llama-3.1-405b"), 405853388800);
  EXPECT_EQ(n_parameters("seed-oss-36b"), 36151104512);
  EXPECT_EQ(n_parameters("qwen3-next-80b-a3b"),
            81324862720 - 1650471424);  // the card counts the MTP layer too
  // The model cards count the MTP layer too: 110468824832 for Air, 358 B.
  EXPECT_EQ(n_parameters("glm-4.5-air"), 106852251264);
  EXPECT_EQ(n_parameters("glm-4.5"), 352797829024);
  EXPECT_EQ(n_parameters("minimax-m2"), 228689764864);   // the card also counts 13880064 scales of FP8 blocks
  EXPECT_EQ(n_parameters("deepseek-v3"), 671026419200);  // without the MTP layer, which is not in the file
  EXPECT_EQ(n_parameters("kimi-k2"), 1026408232448);
  EXPECT_EQ(n_parameters("deepseek-v2-lite"), 15706484224);
  EXPECT_EQ(n_parameters("glm-4.7-flash"), 29943393920);
  EXPECT_EQ(n_parameters("lfm2-8b-a1b"), 8339929856 + 22 * 32);  // the card leaves out the biases of experts
  EXPECT_EQ(n_parameters("granite-4-h-small"), 32207337984);
  EXPECT_EQ(n_parameters("nemotron-3-nano"), 31577937344 + 23 * 128);  // likewise
  EXPECT_EQ(n_parameters("mistral-nemo-12b"), 12247782400);
  EXPECT_EQ(n_parameters("mistral-small-24b"), 23572403200);
  EXPECT_EQ(n_parameters("codestral-22b"), 22247282688);
  EXPECT_EQ(n_parameters("mistral-large-123b"), 122610069504);
  EXPECT_EQ(n_parameters("mixtral-8x22b"), 140630071296);
  EXPECT_EQ(n_parameters("smollm2-135m"), 134515008);
  EXPECT_EQ(n_parameters("smollm2-360m"), 361821120);
  EXPECT_EQ(n_parameters("smollm2-1.7b"), 1711376384);
  EXPECT_EQ(n_parameters("qwen2.5-32b"), 32763876352);
  EXPECT_EQ(n_parameters("qwen3-0.6b"), 596049920);
  EXPECT_EQ(n_parameters("qwen3-32b"), 32762123264);
  EXPECT_EQ(n_parameters("qwen3-235b-a22b"), 235093634560);
  EXPECT_EQ(n_parameters("gemma-2-9b"), 9241705984);
  EXPECT_EQ(n_parameters("gemma-2-27b"), 27227128320);
  EXPECT_EQ(n_parameters("gemma-3-270m"), 268098176);
  EXPECT_EQ(n_parameters("gemma-3-1b"), 999885952);
  EXPECT_EQ(n_parameters("gemma-3-4b"), 3880099328);
  EXPECT_EQ(n_parameters("gemma-3-12b"), 11765788416);
  // As transformers makes them; the published files of E4B and E2B also have keys and values that are not used.
  EXPECT_EQ(n_parameters("gemma-4-31b"), 30697345340);
  EXPECT_EQ(n_parameters("gemma-4-26b-a4b"), 25233141790);
  EXPECT_EQ(n_parameters("gemma-4-e4b"), 7463013418);
  EXPECT_EQ(n_parameters("gemma-4-e2b"), 4628569379);
  EXPECT_EQ(n_parameters("qwen3.6-35b-a3b"), 34660610688);
  EXPECT_EQ(n_parameters("phi-3-medium"), 13960238080);
  EXPECT_EQ(n_parameters("phi-4"), 14659507200);
  EXPECT_EQ(n_parameters("olmo-2-1b"), 1484916736);
  EXPECT_EQ(n_parameters("olmo-2-7b"), 7298617344);
  EXPECT_EQ(n_parameters("olmo-2-13b"), 13716198400);
  EXPECT_EQ(n_parameters("olmo-2-32b"), 32234279936);
  EXPECT_EQ(n_parameters("gpt-oss-20b"), 20914757184);
  EXPECT_EQ(n_parameters("gpt-oss-120b"), 116829156672);
}

TEST(Shapes, RopeFactorsStretchOnlyLongWaves) {
  const std::vector<float> factors = llama3_rope_factors(*find_shape("llama-3.2-1b"));
  ASSERT_EQ(factors.size(), 32u);
  EXPECT_EQ(factors.front(), 1.0f);
  EXPECT_EQ(factors.back(), 32.0f);
  for (size_t i = 1; i < factors.size(); ++i) EXPECT_GE(factors[i], factors[i - 1]);
}

constexpr float kStddev = 0.02f;

std::vector<std::byte> generated_bytes(const DTypeInfo& info, uint64_t seed, float mean = 0) {
  std::vector<std::byte> bytes(row_bytes(info.dtype, 256 * 1024));
  RandomWeights(std::make_shared<RandomPieces>(info, kStddev, mean), seed).fill(bytes);
  return bytes;
}

// Of the values: the mean and the spread around it, in units of kStddev.
struct Spread {
  double mean, deviation;
};
Spread spread_of(const DTypeInfo& info, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / info.block_bytes * info.block_elements);
  dequantize_row(info.dtype, bytes.data(), values.data(), static_cast<int64_t>(values.size()));
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const float value : values) {
    EXPECT_TRUE(std::isfinite(value)) << info.name;
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const double mean = sum / n;
  return {mean / kStddev, std::sqrt(squares / n - mean * mean) / kStddev};
}

TEST(RandomWeights, HaveTheSpreadAskedFor) {
  for (const DType dtype : test::quantizable_dtypes()) {
    const DTypeInfo& info = dtype_info(dtype);
    const std::vector<std::byte> bytes = generated_bytes(info, 7);
    const Spread spread = spread_of(info, bytes);
    EXPECT_NEAR(spread.mean, 0, 0.05) << info.name;
    EXPECT_NEAR(spread.deviation, 1, 0.05) << info.name;
    EXPECT_EQ(bytes, generated_bytes(info, 7)) << info.name;
    EXPECT_NE(bytes, generated_bytes(info, 8)) << info.name;
  }
  const Spread norm = spread_of(dtype_info(DType::F32), generated_bytes(dtype_info(DType::F32), 7, 1.0f));
  EXPECT_NEAR(norm.mean, 1 / kStddev, 0.05);
  EXPECT_NEAR(norm.deviation, 1, 0.05);
}

// A format on its first day, when nobody has written its quantizer yet.
TEST(RandomWeights, OfADtypeThatCanOnlyBeReadAreFiniteAndOfAboutTheSpread) {
  for (const DType dtype : test::quantizable_dtypes()) {
    DTypeInfo info = dtype_info(dtype);
    // Of NVFP4's four scales, one is nearly always too large.
    if (info.block_elements == 1 || dtype == DType::NVFP4) continue;
    info.from_float = nullptr;
    const Spread spread = spread_of(info, generated_bytes(info, 7));
    EXPECT_GT(spread.deviation, 0.6) << info.name;
    EXPECT_LT(spread.deviation, 1.6) << info.name;
  }
}

// A small shape with every kind of tensor of the llama shapes.
constexpr Shape kSmall = {"small", "Small", "llama", 2,     256,   4, 2, 64, 512, VocabKind::spm_llama,
                          4096,    128,     1e4f,    1e-5f, false, 8};

TEST(Synth, WritesAFileThatReadsBack) {
  const test::TempDir folder;
  const std::string path = folder.path("f.gguf");
  uint64_t n_done = 0, n_bytes = 0;
  const SynthResult result = write_synthetic_model(kSmall, {FileType::Q4_K_M}, path, [&](SynthProgress p) {
    EXPECT_GT(p.n_bytes_done, n_done);
    n_done = p.n_bytes_done;
    n_bytes = p.n_bytes;
  });
  EXPECT_EQ(n_done, n_bytes);
  EXPECT_EQ(result.n_bytes, n_bytes);
  const GgufFile file(path);
  EXPECT_EQ(file.n_tensor_bytes(), n_bytes);
  EXPECT_EQ(file.metadata().get<std::string>("general.architecture"), "llama");
  EXPECT_EQ(file.metadata().get<uint32_t>("general.file_type"), 15u);
  EXPECT_EQ(file.metadata().get<uint32_t>("llama.block_count"), 2u);
  EXPECT_EQ(file.metadata().get_strings("tokenizer.ggml.tokens").size(), 4096u);

  const std::vector<ShapeTensor> tensors = tensors_of(kSmall);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const ShapeTensor& expected : tensors) {
    const TensorInfo& tensor = file.tensor(expected.name);
    EXPECT_TRUE(std::equal(expected.dims.begin(), expected.dims.end(), tensor.dims)) << expected.name;
    std::vector<float> row(static_cast<size_t>(tensor.dims[0]));
    dequantize_row(tensor.dtype, tensor.data, row.data(), tensor.dims[0]);
    for (const float value : row) ASSERT_TRUE(std::isfinite(value)) << expected.name;
    EXPECT_NEAR(row[0], expected.role == TensorRole::norm ? 1 : 0,
                expected.role == TensorRole::rope_factors ? 9 : 0.5);
  }
  EXPECT_EQ(file.tensor("rope_freqs.weight").n_elements(), 32);
}

TEST(Synth, TheSeedDecidesEveryByte) {
  const test::TempDir folder;
  const std::string path = folder.path("f.gguf");
  const auto bytes_of = [&](uint64_t seed) {
    write_synthetic_model(kSmall, {FileType::Q4_0, Mix::standard, seed}, path);
    return file_bytes(path);
  };
  const std::string first = bytes_of(1);
  EXPECT_EQ(first, bytes_of(1));
  EXPECT_NE(first, bytes_of(2));
}

TEST(Synth, LeavesNothingBehindWhenItCannotFinish) {
  const test::TempDir folder;
  const auto stop = [](SynthProgress) { throw Error(ErrorCode::io, "stop"); };
  EXPECT_THROW(write_synthetic_model(kSmall, {}, folder.path("f.gguf"), stop), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("")));
  EXPECT_THROW(write_synthetic_model(kSmall, {}, folder.path("none/f.gguf")), Error);  // no such folder
}

struct VocabCase {
  const char* shape;
  const char* pre;
  std::map<int, std::string> specials;
};

// The suffix of the test's name.
void PrintTo(const VocabCase& c, std::ostream* out) {
  *out << c.shape;
}

class RandomVocab : public testing::TestWithParam<VocabCase> {};

TEST_P(RandomVocab, IsWellFormed) {
  const VocabCase& c = GetParam();
  const Shape& shape = *find_shape(c.shape);
  Metadata metadata(c.shape);
  add_random_vocab(shape.vocab, shape.n_vocab, 1, metadata);
  EXPECT_EQ(metadata.get<std::string>("tokenizer.ggml.pre"), c.pre);
  const auto tokens = metadata.get_strings("tokenizer.ggml.tokens");
  ASSERT_EQ(tokens.size(), static_cast<size_t>(shape.n_vocab));
  EXPECT_EQ(metadata.get_array<int32_t>("tokenizer.ggml.token_type").size(), tokens.size());
  for (const auto& [id, text] : c.specials) EXPECT_EQ(tokens[static_cast<size_t>(id)], text);

  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    EXPECT_FALSE(tokens[id].empty());
    EXPECT_TRUE(ids.emplace(tokens[id], id).second) << "twice: " << tokens[id];
  }
  if (metadata.has("tokenizer.ggml.scores")) {
    EXPECT_EQ(metadata.get_array<float>("tokenizer.ggml.scores").size(), tokens.size());
    return;
  }
  // Merge i makes token 256 + i out of two tokens with smaller ids.
  const auto merges = metadata.get_strings("tokenizer.ggml.merges");
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ');
    ASSERT_NE(space, std::string_view::npos);
    const std::string_view left = merges[i].substr(0, space), right = merges[i].substr(space + 1);
    const std::string text = std::string(left) + std::string(right);
    ASSERT_EQ(tokens[256 + i], text);
    ASSERT_TRUE(ids.contains(left) && ids.at(left) < 256 + i) << merges[i];
    ASSERT_TRUE(ids.contains(right) && ids.at(right) < 256 + i) << merges[i];
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, RandomVocab,
    testing::Values(VocabCase{"tinyllama-1.1b",
                              "default",
                              {{0, "<unk>"}, {1, "<s>"}, {2, "</s>"}, {3, "<0x00>"}, {13, "<0x0A>"}}},
                    VocabCase{"llama-3.1-8b",
                              "llama-bpe",
                              {{0, "!"},
                               {128000, "<|begin_of_text|>"},
                               {128009, "<|eot_id|>"},
                               {128255, "<|reserved_special_token_247|>"}}},
                    VocabCase{"qwen2.5-0.5b",
                              "qwen2",
                              {{151643, "<|endoftext|>"}, {151645, "<|im_end|>"}, {151664, "<|file_sep|>"}}},
                    VocabCase{
                        "gemma-2-2b", "default", {{2, "<bos>"}, {107, "<end_of_turn>"}, {217, "<0x00>"}}}));

}  // namespace
}  // namespace tandem::tools
