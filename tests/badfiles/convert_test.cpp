// Invalid Hugging Face folders: each is rejected with one line that names the file, tensor or key, and leaves
// no output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/sanitized.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/hf_quantized.h"
#include "tools/convert/convert.h"

namespace tandem {
namespace {

using test::HfFolder;
using test::HfTensor;
using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kQ = "model.layers.0.self_attn.q_proj.weight";

std::string safetensors_of(const std::string& header, size_t n_data) {
  test::ByteString bytes;
  return bytes.u64(header.size()).raw(header).raw(std::string(n_data, '\0')).bytes();
}

class BadFolder : public testing::Test {
 protected:
  // The message of the rejection; checks that no output is left.
  std::string refusal_of_folder(const std::string& folder, ErrorCode code = ErrorCode::bad_file) const {
    const std::string out = directory_.path("out/m.gguf");
    std::filesystem::create_directories(directory_.path("out"));
    tools::ConvertOptions options;
    options.type = type_;
    options.n_threads = 2;
    try {
      write_conversion(tools::prepare_conversion(folder, options), options, out);
      ADD_FAILURE() << "it was accepted";
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_TRUE(std::filesystem::is_empty(directory_.path("out")));
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
      return e.what();
    }
  }

  std::string refusal(const HfFolder& folder) {
    const std::string path = directory_.path("hf" + std::to_string(n_++));
    folder.write(path);
    return refusal_of_folder(path);
  }

  // A small Llama, broken by `spoil`.
  std::string refusal(const std::function<void(HfFolder&)>& spoil, const char* family = "llama") {
    HfFolder folder = test::family_folder(test::load_family(family));
    spoil(folder);
    return refusal(folder);
  }

  std::string refusal_of_weights(const std::string& safetensors) {
    return refusal([&](HfFolder& f) {
      f.tensors.clear();
      f.files["model.safetensors"] = safetensors;
    });
  }

  tools::OutType type_ = tools::OutType::F16;
  test::TempDir directory_;
  int n_ = 0;
};

TEST_F(BadFolder, NoFolderOrNoFiles) {
  EXPECT_THAT(refusal_of_folder(directory_.path("nowhere"), ErrorCode::io), HasSubstr("nowhere"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.tensors.clear(); }), HasSubstr("no weights"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.tokenizer = nullptr; }), HasSubstr("tokenizer.model"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.files["config.json"] = "{"; }),
              HasSubstr("config.json: invalid JSON"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.files["config.json"] = "[1]"; }),
              HasSubstr("needed a JSON object"));
  const std::string open(100000, '['), deep = open + std::string(open.size(), ']');
  EXPECT_THAT(refusal([&](HfFolder& f) { f.files["tokenizer.json"] = open; }), HasSubstr("tokenizer.json"));
  for (const char* name : {"config.json", "tokenizer.json"}) {
    for (const std::string& text : {deep, "{\"a\":" + deep + "}"}) {
      EXPECT_THAT(refusal([&](HfFolder& f) { f.files[name] = text; }),
                  AllOf(HasSubstr(name), HasSubstr("nested more than 200 deep")));
    }
  }
}

TEST_F(BadFolder, TheSystemSaysNo) {
  EXPECT_THAT(refusal_of_folder(std::string(5000, 'a'), ErrorCode::io), HasSubstr("name too long"));
  const std::string loop = directory_.path("loop");
  std::filesystem::create_directory_symlink(loop, loop);
  EXPECT_THAT(refusal_of_folder(loop, ErrorCode::io), HasSubstr("symbolic links"));
  HfFolder folder = test::family_folder(test::load_family("llama"));
  for (const char* name : {"tokenizer.model", "model.safetensors", "chat_template.jinja"}) {
    const std::string path = directory_.path("links");
    std::filesystem::create_directory(path);
    folder.write(path);
    std::filesystem::remove(path + "/" + name);
    std::filesystem::create_symlink(name, path + "/" + name);
    EXPECT_THAT(refusal_of_folder(path, ErrorCode::io), AllOf(HasSubstr(name), HasSubstr("symbolic links")));
    std::filesystem::remove_all(path);
  }
}

