#include "capi/model.h"

#include <algorithm>

#include "capi/call.h"
#include "capi/chat_template.h"
#include "capi/options.h"
#include "engine/chat_prompt.h"
#include "setup/setup.h"

namespace tandem::capi {
namespace {

std::shared_ptr<const LoadedModel> load(const char* path, const tandem_options& options) {
  EngineOptions engine = options.engine;
  engine.model.path = path;
  auto loaded = std::make_shared<LoadedModel>();
  loaded->model = open_model(engine);
  const Model& model = *loaded->model;
  const Hparams& hparams = model.hparams();
  loaded->name = model.file().metadata().get_or<std::string>("general.name", "");
  loaded->description = model.description();
  tandem_model_info& info = loaded->info;
  info.path = model.path().c_str();
  info.name = loaded->name.c_str();
  info.description = loaded->description.c_str();
  info.architecture = hparams.architecture.c_str();
  info.n_params = model.n_params();
  info.n_weight_bytes = static_cast<int64_t>(model.n_weight_bytes());
  info.n_ctx_train = hparams.n_ctx_train;
  info.n_vocab = static_cast<int32_t>(hparams.n_vocab);
  info.n_layer = static_cast<int32_t>(hparams.n_layer);
  info.bos = model.vocab().special().bos;
  info.eos = model.vocab().special().eos;
  return loaded;
}

// Copies as much of `from` as there is room for, and says how much there is.
template <class T>
tandem_status copy_out(std::span<const T> from, T* to, size_t capacity, size_t* n) {
  *n = from.size();
  if (to == nullptr) return TANDEM_OK;
  std::copy_n(from.begin(), std::min(capacity, from.size()), to);
  if (from.size() <= capacity) return TANDEM_OK;
  return fail(TANDEM_ERROR_TOO_SMALL, format("the buffer has room for {}, needed {}", capacity, from.size()));
}

const Model& model_of(const tandem_model* model) {
  need(model, "model");
  return *model->loaded->model;
}

}  // namespace
}  // namespace tandem::capi

using namespace tandem;
using namespace tandem::capi;

tandem_status tandem_model_load(const char* path, const tandem_options* options, tandem_model** model) {
  if (model != nullptr) *model = nullptr;
  return guarded([&] {
    need(path, "path");
    need(model, "model");
    *model = new tandem_model{load(path, given(options))};
  });
}

void tandem_model_free(tandem_model* model) {
  delete model;
}

const tandem_model_info* tandem_model_get_info(const tandem_model* model) {
  return model == nullptr ? nullptr : &model->loaded->info;
}

tandem_status tandem_tokenize(const tandem_model* model, const char* text, size_t n_bytes, int flags,
                              int32_t* ids, size_t capacity, size_t* n_ids) {
  if (n_ids != nullptr) *n_ids = 0;
  return guarded([&] {
    const Vocab& vocab = model_of(model).vocab();
    if (n_bytes > 0) need(text, "text");
    need(n_ids, "n_ids");
    TokenizeOptions how;
    how.add_special = (flags & TANDEM_ADD_SPECIAL) != 0;
    how.parse_special = (flags & TANDEM_PARSE_SPECIAL) != 0;
    const std::vector<int32_t> found =
        vocab.tokenize(n_bytes > 0 ? std::string_view(text, n_bytes) : std::string_view(), how);
    return copy_out(std::span(found), ids, capacity, n_ids);
  });
}

tandem_status tandem_detokenize(const tandem_model* model, const int32_t* ids, size_t n_ids, int flags,
                                char* bytes, size_t capacity, size_t* n_bytes) {
  if (n_bytes != nullptr) *n_bytes = 0;
  return guarded([&] {
    const Model& m = model_of(model);
    if (n_ids > 0) need(ids, "ids");
    need(n_bytes, "n_bytes");
    const std::span<const int32_t> tokens(ids, n_ids);
    check_ids(m, tokens);
    const bool shown = (flags & TANDEM_PARSE_SPECIAL) != 0;
    const std::string text = m.vocab().detokenize(tokens, shown ? SpecialText::shown : SpecialText::hidden);
    return copy_out(std::span<const char>(text), bytes, capacity, n_bytes);
  });
}

int tandem_token_ends_text(const tandem_model* model, int32_t id) {
  return model != nullptr && model->loaded->model->vocab().is_eog(id) ? 1 : 0;
}

tandem_status tandem_tokenize_chat(const tandem_model* model, const tandem_options* options,
                                   const tandem_message* messages, size_t n_messages, int32_t* ids,
                                   size_t capacity, size_t* n_ids) {
  if (n_ids != nullptr) *n_ids = 0;
  return guarded([&] {
    const Model& m = model_of(model);
    need(messages, "messages");
    need(n_ids, "n_ids");
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const tandem_message& message : std::span(messages, n_messages)) {
      need(message.role, "role");
      need(message.content, "content");
      check_utf8(message.role, "role");
      check_utf8(message.content, "content");
      list.push_back({{"role", message.role}, {"content", message.content}});
    }
    const ChatTemplate chat_template = chosen_template(m, given(options).chat_template);
    return copy_out(std::span<const int32_t>(chat_prompt(m, chat_template, list)), ids, capacity, n_ids);
  });
}
