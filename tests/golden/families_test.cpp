// Every architecture from a Hugging Face folder to logits: the logits of transformers for a tiny model (see
// scripts/reference_logits.py) against convert and our own graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "base/fp16.h"
#include "base/fp8.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "gguf/quants.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "tools/convert/convert.h"

namespace tandem {
namespace {

using tools::ConvertOptions;
using tools::OutType;

class Families : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    folder_ = test::family_folder(family_);
    folder_.write(directory_.path("hf"));
  }

  std::string convert(OutType type) const {
    ConvertOptions options;
    options.type = type;
    options.n_threads = 2;
    const std::string path = directory_.path(format("{}.gguf", static_cast<int>(type)));
    write_conversion(tools::prepare_conversion(directory_.path("hf"), options), options, path);
    return path;
  }

  static bool has_dtype(const std::string& path, DType dtype) {
    const GgufFile file(path);
    return std::any_of(file.tensors().begin(), file.tensors().end(),
                       [&](const TensorInfo& t) { return t.dtype == dtype; });
  }

  // A tensor of the MTP layer of an architecture whose files have none, or of keys and values in a layer that reads
  // those of another.
  bool is_dropped(const std::string& name) const {
    const std::string model_class = folder_.config["architectures"][0];
    const int64_t n_shared = folder_.config.value("num_kv_shared_layers", int64_t{0});
    for (int64_t i = 0; i < n_shared; ++i) {
      const int64_t n_layer = folder_.config["num_hidden_layers"];
      const std::string part = format("model.layers.{}.self_attn.", n_layer - 1 - i);
      if (name.starts_with(part) && (name.find(".k_") != name.npos || name.find(".v_") != name.npos))
        return true;
    }
    if (name.starts_with("mtp.")) return true;
    if (model_class != "DeepseekV3ForCausalLM") return false;
    const int64_t n_layer = folder_.config["num_hidden_layers"];
    return name.starts_with(format("model.layers.{}.", n_layer));
  }

  struct Deviation {
    double worst = 0;            // error of any logit in the file, relative to the largest of its row
    double squares = 0, of = 0;  // sums over the complete rows in the file
    double rms() const { return std::sqrt(squares / of); }
  };

  EngineOptions options(int64_t n_ubatch, LatentForm form) const {
    EngineOptions options;
    options.context.n_ctx = family_.n_ctx();
    options.context.n_ubatch = n_ubatch;
    options.context.all_logits = true;
    options.context.k_dtype = options.context.v_dtype = DType::F32;
    options.context.latent_form = form;
    options.context.n_deferred = family_.n_deferred();
    return options;
  }

  Deviation deviation(const std::string& path, int64_t n_ubatch, cpu::Isa isa = cpu::best_isa()) const {
    const auto model = Model::load(path);
    const auto device = cpu::make_cpu_device({2, 2, isa});
    Session session(*model, {device.get()}, options(n_ubatch, test::form_of(GetParam())));
    Deviation deviation;
    const std::vector<int32_t> ids = family_.ids();
    const auto n_vocab = static_cast<size_t>(model->hparams().n_vocab);
    session.evaluate(ids, [&](int64_t first, int64_t n, std::span<const float> logits) {
      for (int64_t i = 0; i < n; ++i) {
        add_row(static_cast<size_t>(first + i), logits.subspan(static_cast<size_t>(i) * n_vocab, n_vocab),
                deviation);
      }
    });
    return deviation;
  }

  void add_row(size_t position, std::span<const float> row, Deviation& deviation) const {
    const nlohmann::json& j = family_.json;
    const auto heads = j["heads"][position].get<std::vector<double>>();
    const double norm = j["norm"][position];
    const double scale = 3 * norm / std::sqrt(static_cast<double>(row.size()));  // about the largest logit
    double worst = 0, sum = 0;
    for (size_t i = 0; i < heads.size(); ++i)
      worst = std::max(worst, std::fabs(heads[i] - static_cast<double>(row[i])));
    for (const float x : row) sum += static_cast<double>(x) * static_cast<double>(x);
    worst = std::max(worst, std::fabs(std::sqrt(sum) - norm) / std::sqrt(static_cast<double>(row.size())));
    const auto full = j["logits"].find(std::to_string(position));
    if (full != j["logits"].end()) {
      EXPECT_EQ(full->size(), row.size());
      for (size_t i = 0; i < row.size(); ++i) {
        const double wanted = (*full)[i], difference = wanted - static_cast<double>(row[i]);
        worst = std::max(worst, std::fabs(difference));
        deviation.squares += difference * difference;
        deviation.of += wanted * wanted;
      }
    }
    deviation.worst = std::max(deviation.worst, worst / scale);
  }

  test::Family family_;
  test::HfFolder folder_;
  test::TempDir directory_;
};

TEST_P(Families, LogitsEqualThoseOfTransformers) {
  const std::string path = convert(OutType::F32);
  // Products with MXFP4 weights always round activations to 8 bits.
  const double tolerance = has_dtype(path, DType::MXFP4) ? 3e-2 : 1e-3;
  for (const int64_t n_ubatch : {512, 1, 7, 33}) {
    EXPECT_LT(deviation(path, n_ubatch).worst, tolerance) << "-ub " << n_ubatch;
  }
  for (const cpu::Isa isa : cpu::supported_isas()) {
    EXPECT_LT(deviation(path, 20, isa).worst, tolerance) << cpu::isa_name(isa);
  }
  EXPECT_LT(deviation(convert(OutType::BF16), 7).rms(), 2e-2);
  // Where scores of experts nearly tie, roundings choose: in one row of each of these two.
  const bool nearly_ties = GetParam() == "deepseek_v2_expanded" || GetParam() == "glm4_moe_lite";
  EXPECT_LT(deviation(convert(OutType::Q8_0), 7).rms(), nearly_ties ? 1.5e-1 : 5e-2);
}