TEST_F(BadFolder, Config) {
  EXPECT_THAT(
      refusal([](HfFolder& f) { f.config["architectures"] = {"RwkvForCausalLM"}; }),
      AllOf(HasSubstr("RwkvForCausalLM"), HasSubstr("LlamaForCausalLM"), HasSubstr("GptOssForCausalLM")));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config.erase("architectures"); }), HasSubstr("architectures"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["architectures"] = 3; }), HasSubstr("architectures"));
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                          "vocab_size", "max_position_embeddings", "rms_norm_eps"}) {
    EXPECT_THAT(refusal([&](HfFolder& f) { f.config.erase(key); }), HasSubstr(key));
    EXPECT_THAT(refusal([&](HfFolder& f) { f.config[key] = "many"; }), HasSubstr(key));
    if (std::string(key) == "rms_norm_eps") continue;
    EXPECT_THAT(refusal([&](HfFolder& f) { f.config[key] = -1; }), HasSubstr(key));
    EXPECT_THAT(refusal([&](HfFolder& f) { f.config[key] = 1.5; }), HasSubstr(key));
    EXPECT_THAT(refusal([&](HfFolder& f) { f.config[key] = uint64_t{1} << 63; }), HasSubstr(key));
  }
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["num_key_value_heads"] = 3; }),
              HasSubstr("num_key_value_heads"));
  EXPECT_THAT(refusal([](HfFolder& f) {
                f.config["rope_scaling"] = {{"type", "spiral"}};
              }),
              HasSubstr("spiral"));
  EXPECT_THAT(refusal([](HfFolder& f) {
                f.config["rope_scaling"] = {{"type", "linear"}};
              }),
              HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(refusal(
                  [](HfFolder& f) {
                    f.config["rope_scaling"]["long_factor"] = {1, 2};
                  },
                  "phi3_longrope_long"),
              HasSubstr("long_factor"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["num_experts_per_tok"] = 9; }, "mixtral"),
              HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(
      refusal([](HfFolder& f) { f.config["layer_types"][0] = "full_attention"; }, "gemma3_scaled_rope"),
      HasSubstr("layer_types"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["n_group"] = 3; }, "exaone_moe"), HasSubstr("n_group"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["topk_group"] = 9; }, "exaone_moe"),
              HasSubstr("topk_group"));
  EXPECT_THAT(refusal(
                  [](HfFolder& f) {
                    f.config["mlp_layer_types"] = {"dense", "sparse", "dense", "sparse", "sparse"};
                  },
                  "exaone_moe"),
              HasSubstr("mlp_layer_types"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["layer_types"][0] = "linear_attention"; }, "exaone_moe"),
              HasSubstr("layer_types"));
  EXPECT_THAT(refusal(
                  [](HfFolder& f) {
                    f.config["moe_topk"] = {3, 2};
                  },
                  "hunyuan_moe"),
              HasSubstr("moe_topk"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["moe_layer_end_index"] = 1; }, "ernie4_5_moe"),
              HasSubstr("moe_layer_end_index"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["norm_topk_prob"] = false; }, "qwen3_moe"),
              HasSubstr("norm_topk_prob"));
}

// A message goes to a terminal.
TEST_F(BadFolder, ControlCharactersOfAFileAreEscaped) {
  const std::string word = "\x1b]0;title\x07\x7f";
  const auto with = [&](const char* key, const char* family) {
    return refusal(
        [&](HfFolder& f) {
          Json& text = f.config.contains("text_config") ? f.config["text_config"] : f.config;
          text[nlohmann::json::json_pointer(key)] = word;
        },
        family);
  };
  const auto escaped = HasSubstr("found \"\\x1b]0;title\\x07\\x7f\", needed");
  EXPECT_THAT(with("/rope_parameters/rope_type", "llama_yarn"), escaped);
  EXPECT_THAT(with("/rope_parameters/full_attention/rope_type", "gemma4"), escaped);
  EXPECT_THAT(with("/scoring_func", "deepseek_v3"), escaped);
  EXPECT_THAT(with("/topk_method", "deepseek_v3"), escaped);
}

