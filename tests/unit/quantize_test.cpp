// tandem quantize: bytes against the row quantizers, importance from both file formats, options, and
// everything that is rejected; the command as a process.
#include "tools/quantize/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "gguf/quants.h"
#include "gguf/writer.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/text_files.h"
#include "support/tiny_model.h"

namespace tandem::tools {
namespace {

using test::file_bytes;
using testing::HasSubstr;

// The message thrown by the call; fails the test if it throws nothing.
template <class Fn>
Error error_thrown(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::bug, ""};
}

class Quantize : public testing::Test {
 protected:
  test::TinyShape shape{.n_embd = 256, .n_ff = 512, .dtype = DType::F16};

  void SetUp() override {
    in = directory.path("in.gguf");
    out = directory.path("out.gguf");
    test::tiny_llama(shape).write(in);
  }
  void quantize(const QuantizeOptions& options, const ImportanceMatrix* imatrix = nullptr) {
    const GgufFile file(in);
    write_quantized(file, prepare_quantize(file, options, imatrix), options, imatrix, out);
  }
  std::map<std::string, DType> planned(const QuantizeOptions& options,
                                       const ImportanceMatrix* imatrix = nullptr) {
    const GgufFile file(in);
    const QuantizeJob plan = prepare_quantize(file, options, imatrix);
    std::map<std::string, DType> dtypes;
    for (const QuantizedTensor& tensor : plan.tensors)
      dtypes[std::string(tensor.source->name)] = tensor.dtype;
    return dtypes;
  }
  test::Outcome run(const std::string& arguments) {
    return test::shell("", "quantize " + arguments + " 2>&1");
  }

  test::TempDir directory;
  std::string in, out;
};

// The bytes of `source` as `dtype`, row by row on one thread. factors: of its matrices, or nullptr.
std::string reference_bytes(const TensorInfo& source, DType dtype, const float* importance = nullptr, const float* factors = nullptr) {
  const int64_t width = source.dims[0];
  std::vector<float> row(static_cast<size_t>(width));
  const size_t n_bytes = row_bytes(dtype, width);
  std::string bytes(n_bytes * static_cast<size_t>(source.n_rows()), '\0');
  for (int64_t r = 0; r < source.n_rows(); ++r) {
    const float* weights = importance ? importance + r / source.dims[1] * width : nullptr;
    const auto at = static_cast<size_t>(r);
    dequantize_row(source.dtype, source.data + at * row_bytes(source.dtype, width), row.data(), width);
    const float inverse = factors ? 1.0f / factors[r / source.dims[1]] : 1.0f;
    for (float& x : row) x *= inverse;
    quantize_row(dtype, row.data(), bytes.data() + at * n_bytes, width, weights);
  }
  return bytes;
}

// The factors that a tensor is stored with; nullptr: none.
const float* factors_of(const GgufFile& file, const TensorInfo& tensor) {
  std::string name(tensor.name);
  if (!name.ends_with(".weight")) return nullptr;
  const TensorInfo* scale = file.find_tensor(name.replace(name.size() - 6, 6, "scale"));
  return scale ? reinterpret_cast<const float*>(scale->data) : nullptr;
}

std::string bytes_of(const TensorInfo& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), tensor.n_bytes};
}

TEST_F(Quantize, EveryTypeHasTheBytesOfItsRowQuantizer) {
  shape.n_layer = 1;
  shape.n_ff = 256;
  test::tiny_llama(shape).write(in);
  std::map<std::pair<std::string, DType>, std::string> references;  // many types have tensors of the same dtype
  for (const FileTypeInfo& type : all_file_types()) {
    QuantizeOptions options{.type = type.type, .n_threads = 3};
    quantize(options);
    const GgufFile before(in), after(out);
    EXPECT_EQ(after.metadata().get<uint32_t>("general.file_type"), static_cast<uint32_t>(type.type));
    EXPECT_EQ(after.metadata().get<uint32_t>("general.quantization_version"), 2u);
    EXPECT_EQ(after.metadata().get<std::string>("general.architecture"), "llama");
    size_t n_base = 0, n_scales = 0;
    for (const TensorInfo& tensor : after.tensors()) {
      n_scales += tensor.name.ends_with(".scale");
      if (tensor.name.ends_with(".scale")) continue;
      const TensorInfo& source = before.tensor(tensor.name);
      EXPECT_EQ(tensor.shape_text(), source.shape_text());
      std::string& reference = references[{std::string(tensor.name), tensor.dtype}];
      if (reference.empty()) reference = reference_bytes(source, tensor.dtype, nullptr, factors_of(after, tensor));
      EXPECT_EQ(bytes_of(tensor), reference) << type.name << " " << tensor.name;
      n_base += tensor.dtype == type.base;
    }
    EXPECT_EQ(n_base > 0, type.type != FileType::MXFP4) << type.name;  // no experts here
    EXPECT_EQ(n_scales > 0, type.type == FileType::NVFP4) << type.name;
    EXPECT_EQ(after.tensors().size(), before.tensors().size() + n_scales);
  }
}

