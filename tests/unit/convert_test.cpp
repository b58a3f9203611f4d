// tandem convert: the same weights in folders of different layout, memory use, and the files left by an
// unfinished run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "gguf/file.h"
#include "gguf/quants.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/process.h"
#include "tools/convert/convert.h"

namespace tandem::tools {
namespace {

using test::HfFolder;

class Convert : public testing::Test {
 protected:
  std::string convert(const HfFolder& folder, const std::string& name, ConvertOptions options = {}) const {
    folder.write(directory_.path(name));
    return convert_folder(name, options);
  }
  std::string convert_folder(const std::string& name, ConvertOptions options = {}) const {
    options.name = "same";
    const std::string path = directory_.path(name + ".gguf");
    return write_conversion(prepare_conversion(directory_.path(name), options), options, path).front();
  }
  static std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  HfFolder folder_ = test::family_folder(test::load_family("mixtral"));
  test::TempDir directory_;
};

TEST_F(Convert, ShardsAndThreadsChangeNothing) {
  const std::string whole = bytes_of(convert(folder_, "whole"));
  folder_.write_sharded(directory_.path("shards"), 4);
  EXPECT_EQ(bytes_of(convert_folder("shards", {.n_threads = 3})), whole);
  std::filesystem::remove(directory_.path("shards/model.safetensors.index.json"));
  EXPECT_EQ(bytes_of(convert_folder("shards")), whole);
  HfFolder nested = folder_;  // the text model of a multimodal one
  nested.tensors.clear();
  for (const auto& [name, tensor] : folder_.tensors) {
    const bool inner = name.starts_with("model.");
    nested.tensors[inner ? "model.language_model." + name.substr(6) : name] = tensor;
  }
  nested.tensors["model.vision_tower.patch.weight"] = folder_.tensors.at("model.norm.weight");
  EXPECT_EQ(bytes_of(convert(nested, "nested")), whole);
}

TEST_F(Convert, OutTypes) {
  const auto dtypes = [&](const std::string& path) {
    const GgufFile file(path);
    EXPECT_EQ(file.tensor("blk.0.attn_norm.weight").dtype, DType::F32);
    EXPECT_EQ(file.tensor("blk.0.ffn_gate_inp.weight").dtype, DType::F32);
    return std::pair(file.tensor("blk.0.ffn_up_exps.weight").dtype,
                     file.metadata().get<uint32_t>("general.file_type"));
  };
  EXPECT_EQ(dtypes(convert(folder_, "auto")), std::pair(DType::BF16, 32u));  // as the weights are stored
  EXPECT_EQ(dtypes(convert_folder("auto", {.type = OutType::F32})), std::pair(DType::F32, 0u));
  EXPECT_EQ(dtypes(convert_folder("auto", {.type = OutType::F16})), std::pair(DType::F16, 1u));
  EXPECT_EQ(dtypes(convert_folder("auto", {.type = OutType::Q8_0})), std::pair(DType::Q8_0, 7u));
  for (auto& [name, tensor] : folder_.tensors) {  // the same numbers as F64
    std::string wide;
    for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
      uint32_t bits = 0;
      std::memcpy(reinterpret_cast<char*>(&bits) + 2, tensor.bytes.data() + i, 2);
      const double x = static_cast<double>(std::bit_cast<float>(bits));
      wide.append(reinterpret_cast<const char*>(&x), sizeof x);
    }
    tensor.dtype = "F64";
    tensor.bytes = wide;
  }
  EXPECT_EQ(dtypes(convert(folder_, "wide")), std::pair(DType::F16, 1u));
  EXPECT_EQ(bytes_of(convert_folder("wide", {.type = OutType::BF16})),
            bytes_of(convert_folder("auto", {.type = OutType::BF16})));
}

TEST_F(Convert, RowsOfPartialBlocksBecomeF16) {
  HfFolder odd = test::family_folder(test::load_family("llama"));
  odd.config["intermediate_size"] = 40;
  for (auto& [name, t] : odd.tensors) {
    if (name.find("mlp") == std::string::npos) continue;
    (name.find("down") == std::string::npos ? t.shape[0] : t.shape[1]) = 40;
    t.bytes.resize(static_cast<size_t>(t.shape[0] * t.shape[1] * 2));
  }
  const GgufFile file(convert(odd, "odd", {.type = OutType::Q8_0}));
  EXPECT_EQ(file.tensor("blk.0.ffn_down.weight").dtype, DType::F16);
  EXPECT_EQ(file.tensor("blk.0.ffn_up.weight").dtype, DType::Q8_0);
}

TEST_F(Convert, PartsHoldTheSameTensors) {
  const GgufFile whole(convert(folder_, "m"));
  const std::string first = convert_folder("m", {.max_bytes = 50000});
  EXPECT_TRUE(first.ends_with("m-00001-of-00009.gguf")) << first;
  const GgufFile parts(first);
  ASSERT_EQ(parts.tensors().size(), whole.tensors().size());
  for (const TensorInfo& t : whole.tensors()) {
    const TensorInfo& other = parts.tensor(t.name);
    EXPECT_TRUE(t.n_bytes == other.n_bytes && std::memcmp(t.data, other.data, t.n_bytes) == 0) << t.name;
  }
}

TEST_F(Convert, VocabOnlyNeedsNoWeights) {
  folder_.tensors.clear();
  const GgufFile file(convert(folder_, "vocab", {.vocab_only = true}));
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.metadata().get_strings("tokenizer.ggml.tokens").size(), 128u);
}