TEST_F(BadFolder, RecurrentLayers) {
  for (const char* family : {"lfm2", "granite_hybrid"}) {
    EXPECT_THAT(refusal([](HfFolder& f) { f.config["layer_types"][1] = "spiral"; }, family),
                testing::AllOf(HasSubstr("layer_types"), HasSubstr("spiral"), HasSubstr("mamba")));
    EXPECT_THAT(refusal([](HfFolder& f) { f.config["layer_types"].push_back("attention"); }, family),
                HasSubstr("num_hidden_layers"));
  }
  for (const int width : {0, 1, 1000000000}) {
    EXPECT_THAT(refusal([&](HfFolder& f) { f.config["conv_L_cache"] = width; }, "lfm2"),
                HasSubstr("conv_L_cache"));
    EXPECT_THAT(refusal([&](HfFolder& f) { f.config["conv_kernel"] = width; }, "nemotron_h"),
                HasSubstr("conv_kernel"));
  }
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["hybrid_override_pattern"] = "M-MX-M-"; }, "nemotron_h"),
              testing::AllOf(HasSubstr("hybrid_override_pattern"), HasSubstr("\"X\"")));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["hybrid_override_pattern"] = "MEM*E-E"; }, "nemotron_h_moe"),
              HasSubstr("hybrid_override_pattern"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["n_groups"] = 4; }, "nemotron_h"), HasSubstr("n_groups"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["mamba_d_state"] = 21; }, "granite_hybrid"),
              HasSubstr("mamba.in_proj.weight"));
  EXPECT_THAT(refusal(
                  [](HfFolder& f) {
                    f.config["time_step_limit"] = {0.001, 1e308};
                  },
                  "nemotron_h"),
              HasSubstr("time_step_limit"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["mlp_hidden_act"] = "silu"; }, "nemotron_h"),
              HasSubstr("mlp_hidden_act"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["position_embedding_type"] = "alibi"; }, "granite_hybrid"),
              HasSubstr("position_embedding_type"));
}

// In every family whose config.json names the kinds, and in one that does not.
TEST_F(BadFolder, UnknownKindsOfLayers) {
  size_t n_named = 0;
  for (const std::string& family : test::family_names()) {
    SCOPED_TRACE(family);
    HfFolder folder = test::family_folder(test::load_family(family));
    nlohmann::json& text =
        folder.config.contains("text_config") ? folder.config["text_config"] : folder.config;
    if (family == "llama") text["layer_types"] = {"full_attention", "full_attention"};
    if (!text.contains("layer_types")) continue;
    text["layer_types"][1] = "chunked_attention";
    ++n_named;
    EXPECT_THAT(refusal(folder), AllOf(HasSubstr("layer_types: found"), HasSubstr("chunked_attention")));
  }
  EXPECT_GE(n_named, kThreadSanitized ? 5u : 10u);
}