// The forms of latent attention round differently, so equal bits show which one ran.
TEST_P(Families, LatentAttentionTakesTheCheaperForm) {
  const nlohmann::json& config = folder_.config;
  if (!config.contains("kv_lora_rank")) GTEST_SKIP() << "no latent attention";
  const auto model = Model::load(convert(OutType::F32));
  const auto device = cpu::make_cpu_device({2, 2, cpu::best_isa()});
  const std::vector<int32_t> ids = family_.ids();
  const auto logits = [&](int64_t n_ubatch, LatentForm form) {
    Session session(*model, {device.get()}, options(n_ubatch, form));
    const std::span<const float> row = session.append(ids);
    return std::vector<float>(row.begin(), row.end());
  };
  const bool wide_heads = config["v_head_dim"] > 20;  // wider than the cached rows: never worth making
  for (const int64_t n_ubatch : {512, 7}) {
    const std::vector<float> absorbed = logits(n_ubatch, LatentForm::absorbed);
    const std::vector<float> expanded = logits(n_ubatch, LatentForm::expanded);
    EXPECT_NE(absorbed, expanded);
    EXPECT_EQ(logits(n_ubatch, LatentForm::cheaper), n_ubatch == 7 || wide_heads ? absorbed : expanded);
  }
}

// Every element of every tensor of the folder is in the file; of MXFP4 and FP8 tensors, every block.
TEST_P(Families, EveryWeightIsKept) {
  const GgufFile file(convert(OutType::F32));
  std::multiset<float> found, wanted;
  for (const TensorInfo& t : file.tensors()) {
    if (t.name.starts_with("rope_")) continue;  // made from config.json
    std::vector<float> row(static_cast<size_t>(t.dims[0]));
    for (int64_t r = 0; r < t.n_rows(); ++r) {
      dequantize_row(t.dtype, t.data + static_cast<size_t>(r) * row_bytes(t.dtype, t.dims[0]), row.data(),
                     t.dims[0]);
      found.insert(row.begin(), row.end());
    }
  }
  const auto architecture = file.metadata().get<std::string>("general.architecture");
  const bool norms_plus_one = architecture == "gemma2" || architecture == "gemma3" ||
                              architecture == "qwen3next" || architecture.starts_with("qwen35");
  for (const auto& [name, t] : folder_.tensors) {
    const bool plus_one = norms_plus_one && name.find("norm") != std::string::npos &&
                          name.find("linear_attn") == std::string::npos;
    const bool minus_exp = name.ends_with("A_log");
    const bool is_vision = name.find(".visual.") != name.npos || name.find("vision_tower") != name.npos ||
                           name.find("embed_vision") != name.npos;
    if (t.dtype != "BF16" || is_vision || is_dropped(name)) continue;
    for (size_t i = 0; i < t.bytes.size(); i += 2) {
      uint16_t bits;
      std::memcpy(&bits, t.bytes.data() + i, 2);
      const float x = bf16_to_fp32(bits);
      wanted.insert(minus_exp ? -std::exp(x) : x + (plus_one ? 1.0f : 0.0f));
    }
  }
  for (const auto& [name, t] :
       folder_.tensors) {  // two neighbours in a byte, times the power of two of their block
    if (!name.ends_with("_blocks")) continue;
    constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const std::string& scales = folder_.tensors.at(name.substr(0, name.size() - 7) + "_scales").bytes;
    for (size_t i = 0; i < t.bytes.size() * 2; ++i) {
      const int nibble = static_cast<uint8_t>(t.bytes[i / 2]) >> (i % 2 * 4) & 15;
      const float x = std::ldexp(kValues[nibble & 7], static_cast<uint8_t>(scales[i / 32]) - 127);
      wanted.insert(nibble & 8 ? -x : x);
    }
  }
  for (const auto& [name, t] : folder_.tensors) {  // times the scale of their block
    if (t.dtype != "F8_E4M3") continue;
    const test::HfTensor& scales = folder_.tensors.at(name + "_scale_inv");
    const auto block = folder_.config["quantization_config"]["weight_block_size"].get<std::vector<int64_t>>();
    for (int64_t i = 0; i < t.shape[0] * t.shape[1]; ++i) {
      const int64_t row = i / t.shape[1], col = i % t.shape[1];
      float scale = 0;
      std::memcpy(&scale, scales.bytes.data() + 4 * (row / block[0] * scales.shape[1] + col / block[1]), 4);
      wanted.insert(fp8_e4m3_to_fp32(static_cast<uint8_t>(t.bytes[static_cast<size_t>(i)])) * scale);
    }
  }
  EXPECT_EQ(found.size(), wanted.size());
  EXPECT_TRUE(std::equal(found.begin(), found.end(), wanted.begin(), wanted.end()));
}

INSTANTIATE_TEST_SUITE_P(All, Families, testing::ValuesIn(test::family_names_and_forms()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