// convert never overwrites its input files.
TEST_F(Convert, RefusesToWriteOverTheFolder) {
  folder_.write(directory_.path("hf"));
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    const std::string path = directory_.path("hf/" + std::string(name)), before = bytes_of(path);
    for (const bool vocab_only : {false, true}) {
      const ConvertOptions options{.vocab_only = vocab_only};
      const Conversion conversion = prepare_conversion(directory_.path("hf"), options);
      try {
        write_conversion(conversion, options, path);
        ADD_FAILURE() << name << " was written over";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
      }
      EXPECT_EQ(bytes_of(path), before);
    }
  }
  const std::string inside = directory_.path("hf/model.gguf");  // a new file beside them is fine, twice
  for (int i = 0; i < 2; ++i) write_conversion(prepare_conversion(directory_.path("hf"), {}), {}, inside);
  EXPECT_NO_THROW(GgufFile{inside});
}

// general.size_label: two digits, the number of experts separately.
// Published configurations of models with Mamba-2 have words in them that JSON does not.
TEST_F(Convert, InfinityAsPythonWritesIt) {
  HfFolder folder = test::family_folder(test::load_family("nemotron_h"));
  const std::string plain = bytes_of(convert(folder, "hybrid"));
  std::string config = folder.config.dump();
  config.insert(1, R"("time_step_limit": [0.0, Infinity], "note": "-Infinity \" NaN \\", "nothing": NaN, )");
  folder.files["config.json"] = config;
  EXPECT_EQ(bytes_of(convert(folder, "hybrid")), plain);
}

TEST_F(Convert, SizeLabel) {
  const auto label = [](const std::string& path) {
    return std::string(GgufFile(path).metadata().get<std::string_view>("general.size_label"));
  };
  EXPECT_EQ(size_label(999, 0), "1.0K");
  EXPECT_EQ(size_label(3148032, 0), "3.1M");
  EXPECT_EQ(size_label(124439808, 0), "124M");
  EXPECT_EQ(size_label(1100048384, 0), "1.1B");
  EXPECT_EQ(size_label(8030261248, 0), "8.0B");
  EXPECT_EQ(size_label(70553706496, 0), "71B");
  EXPECT_EQ(size_label(7241732096, 8), "8x7.2B");
  EXPECT_EQ(label(convert(test::family_folder(test::load_family("llama")), "dense")), "78K");  // 78144
  EXPECT_EQ(label(convert(folder_, "experts")), "4x79K");  // the routers: 512 more
}

// A folder of sparse files with the tensors of a Llama model; takes no disk space.
std::string large_folder(const test::TempDir& directory, int64_t n_ff) {
  HfFolder folder = test::family_folder(test::load_family("llama"));
  folder.config["intermediate_size"] = n_ff;
  folder.config["num_hidden_layers"] = 1;
  nlohmann::json header;
  uint64_t end = 0;
  for (const auto& [name, t] : folder.tensors) {
    if (name.find("layers.1.") != std::string::npos) continue;
    std::vector<int64_t> shape = t.shape;
    if (name.find("mlp") != std::string::npos)
      (name.find("down") == std::string::npos ? shape[0] : shape[1]) = n_ff;
    uint64_t n = 2;
    for (const int64_t size : shape) n *= static_cast<uint64_t>(size);
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + n}}};
    end += n;
  }
  folder.tensors.clear();
  const std::string path = directory.path("large");
  folder.write(path);
  const std::string text = header.dump();
  test::write_file(path + "/model.safetensors", test::ByteString().u64(text.size()).raw(text).bytes());
  std::filesystem::resize_file(path + "/model.safetensors", 8 + text.size() + end);
  return path;
}