TEST_F(BadFolder, KindsOfLayers) {
  const auto with = [&](const char* key, const nlohmann::json& value, const char* family = "gemma4_shared") {
    return refusal([&](HfFolder& f) { f.config[key] = value; }, family);
  };
  nlohmann::json kinds = test::load_family("gemma4_shared").json["config"]["layer_types"];
  kinds[1] = "chunked_attention";
  EXPECT_THAT(with("layer_types", kinds), HasSubstr("layer_types: found \"chunked_attention\""));
  kinds[1] = "sliding_attention";
  kinds.erase(0);
  EXPECT_THAT(with("layer_types", kinds), HasSubstr("one for each of the 6 layers"));
  EXPECT_THAT(with("num_kv_shared_layers", 6), HasSubstr("num_kv_shared_layers"));
  EXPECT_THAT(with("num_kv_shared_layers", 5), HasSubstr("no layer before them has full attention"));
  EXPECT_THAT(with("global_head_dim", 63), HasSubstr("global_head_dim"));
  EXPECT_THAT(with("hidden_size_per_layer_input", 24), HasSubstr("embed_tokens_per_layer.weight"));
  EXPECT_THAT(with("vocab_size_per_layer_input", 100), HasSubstr("vocab_size_per_layer_input"));
  EXPECT_THAT(with("use_bidirectional_attention", "all"), HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(with("num_global_key_value_heads", 3, "gemma4_moe"), HasSubstr("num_global_key_value_heads"));
  EXPECT_THAT(with("moe_intermediate_size", nullptr, "gemma4_moe"), HasSubstr("moe_intermediate_size"));
  EXPECT_THAT(with("top_k_experts", 9, "gemma4_moe"), HasSubstr("experts"));
}

TEST_F(BadFolder, SafetensorsHeader) {
  EXPECT_THAT(refusal_of_weights("abc"), HasSubstr("found 3 bytes"));
  EXPECT_THAT(refusal_of_weights(test::ByteString().u64(5000).raw("{}").bytes()),
              HasSubstr("the header says it has 5000"));
  EXPECT_THAT(refusal_of_weights(test::ByteString().u64(~uint64_t{0}).raw("{}").bytes()),
              HasSubstr("the header says"));
  EXPECT_THAT(refusal_of_weights(safetensors_of("{\"a\":", 0)), HasSubstr("header: invalid JSON"));
  EXPECT_THAT(refusal_of_weights(safetensors_of("{\"a\": 3}", 0)), HasSubstr(": a"));
  const auto entry = [](const char* rest) { return std::string("{\"w\":{") + rest + "}}"; };
  EXPECT_THAT(
      refusal_of_weights(safetensors_of(entry(R"("dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4])"), 4)),
      AllOf(HasSubstr("w.dtype"), HasSubstr("F8_E5M2"), HasSubstr("BF16")));
  EXPECT_THAT(
      refusal_of_weights(safetensors_of(entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4)),
      HasSubstr("w.shape"));
  EXPECT_THAT(refusal_of_weights(safetensors_of(
                  entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"), 4)),
              HasSubstr("w.shape"));
  EXPECT_THAT(
      refusal_of_weights(safetensors_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"), 8)),
      AllOf(HasSubstr("8 bytes"), HasSubstr("needed 4")));
  EXPECT_THAT(
      refusal_of_weights(safetensors_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 4)),
      HasSubstr("w.data_offsets"));
  EXPECT_THAT(
      refusal_of_weights(safetensors_of(entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4)),
      HasSubstr("w.data_offsets"));
}

TEST_F(BadFolder, BlocksOfFp8) {
  constexpr const char* kName = "model.layers.1.self_attn.q_proj.weight";
  const std::string scale = std::string(kName) + "_scale_inv";
  EXPECT_THAT(refusal([&](HfFolder& f) { f.tensors.erase(scale); }, "minimax_m2_fp8"),
              AllOf(HasSubstr(scale), HasSubstr("is missing")));
  EXPECT_THAT(refusal(
                  [&](HfFolder& f) {
                    f.tensors[scale].shape = {3, 7};
                  },
                  "minimax_m2_fp8"),
              AllOf(HasSubstr(scale), HasSubstr("[7, 3]")));
  EXPECT_THAT(refusal([&](HfFolder& f) { f.tensors[kName].bytes[5] = 0x7f; }, "minimax_m2_fp8"),
              AllOf(HasSubstr(kName), HasSubstr("1 NaN")));
  for (const Json& sizes : {Json{128}, Json{0, 128}, Json{128, 1.5}, Json("128"), Json{-1, 1e30}}) {
    EXPECT_THAT(refusal([&](HfFolder& f) { f.config["quantization_config"]["weight_block_size"] = sizes; },
                        "minimax_m2_fp8"),
                HasSubstr("weight_block_size"));
  }
  // Tensors that must be floats.
  EXPECT_THAT(refusal(
                  [](HfFolder& f) {
                    f.tensors["model.norm.weight"] = {"F8_E4M3", {64}, std::string(64, 'a')};
                  },
                  "minimax_m2_fp8"),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("F8_E4M3")));
}

// Matrices in NVFP4 and FP8 with other scales.
TEST_F(BadFolder, ScalesOfQuantizationTools) {
  const auto spoiled = [&](test::HfQuantization quantization, const std::function<void(HfFolder&)>& spoil) {
    HfFolder quantized, floats;
    quantize_matrices(test::family_folder(test::load_family("mixtral")), quantization, 1, quantized, floats);
    spoil(quantized);
    return refusal(quantized);
  };
  const auto floats = [](std::vector<int64_t> shape, float x) {
    return HfTensor{"F32", std::move(shape), std::string(reinterpret_cast<const char*>(&x), sizeof x)};
  };
  constexpr auto kDivided = test::HfQuantization::nvfp4_divided, kMultiplied = test::HfQuantization::nvfp4_multiplied;
  const std::string q = kQ, expert = "model.layers.0.block_sparse_moe.experts.2.w1.weight";
  EXPECT_THAT(spoiled(kMultiplied, [&](HfFolder& f) { f.tensors.erase(q + "_scale_2"); }),
              AllOf(HasSubstr(q + "_scale_2"), HasSubstr("is missing")));
  EXPECT_THAT(spoiled(kDivided, [&](HfFolder& f) { f.tensors.erase(q + "_scale"); }),
              AllOf(HasSubstr(q + "_packed"), HasSubstr("found dtype U8")));
  EXPECT_THAT(spoiled(kDivided, [&](HfFolder& f) { f.tensors.erase(q + "_packed"); }), HasSubstr(q));
  for (const float x : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e-40f}) {
    EXPECT_THAT(spoiled(kDivided, [&](HfFolder& f) { f.tensors[q + "_global_scale"] = floats({1}, x); }),
                AllOf(HasSubstr(q + "_global_scale"), HasSubstr("needed a factor")));
    EXPECT_THAT(spoiled(kMultiplied, [&](HfFolder& f) { f.tensors[q + "_scale_2"] = floats({}, x); }),
                AllOf(HasSubstr(q + "_scale_2"), HasSubstr("needed a factor")));
  }
  EXPECT_THAT(spoiled(kMultiplied, [&](HfFolder& f) { f.tensors[q + "_scale_2"].shape = {2}; f.tensors[q + "_scale_2"].bytes += "abcd"; }),
              AllOf(HasSubstr(q + "_scale_2"), HasSubstr("needed [1]")));
  EXPECT_THAT(spoiled(kMultiplied, [&](HfFolder& f) { f.tensors[q + "_scale_2"].dtype = "I32"; }),
              AllOf(HasSubstr(q + "_scale_2"), HasSubstr("needed F32")));
  for (const char code : {'\x7f', '\x80', '\xff'}) {
    EXPECT_THAT(spoiled(kMultiplied, [&](HfFolder& f) { f.tensors[q + "_scale"].bytes[5] = code; }),
                AllOf(HasSubstr(q + "_scale"), HasSubstr("needed a finite one")));
  }
  // Down has 96 columns, which blocks of 64 do not divide: it becomes floats.
  const std::string down = "model.layers.0.block_sparse_moe.experts.2.w2.weight";
  EXPECT_THAT(spoiled(kMultiplied, [&](HfFolder& f) { f.tensors[down + "_scale"].bytes[5] = '\x7f'; }), HasSubstr("NaN"));
  EXPECT_THAT(spoiled(kMultiplied, [&](HfFolder& f) { std::swap(f.tensors[q + "_scale"].shape[0], f.tensors[q + "_scale"].shape[1]); }),
              AllOf(HasSubstr(q + "_scale"), HasSubstr("found shape")));
  EXPECT_THAT(spoiled(kMultiplied, [&](HfFolder& f) { std::swap(f.tensors[q].shape[0], f.tensors[q].shape[1]); }),
              AllOf(HasSubstr(q), HasSubstr("found shape")));
  // Experts in one tensor, which cannot be packed.
  HfFolder whole = test::family_folder(test::load_family("qwen3_vl_moe"));
  const std::string experts = "model.language_model.layers.0.mlp.experts.gate_up_proj";
  const auto node = whole.tensors.extract(experts);
  ASSERT_FALSE(node.empty());
  whole.tensors[experts + "_packed"] = node.mapped();
  EXPECT_THAT(refusal(whole), AllOf(HasSubstr("layers.0.mlp.experts.gate_up_proj"), HasSubstr("is missing")));
  // Experts of one matrix that are stored in several ways.
  const HfTensor plain{"BF16", {96, 64}, std::string(96 * 64 * 2, '\x3f')};
  for (const auto quantization : {kDivided, kMultiplied}) {
    for (const char* which : {"0", "2"}) {
      const std::string name = std::string(expert).replace(expert.find("experts.2") + 8, 1, which);
      EXPECT_THAT(spoiled(quantization,
                          [&](HfFolder& f) {
                            for (const char* suffix : {"_packed", "_scale", "_scale_2", "_global_scale"}) f.tensors.erase(name + suffix);
                            f.tensors[name] = plain;
                          }),
                  AllOf(HasSubstr("block_sparse_moe.experts."), HasSubstr("found dtype")));
    }
  }
  constexpr auto kRows = test::HfQuantization::fp8_rows;
  EXPECT_THAT(spoiled(kRows,
                      [&](HfFolder& f) {
                        f.tensors[expert + "_scale"] = {"BF16", {}, "ab"};
                      }),
              AllOf(HasSubstr(expert + "_scale"), HasSubstr("as for the experts before")));
  EXPECT_THAT(spoiled(kRows, [&](HfFolder& f) { f.tensors[q + "_scale"].shape = {32, 2}; }),
              AllOf(HasSubstr(q + "_scale"), HasSubstr("found shape [32, 2]")));
  EXPECT_THAT(spoiled(kRows, [&](HfFolder& f) { f.tensors[q + "_scale"].dtype = "I16"; }),
              AllOf(HasSubstr(q + "_scale"), HasSubstr("I16")));
  EXPECT_THAT(spoiled(kRows, [&](HfFolder& f) { f.tensors.erase(q + "_scale"); }), HasSubstr(q + "_scale_inv"));
}

TEST_F(BadFolder, HolesAndOverlaps) {
  const auto two = [](const char* first, const char* second, size_t n) {
    return safetensors_of(std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first +
                              R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
                          n);
  };
  EXPECT_THAT(refusal_of_weights(two("[0,4]", "[2,6]", 6)),
              AllOf(HasSubstr("tensor b"), HasSubstr("overlaps")));
  EXPECT_THAT(refusal_of_weights(two("[0,4]", "[6,10]", 10)), AllOf(HasSubstr("tensor b"), HasSubstr("gap")));
  EXPECT_THAT(refusal_of_weights(two("[4,8]", "[8,12]", 12)), AllOf(HasSubstr("tensor a"), HasSubstr("gap")));
  EXPECT_THAT(refusal_of_weights(two("[0,4]", "[4,8]", 9)), HasSubstr("1 bytes after the last tensor"));
}

TEST_F(BadFolder, Shards) {
  const HfFolder good = test::family_folder(test::load_family("llama"));
  const auto sharded = [&](const std::string& name) {
    const std::string path = directory_.path(name);
    good.write_sharded(path, 3);
    return path;
  };
  std::string path = sharded("missing");
  std::filesystem::remove(path + "/model-2.safetensors");
  EXPECT_THAT(refusal_of_folder(path),
              AllOf(HasSubstr("model-2.safetensors is missing"), HasSubstr("tensors")));
  path = sharded("swapped");
  std::filesystem::copy_file(path + "/model-1.safetensors", path + "/model-2.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(refusal_of_folder(path), HasSubstr("the index"));
  path = sharded("outside");
  test::write_file(path + "/model.safetensors.index.json",
                   R"({"weight_map": {"a": "../model-1.safetensors"}})");
  EXPECT_THAT(refusal_of_folder(path), HasSubstr("in the same folder"));
  path = sharded("twice");
  std::filesystem::remove(path + "/model.safetensors.index.json");
  std::filesystem::copy_file(path + "/model-1.safetensors", path + "/copy.safetensors");
  EXPECT_THAT(refusal_of_folder(path), HasSubstr("is also in"));
}

TEST_F(BadFolder, Tensors) {
  EXPECT_THAT(refusal([](HfFolder& f) { f.tensors.erase(kQ); }), AllOf(HasSubstr(kQ), HasSubstr("missing")));
  EXPECT_THAT(refusal([](HfFolder& f) {
                f.tensors.erase("lm_head.weight");
                f.config["tie_word_embeddings"] = false;
              }),
              HasSubstr("lm_head.weight"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.tensors["model.layers.0.extra.weight"] = f.tensors[kQ]; }),
              HasSubstr("model.layers.0.extra.weight"));
  EXPECT_THAT(refusal([](HfFolder& f) {
                f.tensors[kQ].shape = {32, 128};
              }),
              AllOf(HasSubstr(kQ), HasSubstr("[32, 128]"), HasSubstr("[64, 64]")));
  EXPECT_THAT(refusal([](HfFolder& f) { f.tensors[kQ].dtype = "I16"; }),
              AllOf(HasSubstr(kQ), HasSubstr("I16")));
  EXPECT_THAT(
      refusal([](HfFolder& f) { f.tensors.erase("model.layers.1.block_sparse_moe.experts.2.w3.weight"); },
              "mixtral"),
      HasSubstr("experts.2.w3"));
  EXPECT_THAT(
      refusal([](HfFolder& f) { f.tensors.erase("model.layers.2.mlp.shared_experts.up_proj.weight"); },
              "glm4_moe"),
      HasSubstr("shared_experts.up_proj"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.tensors.erase("model.layers.3.enorm.weight"); }, "glm4_moe"),
              HasSubstr("enorm"));
  EXPECT_THAT(
      refusal([](HfFolder& f) { f.tensors.erase("model.layers.1.mlp.experts.down_proj_scales"); }, "gpt_oss"),
      HasSubstr("down_proj_scales"));
}

TEST_F(BadFolder, NanAndInfiniteWeightsAreCountedAndNamed) {
  const auto spoil = [](std::initializer_list<uint16_t> values) {
    return [values = std::vector<uint16_t>(values)](HfFolder& f) {
      for (size_t i = 0; i < values.size(); ++i)
        std::memcpy(f.tensors[kQ].bytes.data() + 200 * i, &values[i], 2);
    };
  };
  EXPECT_THAT(refusal(spoil({0x7fc0, 0xffc1, 0x7f80})),
              AllOf(HasSubstr(kQ), HasSubstr("2 NaN, 1 infinite of the 4096")));
  EXPECT_THAT(refusal(spoil({0x7f00})), AllOf(HasSubstr("1 too large for F16"), HasSubstr("bf16")));
  type_ = tools::OutType::Q8_0;
  EXPECT_THAT(refusal(spoil({0xff80})), HasSubstr("1 infinite"));
}

TEST_F(BadFolder, Tokenizer) {
  const auto model = [&](const std::function<void(Json&)>& spoil) {
    return refusal([&](HfFolder& f) { spoil(f.tokenizer["model"]); });
  };
  EXPECT_THAT(model([](Json& m) { m.erase("merges"); }), HasSubstr("model.merges: found nothing"));
  EXPECT_THAT(model([](Json& m) { m["merges"] = Json::array(); }), HasSubstr("an empty list"));
  EXPECT_THAT(model([](Json& m) { m["merges"][1] = "q q"; }),
              AllOf(HasSubstr("q q"), HasSubstr("\"qq\" is not one")));
  EXPECT_THAT(model([](Json& m) { m["merges"][1] = {"only"}; }), HasSubstr("two tokens"));
  EXPECT_THAT(model([](Json& m) { m["merges"][1] = 7; }), HasSubstr("two tokens"));
  EXPECT_THAT(model([](Json& m) { m["type"] = "Unigram"; }), AllOf(HasSubstr("Unigram"), HasSubstr("BPE")));
  EXPECT_THAT(model([](Json& m) { m.erase("vocab"); }), HasSubstr("vocab"));
  EXPECT_THAT(model([](Json& m) { m["vocab"]["a"] = -5; }), HasSubstr("vocab.a"));
  EXPECT_THAT(model([](Json& m) { m["vocab"]["a"] = m["vocab"]["b"]; }), HasSubstr("this one belongs to"));
  EXPECT_THAT(model([](Json& m) { m["vocab"]["a"] = uint64_t{1} << 40; }), HasSubstr("vocab.a"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.config["vocab_size"] = 60; }),
              AllOf(HasSubstr("tokens"), HasSubstr("60")));
  EXPECT_THAT(refusal([](HfFolder& f) { f.tokenizer.erase("model"); }), HasSubstr("model"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.tokenizer["pre_tokenizer"] = nullptr; }),
              HasSubstr("pre_tokenizer"));
  EXPECT_THAT(refusal([](HfFolder& f) { f.tokenizer["pre_tokenizer"]["type"] = 5; }),
              HasSubstr("pre_tokenizer.type"));
  EXPECT_THAT(refusal([](HfFolder& f) {
                f.tokenizer["normalizer"] = {{"type", "Sequence"}, {"normalizers", {5}}};
              }),
              HasSubstr("an unexpected structure"));
  EXPECT_THAT(refusal([](HfFolder& f) {
                f.tokenizer["pre_tokenizer"] = {
                    {"type", "Sequence"},
                    {"pretokenizers",
                     {{{"type", "Split"}, {"pattern", {{"Regex", "[aeiou]+"}}}, {"behavior", "Isolated"}},
                      {{"type", "ByteLevel"}, {"use_regex", false}}}}};
              }),
              AllOf(HasSubstr("pre_tokenizer"), HasSubstr("--pre")));
  EXPECT_THAT(refusal([](HfFolder& f) { f.tokenizer["added_tokens"][0]["id"] = -3; }),
              HasSubstr("added_tokens"));
}

