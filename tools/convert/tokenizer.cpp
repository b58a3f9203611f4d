#include "tools/convert/tokenizer.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "text/pretokenizer_table.h"
#include "text/vocab.h"

namespace tandem::tools {
namespace {

class Tokenizer {
 public:
  Tokenizer(const std::string& folder, const JsonObject& config, const TokenizerOptions& options)
      : folder_(folder),
        config_(config),
        options_(options),
        generation_(JsonObject::read_optional(folder + "/generation_config.json")),
        tokenizer_config_(JsonObject::read_optional(folder + "/tokenizer_config.json")),
        special_map_(JsonObject::read_optional(folder + "/special_tokens_map.json")) {}

  VocabData read() {
    data_ = read_model();
    apply_later_tokens();
    set_special_ids();
    set_flags();
    fill_up();
    return std::move(data_);
  }

  void add_chat_template(Metadata& metadata) const {
    const std::string path = folder_ + "/chat_template.jinja";
    if (file_exists(path)) {
      metadata.set("tokenizer.chat_template", Value(read_regular_file(path, 1 << 24)));
      return;
    }
    if (const auto file = JsonObject::read_optional(folder_ + "/chat_template.json")) {
      if (const auto text = file->text("chat_template"))
        metadata.set("tokenizer.chat_template", Value(*text));
      return;
    }
    const Json* found = tokenizer_config_ ? tokenizer_config_->find("chat_template") : nullptr;
    if (!found) return;
    if (found->is_string()) return metadata.set("tokenizer.chat_template", Value(found->get<std::string>()));
    add_named_templates(*found, metadata);
  }

 private:
  // [{"name": "default", "template": ...}, {"name": "tool_use", ...}]
  void add_named_templates(const Json& list, Metadata& metadata) const {
    if (!list.is_array()) tokenizer_config_->fail("chat_template", short_json(list), "a string or an array");
    std::vector<std::string> names;
    for (const Json& one : list) {
      const JsonObject entry = JsonObject::parse(one.dump(), tokenizer_config_->source() + ": chat_template");
      const auto name = entry.text("name"), text = entry.text("template");
      if (!name || !text) entry.fail("template", "nothing", "a name and a template");
      if (*name == "default") {
        metadata.set("tokenizer.chat_template", Value(*text));
        continue;
      }
      std::string key = *name;
      for (char& c : key) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      names.push_back(key);
      metadata.set("tokenizer.chat_template." + key, Value(*text));
    }
    if (!names.empty()) metadata.set("tokenizer.chat_templates", Value(names));
  }

  // A SentencePiece model has exact scores, so it wins over a tokenizer.json derived from it. But some
  // folders have a byte-level tokenizer.json and an unrelated tokenizer.model.
  VocabData read_model() const {
    const std::string json_path = folder_ + "/tokenizer.json", model_path = folder_ + "/tokenizer.model";
    const auto json = JsonObject::read_optional(json_path);
    const bool has_model = file_exists(model_path);
    if (json && (!has_model || is_byte_level(*json))) return read_tokenizer_json(*json, options_.pre);
    if (has_model) {
      VocabData data = read_sentencepiece_model(read_regular_file(model_path), model_path);
      if (json) copy_added(read_tokenizer_json(*json, options_.pre), data);
      return data;
    }
    throw_error(ErrorCode::bad_file, "{}: found no tokenizer, needed tokenizer.json or tokenizer.model",
                folder_);
  }

  // Copies what only tokenizer.json has: added tokens, and what is added before and after a text.
  static void copy_added(const VocabData& from, VocabData& to) {
    for (size_t id = 0; id < from.tokens.size(); ++id) {
      const Token& token = from.tokens[id];
      if (token.type != TokenType::control && token.type != TokenType::user_defined) continue;
      apply_added_token(to, static_cast<int64_t>(id), token.text, token.type == TokenType::control,
                        from.source);
    }
    to.add_bos = from.add_bos;
    to.add_eos = from.add_eos;
    to.add_space_prefix = from.add_space_prefix;
  }

