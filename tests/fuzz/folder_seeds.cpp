// First inputs from model folders: config.json of every family, its tokenizer, and the files beside them.
#include <cstring>

#include "base/error.h"
#include "fuzz/seeds.h"
#include "support/hf_folder.h"

namespace tandem::fuzz {
namespace {

using test::HfFolder;

HfFolder small_folder() {
  return test::family_folder(test::load_family("llama"));
}

// Fields of the protocol buffers that SentencePiece writes.
std::string field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) + bytes;
}
std::string piece(const std::string& text, float score, char type) {
  std::string real(sizeof score, '\0');
  std::memcpy(real.data(), &score, sizeof score);
  return field(1, field(1, text) + "\x15" + real + "\x18" + type);
}

}  // namespace

void seed_hf_folder(SeedFolder& folder) {
  for (const std::string& name : test::family_names()) {
    folder.add(name, std::string(1, '\0') + test::load_family(name).json["config"].dump());
  }
  const HfFolder hf = small_folder();
  folder.add(std::string("\x01") + R"({"eos_token_id": [2, 1], "bos_token_id": 1, "pad_token_id": 0})");
  folder.add("\x02" + hf.tokenizer_config.dump());
  folder.add(
      std::string("\x02") +
      R"({"added_tokens_decoder": {"110": {"content": "<end>", "special": true}}, "eos_token": {"content": "<end>"},
                 "add_bos_token": true, "chat_template": [{"name": "default", "template": "{{ messages }}"},
                                                          {"name": "tool use", "template": "x"}]})");
  folder.add(std::string("\x03") +
             R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"})");
  nlohmann::json map;
  for (const auto& [name, tensor] : hf.tensors) map[name] = "model.safetensors";
  folder.add("\x04" + nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
}

void seed_tokenizer_json(SeedFolder& folder) {
  nlohmann::json tokenizer = small_folder().tokenizer;
  folder.add("plain", tokenizer.dump());
  tokenizer["added_tokens"].push_back({{"id", 110}, {"content", "<tool>"}, {"special", false}});
  tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "\\p{N}{1,3}"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}};
  tokenizer["model"]["merges"] = {{"h", "e"}, {"t", "he"}};
  folder.add("sequence", tokenizer.dump());
  // As made from a SentencePiece model: bytes as tokens, U+2581 for a space.
  nlohmann::json vocab;
  int id = 0;
  for (const char* text : {"<unk>", "<s>", "</s>"}) vocab[text] = id++;
  for (int b = 0; b < 256; ++b) vocab[format("<0x{:02X}>", static_cast<unsigned>(b))] = id++;
  for (const char* text : {"\u2581", "h", "i", "hi", "\u2581hi"}) vocab[text] = id++;
  const nlohmann::json prepend = {{"type", "Prepend"}, {"prepend", "\u2581"}};
  const nlohmann::json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  folder.add("byte_fallback",
             nlohmann::json{{"added_tokens", small_folder().tokenizer["added_tokens"]},
                            {"normalizer", {{"type", "Sequence"}, {"normalizers", {prepend, replace}}}},
                            {"pre_tokenizer", nullptr},
                            {"decoder", {{"type", "ByteFallback"}}},
                            {"model",
                             {{"type", "BPE"},
                              {"unk_token", "<unk>"},
                              {"fuse_unk", true},
                              {"byte_fallback", true},
                              {"vocab", vocab},
                              {"merges", {"h i", "\u2581 hi"}}}}}
                 .dump());
}

void seed_sentencepiece(SeedFolder& folder) {
  std::string start = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
  const std::string end = piece("\u2581", -2, 1) + piece("h", -3, 1) + piece("i", -4, 1) +
                          piece("hi", -1, 1) + piece("<mark>", 0, 4) + field(2, "\x18\x02") +
                          field(3, std::string("\x18\x00\x20\x00", 4));
  folder.add("short", start + end);
  for (int b = 0; b < 256; ++b) start += piece(format("<0x{:02X}>", static_cast<unsigned>(b)), 0, 6);
  folder.add("bytes", start + end);
}

void seed_safetensors(SeedFolder& folder) {
  folder.add("family", test::safetensors_bytes(small_folder().tensors));
  std::map<std::string, test::HfTensor> tensors = {{"empty", {"F32", {0, 4}, ""}},
                                                   {"scalar", {"I64", {}, std::string(8, '\1')}},
                                                   {"bytes", {"U8", {2, 3}, "abcdef"}}};
  for (const char* dtype :
       {"F64", "F16", "BF16", "I8", "I16", "U16", "I32", "U32", "U64", "BOOL", "F8_E4M3"}) {
    tensors[dtype] = {dtype, {1}, std::string(dtype[1] == '6' ? 8 : std::strchr(dtype, '3') ? 4 : 2, '\0')};
  }
  tensors["I8"].shape = tensors["BOOL"].shape = {2};
  folder.add("unknown", test::safetensors_bytes(tensors));
  tensors.erase("F8_E4M3");
  folder.add("dtypes", test::safetensors_bytes(tensors));
}

}  // namespace tandem::fuzz