TEST_F(BadFolder, SentencePieceModel) {
  const auto with = [&](const std::string& bytes) {
    return refusal([&](HfFolder& f) {
      f.tokenizer = nullptr;
      f.files["tokenizer.model"] = bytes;
    });
  };
  EXPECT_THAT(with(""), HasSubstr("no pieces"));
  EXPECT_THAT(with("\x0a\xff"), HasSubstr("tokenizer.model"));
  EXPECT_THAT(with("\x0a\x7f"
                   "abc"),
              HasSubstr("longer than its message"));
  EXPECT_THAT(with(std::string("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 13)),
              HasSubstr("64 bits"));
  EXPECT_THAT(with("\x0a\x04\x0a\x01"
                   "a\x18"),
              HasSubstr("the end"));
  EXPECT_THAT(with("\x0a\x05\x0a\x01"
                   "a\x18\x09"),
              HasSubstr("type 9"));
  EXPECT_THAT(with("\x0a\x03\x0a\x01"
                   "a\x12\x02\x18\x01"),
              HasSubstr("unigram"));
}

TEST_F(BadFolder, TheOutputIsNeverAnInput) {
  const std::string path = directory_.path("hf");
  test::family_folder(test::load_family("llama")).write(path);
  std::filesystem::create_hard_link(path + "/model.safetensors", directory_.path("link.gguf"));
  const auto before = std::filesystem::file_size(path + "/model.safetensors");
  try {
    write_conversion(tools::prepare_conversion(path, {}), {}, directory_.path("link.gguf"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.what(), HasSubstr("the output is the input file"));
  }
  EXPECT_EQ(std::filesystem::file_size(path + "/model.safetensors"), before);
  for (const bool vocab_only : {false, true}) {
    tools::ConvertOptions options;
    options.vocab_only = vocab_only;
    for (const char* name : {"/config.json", "/tokenizer.json", "/model.safetensors"}) {
      const auto conversion = tools::prepare_conversion(path, options);
      EXPECT_THROW(write_conversion(conversion, options, path + name), Error) << name;
    }
    EXPECT_NO_THROW(write_conversion(tools::prepare_conversion(path, options), options, path + "/m.gguf"));
  }
}

// A file truncated during reading is an error, not a crash.
TEST_F(BadFolder, AWeightFileThatShrinks) {
  const std::string path = directory_.path("hf");
  test::family_folder(test::load_family("llama")).write(path);
  const auto conversion = tools::prepare_conversion(path, {});
  std::filesystem::resize_file(path + "/model.safetensors", 3000);
  try {
    write_conversion(conversion, {}, directory_.path("m.gguf"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
    EXPECT_THAT(e.what(), HasSubstr("model.safetensors"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_.path("m.gguf")));
}

}  // namespace
}  // namespace tandem