  void apply_later_tokens() {
    if (const auto added = JsonObject::read_optional(folder_ + "/added_tokens.json")) {
      for (const auto& [text, id] : added->json().items()) {
        apply_if_new(added->integer(text, 0, INT32_MAX), text, false, added->source());
      }
    }
    const auto decoder = tokenizer_config_ ? tokenizer_config_->object("added_tokens_decoder") : std::nullopt;
    if (!decoder) return;
    for (const auto& [id, token] : decoder->json().items()) {
      if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos) {
        decoder->fail(id, "a token", "an id in its place");
      }
      const JsonObject entry = *decoder->object(id);
      apply_added_token(data_, std::stoll(id), entry.text("content").value_or(""),
                        entry.boolean("special").value_or(false), decoder->source());
    }
  }

  void apply_if_new(int64_t id, const std::string& text, bool special, const std::string& source) {
    const auto n = static_cast<int64_t>(data_.tokens.size());
    if (id < n && data_.tokens[id].text == text) return;
    apply_added_token(data_, id, text, special, source);
  }

  std::optional<int32_t> find(const std::string& text) const {
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      if (data_.tokens[id].text == text) return static_cast<int32_t>(id);
    }
    return std::nullopt;
  }

  // Reads "bos_token" of a file: a string, or an object with its content.
  std::optional<int32_t> named_token(const std::optional<JsonObject>& file, const std::string& key) const {
    const Json* value = file ? file->find(key) : nullptr;
    if (value && value->is_object()) value = value->contains("content") ? &(*value)["content"] : nullptr;
    if (!value || !value->is_string() || value->get<std::string>().empty()) return std::nullopt;
    return find(value->get<std::string>());
  }

  // Reads "eos_token_id" of a file: a number or several, most important first.
  std::vector<int32_t> ids_of(const std::optional<JsonObject>& file, const std::string& key) const {
    std::vector<int32_t> ids;
    const Json* value = file ? file->find(key) : nullptr;
    if (!value) return ids;
    for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
      if (!id.is_number_integer()) file->fail(key, short_json(*value), "an id or an array of ids");
      const auto n = id.get<int64_t>();
      if (n >= 0 && n < INT32_MAX) ids.push_back(static_cast<int32_t>(n));
    }
    return ids;
  }

  void set_role(int32_t& role, const std::string& name) const {
    for (const auto& file : {tokenizer_config_, special_map_}) {
      if (const auto id = named_token(file, name + "_token")) {
        role = *id;
        return;
      }
    }
    if (role != kNoToken) return;  // set by the tokenizer itself
    for (const auto& file : {generation_, std::optional(config_), config_.object("text_config")}) {
      const std::vector<int32_t> ids = ids_of(file, name + "_token_id");
      if (ids.empty()) continue;
      role = ids.front();
      return;
    }
  }

  void set_special_ids() {
    SpecialIds& ids = data_.special;
    for (const auto& [role, name] : {std::pair(&ids.bos, "bos"),
                                     {&ids.eos, "eos"},
                                     {&ids.pad, "pad"},
                                     {&ids.unk, "unk"},
                                     {&ids.sep, "sep"},
                                     {&ids.mask, "mask"}}) {
      set_role(*role, name);
    }
    // A second end-of-generation token is the end of turn.
    for (const auto& file : {generation_, std::optional(config_), config_.object("text_config")}) {
      for (const int32_t id : ids_of(file, "eos_token_id")) {
        if (ids.eot == kNoToken && id != ids.eos) ids.eot = id;
      }
    }
    const auto n = static_cast<int64_t>(data_.tokens.size());
    for (int32_t* role : {&ids.bos, &ids.eos, &ids.pad, &ids.unk, &ids.sep, &ids.mask, &ids.eot}) {
      if (*role < std::max(n, options_.n_vocab)) continue;
      log_warning("{}: a special token's id is {}, past the vocabulary; ignored", folder_, *role);
      *role = kNoToken;
    }
  }

  // Additions before and after a text come from tokenizer.json or, without it, from tokenizer_config.json.
  void set_flags() {
    const auto flag = [&](Flag& target, const char* key, bool usual, int32_t id) {
      if (target != Flag::unset) return;
      const auto said = tokenizer_config_ ? tokenizer_config_->boolean(key) : std::nullopt;
      target = said.value_or(usual) && id != kNoToken ? Flag::on : Flag::off;
    };
    flag(data_.add_bos, "add_bos_token", data_.kind == TokenizerKind::spm, data_.special.bos);
    flag(data_.add_eos, "add_eos_token", false, data_.special.eos);
  }

  // Fills ids without a token, inside the vocabulary or after it.
  void fill_up() {
    const auto n = static_cast<size_t>(options_.n_vocab);
    if (data_.tokens.size() > n) {
      throw_error(ErrorCode::bad_file,
                  "{}: the tokenizer has {} tokens, needed at most the vocab_size {} of config.json",
                  data_.source, data_.tokens.size(), n);
    }
    data_.tokens.resize(n);
    const float score = data_.kind == TokenizerKind::spm ? -10000.0f : 0.0f;
    for (size_t id = 0; id < n; ++id) {
      if (data_.tokens[id].text.empty()) data_.tokens[id] = {format("[PAD{}]", id), score, TokenType::unused};
    }
  }

  const std::string& folder_;
  const JsonObject& config_;
  const TokenizerOptions& options_;
  std::optional<JsonObject> generation_, tokenizer_config_, special_map_;
  VocabData data_;
};