// Tensors of 128 MiB, which convert must never hold in memory as a whole.
TEST_F(Convert, MemoryIsBounded) {
  TANDEM_NEED_BINARY();
  const std::string path = large_folder(directory_, int64_t{1} << 20), out = directory_.path("large.gguf");
  const std::string binary = test::binary_path();
  const pid_t child = fork();
  if (child == 0) {
    execl(binary.c_str(), "tandem", "convert", path.c_str(), "-o", out.c_str(), "--outtype", "q8_0", "-t",
          "2", "--log-disable", nullptr);
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  ASSERT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_LT(usage.ru_maxrss, 200 * 1024);  // KiB
  EXPECT_EQ(GgufFile(out).tensor("blk.0.ffn_up.weight").n_bytes, (uint64_t{1} << 20) * 68);
}

// Whether process `pid` can write to an open file of `folder`, with a name or (most outputs) without one yet. What
// Landlock's rules have open, the old output too, is open for nothing.
bool writes_in(pid_t pid, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    if (!fs::read_symlink(entry, error).string().starts_with(folder + "/")) continue;
    if ((fs::symlink_status(entry, error).permissions() & fs::perms::owner_write) != fs::perms::none)
      return true;
  }
  return false;
}

// Ctrl-C or a kill in the middle: the old file stays, and an interrupted run leaves no temporary file.
TEST_F(Convert, InterruptedOrKilled) {
  TANDEM_NEED_BINARY();
  const std::string path = large_folder(directory_, int64_t{1} << 22);
  std::filesystem::create_directories(directory_.path("out"));
  const std::string out = directory_.path("out/m.gguf"), binary = test::binary_path();
  const std::string old = test::small_gguf().bytes();
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    test::write_file(out, old);
    const pid_t child = fork();
    if (child == 0) {
      execl(binary.c_str(), "tandem", "convert", path.c_str(), "-o", out.c_str(), "--log-disable", nullptr);
      _exit(127);
    }
    for (int i = 0; i < 6000 && !writes_in(child, directory_.path("out")); ++i) usleep(10000);
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "it was done before signal " << signal;
    if (signal == SIGINT) {
      EXPECT_EQ(WEXITSTATUS(status), 130);
    }
    EXPECT_TRUE(bytes_of(out) == old);
    if (signal == SIGINT) {
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path("out")), {}), 1);
    }
  }
}

// A full disk: no file, one line, exit code 5.
TEST_F(Convert, FullDisk) {
  TANDEM_NEED_BINARY();
  const std::string path = large_folder(directory_, int64_t{1} << 20);
  std::filesystem::create_directories(directory_.path("out"));
  const auto outcome =
      test::shell("( trap '' XFSZ; ulimit -f 2000; exec",
                  "convert '" + path + "' -o '" + directory_.path("out/m.gguf") + "' --log-disable 2>&1; )");
  EXPECT_EQ(outcome.exit_code, 5) << outcome.out;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1) << outcome.out;
  EXPECT_THAT(outcome.out, testing::HasSubstr("out/m.gguf: cannot write after the first "));
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path("out")));
  const auto nowhere =
      test::shell("", "convert '" + path + "' -o '" + directory_.path("no/m.gguf") + "' 2>&1");
  EXPECT_EQ(nowhere.exit_code, 5);
  EXPECT_THAT(nowhere.out, testing::HasSubstr("no/m.gguf: cannot create: No such file or directory"));
}

TEST_F(Convert, Command) {
  TANDEM_NEED_BINARY();
  folder_.write(directory_.path("hf"));
  const std::string hf = "convert '" + directory_.path("hf") + "' ",
                    out = "-o '" + directory_.path("m.gguf") + "' ";
  EXPECT_EQ(test::shell("", hf + out + "--outtype f16 2>/dev/null").exit_code, 0);
  EXPECT_EQ(test::shell("", hf + "2>/dev/null").exit_code, 2);
  EXPECT_EQ(test::shell("", hf + out + "--outtype q4 2>/dev/null").exit_code, 2);
  EXPECT_EQ(test::shell("", hf + out + "--split-max-size 5x 2>/dev/null").exit_code, 2);
  std::filesystem::remove(directory_.path("hf/tokenizer.json"));
  EXPECT_EQ(test::shell("", hf + out + "2>/dev/null").exit_code, 3);
}

}  // namespace
}  // namespace tandem::tools
