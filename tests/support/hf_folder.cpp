#include "support/hf_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "base/fp16.h"
#include "base/sanitized.h"
#include "support/gguf_bytes.h"
#include "support/paths.h"
#include "text/byte_alphabet.h"

namespace tandem::test {
namespace {

const std::string kExpanded = "_expanded";

using Json = nlohmann::json;

uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The values of a rule [name, dtype, shape, base, scale, bits].
HfTensor make_tensor(const Json& rule) {
  HfTensor t{rule[1], rule[2], {}};
  const std::string name = rule[0];
  int64_t n = 1;
  for (const int64_t size : t.shape) n *= size;
  for (int64_t i = 0; i < n; ++i) {
    const double x = family_value(name, static_cast<uint64_t>(i), rule[3], rule[4], rule[5]);
    if (t.dtype == "U8" || t.dtype == "F8_E4M3") {
      t.bytes += static_cast<char>(static_cast<uint8_t>(static_cast<int64_t>(x)));
    } else if (t.dtype == "F32") {
      const auto value = static_cast<float>(x);
      t.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      const bf16_t bits = fp32_to_bf16(static_cast<float>(x));
      t.bytes.append(reinterpret_cast<const char*>(&bits), sizeof bits);
    }
  }
  return t;
}

}  // namespace

double family_value(const std::string& name, uint64_t index, double base, double scale, int bits) {
  const auto k = static_cast<int64_t>(splitmix64(fnv1a(name) + index)) >> (64 - bits);
  return base + scale * static_cast<double>(k);
}

std::string safetensors_bytes(const std::map<std::string, HfTensor>& tensors) {
  Json header;
  std::string data;
  for (const auto& [name, t] : tensors) {
    header[name] = {{"dtype", t.dtype},
                    {"shape", t.shape},
                    {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  const std::string text = header.dump();
  const uint64_t n = text.size();
  std::string bytes(sizeof n, '\0');
  std::memcpy(bytes.data(), &n, sizeof n);
  return bytes + text + data;
}

void HfFolder::write(const std::string& folder) const {
  std::filesystem::create_directories(folder);
  write_file(folder + "/config.json", config.dump());
  if (!tensors.empty()) write_file(folder + "/model.safetensors", safetensors_bytes(tensors));
  if (!tokenizer.is_null()) write_file(folder + "/tokenizer.json", tokenizer.dump());
  if (!tokenizer_config.is_null()) write_file(folder + "/tokenizer_config.json", tokenizer_config.dump());
  if (!generation_config.is_null()) write_file(folder + "/generation_config.json", generation_config.dump());
  for (const auto& [name, text] : files) write_file(folder + "/" + name, text);
}

void HfFolder::write_sharded(const std::string& folder, size_t n_shards) const {
  HfFolder rest = *this;
  rest.tensors.clear();
  rest.write(folder);
  std::vector<std::map<std::string, HfTensor>> shards(n_shards);
  Json map;
  size_t i = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t shard = i++ % n_shards;
    shards[shard][name] = tensor;
    map[name] = "model-" + std::to_string(shard + 1) + ".safetensors";
  }
  for (size_t s = 0; s < n_shards; ++s) {
    write_file(folder + "/model-" + std::to_string(s + 1) + ".safetensors", safetensors_bytes(shards[s]));
  }
  write_file(folder + "/model.safetensors.index.json",
             Json{{"metadata", Json::object()}, {"weight_map", map}}.dump());
}

namespace {

std::string family_file(const std::string& name) {
  const size_t n = name.ends_with(kExpanded) ? name.size() - kExpanded.size() : name.size();
  return test_data("golden/families/" + name.substr(0, n) + ".json");
}

std::vector<std::string> find_families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test_data("golden/families"))) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  // The thread sanitizer takes minutes for a family. These have all kinds of layers between them.
  if (kThreadSanitized)
    return {"deepseek_v3",
            "gemma4_moe",
            "gemma4_shared",
            "gpt_oss",
            "granite_hybrid",
            "lfm2",
            "llama",
            "mixtral",
            "nemotron_h",
            "phi3_longrope_long",
            "qwen3_moe_deferred",
            "qwen3_next"};
  return names;
}

std::vector<std::string> find_forms() {
  std::vector<std::string> names = family_names();
  for (const std::string& name : family_names()) {
    if (read_file(family_file(name)).find("kv_lora_rank") == std::string::npos) continue;  // parsing takes its time
    if (load_family(name).json["config"].contains("kv_lora_rank")) names.push_back(name + kExpanded);
  }
  return names;
}

}  // namespace

// Every process of the tests asks for the names, several times.
const std::vector<std::string>& family_names() {
  static const std::vector<std::string> names = find_families();
  return names;
}

const std::vector<std::string>& family_names_and_forms() {
  static const std::vector<std::string> names = find_forms();
  return names;
}

LatentForm form_of(const std::string& name) {
  return name.ends_with(kExpanded) ? LatentForm::expanded : LatentForm::cheaper;
}

Family load_family(const std::string& name) {
  return {Json::parse(read_file(family_file(name)))};
}

HfFolder family_folder(const Family& family) {
  HfFolder folder;
  folder.config = family.json["config"];
  for (const Json& rule : family.json["tensors"]) folder.tensors[rule[0]] = make_tensor(rule);
  const Json& text = folder.config.contains("text_config") ? folder.config["text_config"] : folder.config;
  folder.tokenizer = small_tokenizer(text["vocab_size"]);
  folder.tokenizer_config = {
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"chat_template", "{{ messages }}"}};
  return folder;
}

Json small_tokenizer(int64_t n_tokens) {
  Json vocab;
  std::vector<std::string> texts{"<unk>", "<s>", "</s>"};
  for (int c = 32; c < 127; ++c) texts.emplace_back(byte_to_letter(static_cast<uint8_t>(c)));
  Json merges = Json::array();
  const std::string space(byte_to_letter(' '));
  for (const auto& [left, right] :
       {std::pair<std::string, std::string>("h", "e"), {"t", "he"}, {space, "the"}, {"a", "n"}, {"l", "l"}}) {
    if (static_cast<int64_t>(texts.size()) == n_tokens) break;
    merges.push_back(left + " " + right);
    texts.push_back(left + right);
  }
  for (size_t id = 0; id < texts.size(); ++id) vocab[texts[id]] = id;
  Json added = Json::array();
  for (int id = 0; id < 3; ++id) {
    added.push_back({{"id", id},
                     {"content", texts[static_cast<size_t>(id)]},
                     {"special", true},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"single_word", false},
                     {"normalized", false}});
  }
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", nullptr},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", merges}}}};
}

}  // namespace tandem::test