// NVFP4's own scales are coarse for the weights of large models; with a factor of the matrix they are not.
TEST_F(Quantize, Nvfp4HasAFactorForEachMatrix) {
  shape.n_expert = 4;
  shape.n_expert_used = 2;
  shape.dtype = DType::F32;
  test::TinyModel model = test::tiny_llama(shape);
  for (auto& [name, t] : model.tensors) {  // a hundredth of the size; the first expert is zeros
    if (t.dims.size() < 2) continue;
    auto* x = reinterpret_cast<float*>(t.data.data());
    const size_t n = t.data.size() / sizeof(float), n_zero = t.dims.size() > 2 ? n / 4 : 0;
    for (size_t i = 0; i < n; ++i) x[i] *= i < n_zero ? 0.0f : 0.01f;
  }
  model.write(in);
  QuantizeOptions options{.type = FileType::NVFP4, .n_threads = 3};
  options.rules.push_back({"attn_k.weight", Regex("attn_k.weight", ""), DType::NVFP4});
  quantize(options);
  const GgufFile before(in), after(out);
  EXPECT_EQ(after.find_tensor("token_embd.scale"), nullptr);
  const TensorInfo& of_experts = after.tensor("blk.0.ffn_up_exps.scale");
  EXPECT_EQ(of_experts.dims[0], 4);
  EXPECT_EQ(reinterpret_cast<const float*>(of_experts.data)[0], 1.0f);
  int n = 0;
  for (const TensorInfo& t : after.tensors()) {
    if (t.dtype != DType::NVFP4 || t.name.starts_with("token_embd")) continue;
    SCOPED_TRACE(t.name);
    const TensorInfo& source = before.tensor(t.name);
    const float* factors = factors_of(after, t);
    ASSERT_NE(factors, nullptr);
    double with = 0, without = 0, size = 0;
    std::vector<float> x(static_cast<size_t>(t.dims[0])), y(x.size());
    for (int64_t r = 0; r < t.n_rows(); ++r) {
      dequantize_row(source.dtype, source.data + static_cast<size_t>(r) * row_bytes(source.dtype, t.dims[0]), x.data(), t.dims[0]);
      dequantize_row(t.dtype, t.data + static_cast<size_t>(r) * row_bytes(t.dtype, t.dims[0]), y.data(), t.dims[0]);
      const double factor = factors[r / t.dims[1]];
      for (size_t i = 0; i < x.size(); ++i) with += std::pow(factor * y[i] - x[i], 2);
      std::string plain(row_bytes(t.dtype, t.dims[0]), '\0');
      quantize_row(t.dtype, x.data(), plain.data(), t.dims[0], nullptr);
      dequantize_row(t.dtype, plain.data(), y.data(), t.dims[0]);
      for (size_t i = 0; i < x.size(); ++i) without += std::pow(y[i] - x[i], 2);
      for (const float w : x) size += w * w;
    }
    EXPECT_LT(std::sqrt(with / size), 0.11);
    EXPECT_LT(with, 0.9 * without);
    ++n;
  }
  EXPECT_GE(n, 6);
  // Once more: the factors are kept.
  std::filesystem::rename(out, in);
  quantize({.type = FileType::Q8_0, .allow_requantize = true});
  EXPECT_EQ(bytes_of(GgufFile(out).tensor("blk.0.ffn_up_exps.scale")), bytes_of(GgufFile(in).tensor("blk.0.ffn_up_exps.scale")));
}

TEST_F(Quantize, ThreadsDoNotMatter) {
  quantize({.type = FileType::Q4_K_M, .n_threads = 1});
  const std::string alone = file_bytes(out);
  quantize({.type = FileType::Q4_K_M, .n_threads = 4});
  EXPECT_EQ(file_bytes(out), alone);
}

