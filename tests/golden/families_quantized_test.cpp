// Every architecture from folders whose matrices are in NVFP4 or FP8: weights are those of the folder with the same numbers as floats,
// NVFP4 stays what it is where files can have it, and models of it run.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "gguf/file.h"
#include "gguf/quants.h"
#include "support/family_model.h"
#include "support/gguf_bytes.h"
#include "support/hf_quantized.h"
#include "tools/matrix_factor.h"
#include "tools/quantize/quantize.h"

namespace tandem {
namespace {

using test::HfFolder;
using test::HfQuantization;

class FamiliesQuantized : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { family_ = test::load_family(GetParam()); }

  // Makes folders of random weights, and returns how many matrices are quantized.
  int quantize(HfQuantization quantization, unsigned seed) {
    return quantize_matrices(test::family_folder(family_), quantization, seed, quantized_, floats_);
  }
  std::string convert(const HfFolder& folder, const std::string& name) const {
    folder.write(directory_.path(name));
    tools::ConvertOptions o;
    o.type = tools::OutType::F32;
    o.n_threads = 2;
    o.name = "same";
    const std::string path = directory_.path(name + ".gguf");
    write_conversion(tools::prepare_conversion(directory_.path(name), o), o, path);
    return path;
  }

  // The weights, times the factors of their matrices.
  static std::vector<float> weights_of(const GgufFile& file, const TensorInfo& t) {
    std::vector<float> weights(static_cast<size_t>(t.n_elements()));
    dequantize_row(t.dtype, t.data, weights.data(), t.n_elements());
    if (t.dtype != DType::NVFP4) return weights;
    const std::string name(t.name);
    const TensorInfo& scale = file.tensor(name.substr(0, name.size() - std::string_view("weight").size()) + "scale");
    const auto* factors = reinterpret_cast<const float*>(scale.data);
    const size_t of_matrix = weights.size() / static_cast<size_t>(scale.dims[0]);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] *= factors[i / of_matrix];
    return weights;
  }

  // Returns how many tensors are NVFP4.
  int expect_same_weights(const std::string& path, const std::string& wanted_path, bool nvfp4) const {
    const GgufFile found(path), wanted(wanted_path);
    int n = 0, n_wanted = 0;
    for (const TensorInfo& t : wanted.tensors()) {
      SCOPED_TRACE(t.name);
      const TensorInfo& other = found.tensor(t.name);
      n += other.dtype == DType::NVFP4;
      const bool is_plain = t.name.find("attn_") != std::string_view::npos || t.name.ends_with("ffn_up.weight");
      if (!tools::factor_name(t.name).empty() && is_plain && t.dims[0] % 64 == 0) {
        EXPECT_EQ(other.dtype, nvfp4 ? DType::NVFP4 : t.dtype);
      }
      n_wanted += t.dtype == DType::NVFP4;
      const std::vector<float> x = weights_of(found, other), y = weights_of(wanted, t);
      EXPECT_EQ(x.size(), y.size());
      for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
        if (std::abs(x[i] - y[i]) <= 4e-7f * std::abs(y[i])) continue;
        ADD_FAILURE() << "weight " << i << " is " << x[i] << ", not " << y[i];
        break;
      }
    }
    EXPECT_EQ(found.tensors().size(), wanted.tensors().size() + static_cast<size_t>(n - n_wanted));
    return n;
  }

  void expect_to_run(const std::string& path) const {
    const auto model = Model::load(path);
    const auto host = cpu::make_cpu_device({.n_threads = 1, .n_threads_batch = 1});
    Session session(*model, {host.get()}, test::family_options(family_, GetParam()));
    for (const float logit : session.append(family_.ids())) ASSERT_TRUE(std::isfinite(logit));
  }

  test::Family family_;
  test::TempDir directory_;
  HfFolder quantized_, floats_;
};

TEST_P(FamiliesQuantized, Nvfp4StaysAndRuns) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  if (quantize(HfQuantization::nvfp4_multiplied, seed) == 0) GTEST_SKIP() << "no matrices of their own";
  const std::string path = convert(quantized_, "multiplied");
  const int n = expect_same_weights(path, convert(floats_, "floats"), true);
  EXPECT_GT(n, 0);
  quantize(HfQuantization::nvfp4_divided, seed);
  EXPECT_EQ(expect_same_weights(convert(quantized_, "divided"), path, true), n);

  expect_to_run(path);
}

// What `quantize` makes of them, too.
TEST_P(FamiliesQuantized, QuantizedToNvfp4Runs) {
  const std::string from = convert(test::family_folder(family_), "floats"), to = directory_.path("nvfp4.gguf");
  {
    const GgufFile file(from);
    tools::QuantizeOptions o;
    o.type = tools::FileType::NVFP4;
    o.mix = tools::Mix::pure;
    o.allow_requantize = true;
    write_quantized(file, prepare_quantize(file, o, nullptr), o, nullptr, to);
  }
  expect_to_run(to);
}

TEST_P(FamiliesQuantized, Fp8BecomesFloats) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  for (const auto& [quantization, name] : {std::pair(HfQuantization::fp8_matrix, "matrix"), std::pair(HfQuantization::fp8_rows, "rows"),
                                           std::pair(HfQuantization::fp8_blocks, "blocks")}) {
    SCOPED_TRACE(name);
    if (quantize(quantization, seed) == 0) GTEST_SKIP() << "no matrices of their own";
    quantized_.config.erase("quantization_config");
    expect_same_weights(convert(quantized_, name), convert(floats_, "floats"), false);
  }
}

// Experts whose down projections stay NVFP4, which those of the families do not: a factor for each.
class ExpertsQuantized : public FamiliesQuantized {};
TEST_P(ExpertsQuantized, HaveAFactorEach) {
  HfFolder folder = test::family_folder(family_);
  folder.config["intermediate_size"] = 64;
  for (auto& [name, t] : folder.tensors) {
    if (name.find(".experts.") == std::string::npos) continue;
    (name.ends_with("w2.weight") ? t.shape[1] : t.shape[0]) = 64;
    t.bytes.resize(64 * 64 * 2);
  }
  quantize_matrices(folder, HfQuantization::nvfp4_divided, std::random_device{}(), quantized_, floats_);
  const std::string path = convert(quantized_, "divided");
  expect_same_weights(path, convert(floats_, "floats"), true);
  const GgufFile file(path);
  EXPECT_EQ(file.tensor("blk.1.ffn_down_exps.weight").dtype, DType::NVFP4);
  EXPECT_EQ(file.tensor("blk.1.ffn_down_exps.scale").dims[0], 4);
  expect_to_run(path);
}
INSTANTIATE_TEST_SUITE_P(Mixtral, ExpertsQuantized, testing::Values("mixtral"));

INSTANTIATE_TEST_SUITE_P(All, FamiliesQuantized, testing::ValuesIn(test::family_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