void set_metadata(const VocabData& data, Metadata& metadata) {
  const bool spm = data.kind == TokenizerKind::spm;
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const Token& token : data.tokens) {
    texts.push_back(token.text);
    scores.push_back(token.score);
    types.push_back(static_cast<int32_t>(token.type));
  }
  metadata.set("tokenizer.ggml.model", Value(spm ? "llama" : "gpt2"));
  metadata.set("tokenizer.ggml.pre", Value(data.pre));
  metadata.set("tokenizer.ggml.tokens", Value(texts));
  if (spm) metadata.set("tokenizer.ggml.scores", Value(scores));
  metadata.set("tokenizer.ggml.token_type", Value(types));
  if (!spm) metadata.set("tokenizer.ggml.merges", Value(data.merges));
  const SpecialIds& ids = data.special;
  for (const auto& [key, id] : {std::pair("bos_token_id", ids.bos),
                                {"eos_token_id", ids.eos},
                                {"eot_token_id", ids.eot},
                                {"unknown_token_id", ids.unk},
                                {"padding_token_id", ids.pad},
                                {"seperator_token_id", ids.sep},
                                {"mask_token_id", ids.mask}}) {
    if (id != kNoToken) metadata.set(std::string("tokenizer.ggml.") + key, Value(static_cast<uint32_t>(id)));
  }
  const auto flag = [&](const char* key, Flag value) {
    if (value != Flag::unset) metadata.set(std::string("tokenizer.ggml.") + key, Value(value == Flag::on));
  };
  flag("add_bos_token", data.add_bos);
  flag("add_eos_token", data.add_eos);
  flag("add_space_prefix", data.add_space_prefix);
  flag("remove_extra_whitespaces", data.remove_extra_whitespaces);
}

}  // namespace

void add_tokenizer(const std::string& folder, const JsonObject& config, const TokenizerOptions& options,
                   Metadata& metadata) {
  if (!options.pre.empty() && !find_pre_tokenizer(options.pre)) {
    std::string known;
    for (const PreTokenizerSpec& spec : all_pre_tokenizers()) known += " " + std::string(spec.names);
    throw_error(ErrorCode::usage, "--pre: found \"{}\", needed one of:{}", printable(options.pre), known);
  }
  Tokenizer tokenizer(folder, config, options);
  const VocabData data = tokenizer.read();
  set_metadata(data, metadata);
  tokenizer.add_chat_template(metadata);
  const Vocab check(data);  // fails now rather than when the file is read
}

}  // namespace tandem::tools