TEST_F(Quantize, CopyKeepsEveryByte) {
  quantize({});
  const GgufFile before(in), after(out);
  for (const TensorInfo& tensor : after.tensors()) {
    EXPECT_EQ(tensor.dtype, before.tensor(tensor.name).dtype);
    EXPECT_EQ(bytes_of(tensor), bytes_of(before.tensor(tensor.name)));
  }
  EXPECT_EQ(after.metadata().has("general.file_type"), before.metadata().has("general.file_type"));
}

TEST_F(Quantize, OptionsChooseTypes) {
  auto dtypes = planned({.type = FileType::Q2_K});
  EXPECT_EQ(dtypes["output.weight"], DType::Q6_K);
  EXPECT_EQ(dtypes["blk.0.ffn_down.weight"], DType::Q3_K);
  EXPECT_EQ(dtypes["blk.0.attn_norm.weight"], DType::F32);
  dtypes = planned({.type = FileType::Q2_K, .mix = Mix::pure});
  EXPECT_EQ(dtypes["output.weight"], DType::Q2_K);
  EXPECT_EQ(dtypes["blk.0.ffn_down.weight"], DType::Q2_K);
  EXPECT_EQ(planned({.type = FileType::Q2_K, .leave_output = true})["output.weight"], DType::F16);
  dtypes = planned({.type = FileType::Q4_0, .output_dtype = DType::Q8_0, .token_embd_dtype = DType::Q5_0});
  EXPECT_EQ(dtypes["output.weight"], DType::Q8_0);
  EXPECT_EQ(dtypes["token_embd.weight"], DType::Q5_0);

  QuantizeOptions rules{.type = FileType::Q4_0};
  rules.rules.push_back({"blk\\.1\\..*attn_v", Regex("blk\\.1\\..*attn_v", ""), DType::Q8_0});
  rules.rules.push_back({"attn_", Regex("attn_", ""), DType::Q5_1});
  dtypes = planned(rules);
  EXPECT_EQ(dtypes["blk.0.attn_v.weight"], DType::Q5_1);
  EXPECT_EQ(dtypes["blk.1.attn_v.weight"], DType::Q8_0);
  EXPECT_EQ(dtypes["blk.1.attn_norm.weight"], DType::F32);
  EXPECT_EQ(dtypes["blk.1.ffn_up.weight"], DType::Q4_0);
}

TEST_F(Quantize, RowsThatDoNotFitFallBack) {
  shape.n_embd = 96;
  SetUp();
  const GgufFile file(in);
  const QuantizeJob plan = prepare_quantize(file, {.type = FileType::Q4_K_S}, nullptr);
  EXPECT_GT(plan.n_fallback, 0u);
  EXPECT_EQ(planned({.type = FileType::Q4_K_S})["blk.0.ffn_up.weight"], DType::Q5_0);
}

// ---- importance

// The format of `tandem imatrix` and llama-imatrix.
void write_gguf_imatrix(const std::string& path, const std::string& name, int64_t n_columns, int64_t n_mat,
                        const std::vector<float>& sums, const std::vector<float>& counts) {
  GgufWriter writer(path);
  writer.metadata().set("general.type", Value("imatrix"));
  writer.metadata().set("imatrix.datasets", Value(std::vector<std::string>{"calibration.txt"}));
  writer.metadata().set("imatrix.chunk_count", Value(uint32_t{7}));
  writer.metadata().set("imatrix.chunk_size", Value(uint32_t{512}));
  writer.add_tensor(name + ".in_sum2", DType::F32, std::vector<int64_t>{n_columns, n_mat});
  writer.add_tensor(name + ".counts", DType::F32, std::vector<int64_t>{1, n_mat});
  writer.write_tensor(name + ".in_sum2", std::as_bytes(std::span(sums)));
  writer.write_tensor(name + ".counts", std::as_bytes(std::span(counts)));
  writer.finish();
}

TEST_F(Quantize, ReadsBothImatrixFormats) {
  const std::string path = directory.path("imatrix");
  write_gguf_imatrix(path, "blk.0.x.weight", 2, 3, {2, 4, 9, 9, 10, 20}, {2, 0, 10});
  ImportanceMatrix matrix = read_imatrix(path);
  EXPECT_EQ(matrix.dataset, "calibration.txt");
  EXPECT_EQ(matrix.n_chunks, 7u);
  ASSERT_NE(matrix.find("blk.0.x.weight"), nullptr);
  EXPECT_EQ(*matrix.find("blk.0.x.weight"), (std::vector<float>{1, 2, 1, 1, 1, 2}));
  EXPECT_EQ(matrix.find("blk.1.x.weight"), nullptr);

  test::ByteString dat;
  dat.u32(2).u32(1).raw("a").u32(4).u32(2).number(8.0f).number(2.0f);
  dat.u32(1).raw("b").u32(0).u32(1).number(3.0f).u32(9).u32(4).raw("text");
  test::write_file(path, dat.bytes());
  matrix = read_imatrix(path);
  EXPECT_EQ(*matrix.find("a"), (std::vector<float>{2, 0.5f}));
  EXPECT_EQ(*matrix.find("b"), (std::vector<float>{3}));
  EXPECT_EQ(matrix.n_chunks, 9u);
  EXPECT_EQ(matrix.dataset, "text");
  for (size_t n = 0; n < dat.bytes().size() - 12; ++n) {  // cut anywhere before the optional end
    test::write_file(path, dat.bytes().substr(0, n));
    EXPECT_EQ(error_thrown([&] { read_imatrix(path); }).code(), ErrorCode::bad_file) << n;
  }
}

TEST_F(Quantize, BadImatricesAreRefused) {
  const std::string path = directory.path("imatrix");
  const auto message = [&] {
    const Error error = error_thrown([&] { read_imatrix(path); });
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    return std::string(error.what());
  };
  write_gguf_imatrix(path, "w", 2, 1, {1, std::numeric_limits<float>::quiet_NaN()}, {1});
  EXPECT_THAT(message(), HasSubstr("importance of w: value 1 is nan"));
  write_gguf_imatrix(path, "w", 2, 1, {-1, 1}, {1});
  EXPECT_THAT(message(), HasSubstr("value 0 is -1"));
  std::filesystem::copy_file(in, path, std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(message(), HasSubstr("imatrix"));
}

TEST_F(Quantize, ImportanceReachesTheRowsOfEachExpert) {
  shape.n_expert = 3;
  shape.n_expert_used = 2;
  SetUp();
  const std::string name = "blk.0.ffn_up_exps.weight";
  ImportanceMatrix matrix{directory.path("im.gguf")};
  std::vector<float>& values = matrix.entries[name];
  for (int i = 0; i < 3 * 256; ++i) values.push_back(1.0f + static_cast<float>(i * 7 % 31));
  quantize({.type = FileType::Q4_K_S, .n_threads = 2}, &matrix);
  const GgufFile before(in), after(out);
  EXPECT_EQ(bytes_of(after.tensor(name)), reference_bytes(before.tensor(name), DType::Q4_K, values.data()));
  EXPECT_NE(bytes_of(after.tensor(name)), reference_bytes(before.tensor(name), DType::Q4_K));
  EXPECT_EQ(after.metadata().get<std::string>("quantize.imatrix.file"), matrix.path);
  EXPECT_EQ(after.metadata().get<uint32_t>("quantize.imatrix.entries_count"), 1u);
  values.pop_back();
  EXPECT_THAT(error_thrown([&] { quantize({.type = FileType::Q4_K_S}, &matrix); }).what(),
              HasSubstr("found 767 values, needed 768"));
}

// ---- refusals

TEST_F(Quantize, InvalidWeightsAreCountedAndNamed) {
  test::TinyModel model = test::tiny_llama(shape);
  auto* halves = reinterpret_cast<uint16_t*>(model.tensors["blk.1.ffn_up.weight"].data.data());
  halves[5] = 0x7e00;      // NaN
  halves[70000] = 0x7c00;  // infinity
  halves[70001] = 0xfe00;
  model.write(in);
  const std::string old = test::small_gguf().bytes();
  test::write_file(out, old);
  const Error error = error_thrown([&] { quantize({.type = FileType::Q4_0, .n_threads = 2}); });
  EXPECT_EQ(error.code(), ErrorCode::bad_file);
  EXPECT_THAT(error.what(),
              HasSubstr("tensor blk.1.ffn_up.weight: found 2 NaN, 1 infinite of 131072 weights"));
  EXPECT_EQ(file_bytes(out), old);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path("")), {}), 2);  // no leftovers
}

TEST_F(Quantize, WeightsTooLargeForF16AreRejected) {
  shape.dtype = DType::F32;
  test::TinyModel model = test::tiny_llama(shape);
  reinterpret_cast<float*>(model.tensors["blk.0.attn_q.weight"].data.data())[3] = -1e5f;
  model.write(in);
  EXPECT_THAT(error_thrown([&] { quantize({.type = FileType::F16}); }).what(),
              HasSubstr("tensor blk.0.attn_q.weight: found 1 too large for F16"));
  quantize({.type = FileType::BF16});
}

TEST_F(Quantize, RequantizingNeedsPermission) {
  quantize({.type = FileType::Q8_0});
  std::filesystem::rename(out, in);
  const Error error = error_thrown([&] { quantize({.type = FileType::Q4_0}); });
  EXPECT_EQ(error.code(), ErrorCode::bad_file);
  EXPECT_THAT(error.what(), HasSubstr("is already Q8_0"));
  quantize({.type = FileType::Q8_0});  // nothing to convert
  quantize({.type = FileType::Q4_0, .allow_requantize = true});
  EXPECT_EQ(GgufFile(out).tensor("blk.0.attn_q.weight").dtype, DType::Q4_0);
}

TEST_F(Quantize, TheInputIsNeverTheOutput) {
  const std::string before = file_bytes(in);
  std::filesystem::create_hard_link(in, directory.path("hard"));
  std::filesystem::create_symlink(in, directory.path("soft"));
  for (const char* name : {"in.gguf", "./in.gguf", "hard", "soft"}) {
    out = directory.path(name);
    EXPECT_EQ(error_thrown([&] { quantize({.type = FileType::Q4_0}); }).code(), ErrorCode::usage) << name;
  }
  EXPECT_EQ(file_bytes(in), before);
}

TEST_F(Quantize, KeepsTheParts) {
  const GgufFile whole(in);
  constexpr uint16_t kParts = 2;
  for (uint16_t part = 0; part < kParts; ++part) {
    GgufWriter writer(directory.path("s-0000" + std::to_string(part + 1) + "-of-00002.gguf"));
    if (part == 0) writer.metadata() = whole.metadata();
    writer.metadata().set("split.no", Value(part));
    writer.metadata().set("split.count", Value(kParts));
    writer.metadata().set("split.tensors.count", Value(static_cast<int32_t>(whole.tensors().size())));
    std::vector<const TensorInfo*> mine;
    for (size_t i = part; i < whole.tensors().size(); i += kParts) mine.push_back(&whole.tensors()[i]);
    for (const TensorInfo* t : mine) {
      writer.add_tensor(t->name, t->dtype, std::span(t->dims).first(static_cast<size_t>(t->n_dims)));
    }
    for (const TensorInfo* t : mine) writer.write_tensor(t->name, {t->data, t->n_bytes});
    writer.finish();
  }
  quantize({.type = FileType::Q5_K_M});
  const GgufFile single(out);
  in = directory.path("s-00001-of-00002.gguf");
  quantize({.type = FileType::Q5_K_M, .keep_split = true});
  const GgufFile split(directory.path("out-00001-of-00002.gguf"));
  EXPECT_EQ(split.n_parts(), 2u);
  out = directory.path("joined.gguf");
  quantize({.type = FileType::Q5_K_M});
  const GgufFile joined(out);
  EXPECT_FALSE(joined.metadata().has("split.count"));
  for (const TensorInfo& tensor : single.tensors()) {
    EXPECT_EQ(bytes_of(split.tensor(tensor.name)), bytes_of(tensor));
    EXPECT_EQ(bytes_of(joined.tensor(tensor.name)), bytes_of(tensor));
  }
}

// ---- the command

TEST_F(Quantize, CommandNamesTheOutputAfterTheType) {
  TANDEM_NEED_BINARY();
  const test::Outcome outcome = run(in + " q4_k 2");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("blk.1.ffn_down.weight"));  // one line per tensor
  EXPECT_EQ(GgufFile(directory.path("ggml-model-Q4_K.gguf")).metadata().get<uint32_t>("general.file_type"),
            15u);
  EXPECT_EQ(run("--pure " + in + " " + out + " 10").exit_code, 0);  // the number of Q2_K
  EXPECT_EQ(GgufFile(out).tensor("output.weight").dtype, DType::Q2_K);
  EXPECT_EQ(run(in + " " + out + " COPY").exit_code, 0);
  EXPECT_EQ(run(in + " " + out + " q8_0 --tensor-type FFN_UP=q4_1 --tensor-type attn_q=f16").exit_code, 0);
  EXPECT_EQ(GgufFile(out).tensor("blk.0.ffn_up.weight").dtype, DType::Q4_1);
  EXPECT_EQ(GgufFile(out).tensor("blk.0.attn_q.weight").dtype, DType::F16);
}

TEST_F(Quantize, CommandReadsARecipe) {
  TANDEM_NEED_BINARY();
  const std::string recipe = directory.path("recipe.txt");
  test::write_file(recipe,
                   "# more for what matters\n\nffn_down = Q6_K\r\n^blk\\.0\\.attn_[qk]=iq3_s\nattn=Q4_0\n");
  EXPECT_EQ(run(in + " " + out + " Q8_0 --tensor-type attn_v=Q5_0 --recipe " + recipe).exit_code, 0);
  {
    const GgufFile file(out);
    EXPECT_EQ(file.tensor("blk.0.ffn_down.weight").dtype, DType::Q6_K);
    EXPECT_EQ(file.tensor("blk.0.attn_q.weight").dtype, DType::IQ3_S);
    EXPECT_EQ(file.tensor("blk.1.attn_q.weight").dtype, DType::Q4_0);
    EXPECT_EQ(file.tensor("blk.1.attn_v.weight").dtype, DType::Q5_0);
    EXPECT_EQ(file.tensor("blk.1.ffn_up.weight").dtype, DType::Q8_0);
  }
  // The mix of another model.
  const std::string copy = directory.path("copy.gguf");
  EXPECT_EQ(run(in + " " + copy + " Q2_K --recipe " + out).exit_code, 0);
  const GgufFile first(out), second(copy);
  for (const TensorInfo& tensor : first.tensors()) {
    EXPECT_EQ(second.tensor(tensor.name).dtype, tensor.dtype) << tensor.name;
  }
}

TEST_F(Quantize, CommandNamesTheLineOfABadRecipe) {
  TANDEM_NEED_BINARY();
  const std::string recipe = directory.path("recipe.txt");
  for (const char* text : {"attn_q=Q4_0\nattn_k\n", "\n=Q4_0", "# x\nattn_q=Q9_0", "\n(=Q4_0"}) {
    test::write_file(recipe, text);
    const test::Outcome outcome = run(in + " " + out + " Q8_0 --recipe " + recipe);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr("recipe.txt:2")) << text;
  }
  test::write_file(recipe, "# nothing\n");
  EXPECT_THAT(run(in + " " + out + " Q8_0 --recipe " + recipe).out, HasSubstr("no rule"));
  EXPECT_EQ(run(in + " " + out + " Q8_0 --recipe " + directory.path("none")).exit_code, 5);
}

TEST_F(Quantize, CommandWarnsOfFewBitsWithoutImportance) {
  TANDEM_NEED_BINARY();
  EXPECT_THAT(run("--dry-run " + in + " IQ2_XS").out, HasSubstr("IQ2_XS without --imatrix"));
}

TEST_F(Quantize, CommandDryRunWritesNothing) {
  TANDEM_NEED_BINARY();
  const test::Outcome outcome = run("--dry-run " + in + " Q6_K");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("F16       0.12 MiB ->   Q6_K      0.05 MiB"));
  EXPECT_THAT(outcome.out, HasSubstr("total: "));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path("")), {}), 1);
}

TEST_F(Quantize, CommandRefusesBadArguments) {
  TANDEM_NEED_BINARY();
  for (const char* arguments :
       {"", " Q9_K", " Q4_0 two", " Q4_0 2 3", " x.gguf", " Q4_0 --tensor-type attn",
        " Q4_0 --tensor-type '(=q8_0'", " Q4_0 --output-tensor-type Q8_K", " Q4_0 --imatrix"}) {
    const test::Outcome outcome = run(in + arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << ": " << outcome.out;
    EXPECT_THAT(outcome.out, HasSubstr("tandem: error: "));
  }
  EXPECT_EQ(run(in + " " + in + " Q4_0").exit_code, 2);
  EXPECT_EQ(run(directory.path("none.gguf") + " Q4_0").exit_code, 5);
  test::write_file(out, "GGUF?");
  EXPECT_EQ(run(out + " Q4_0").exit_code, 3);
}

}  // namespace
}  // namespace tandem::tools
