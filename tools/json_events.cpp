#include "tools/json_events.h"

#include "tools/options/setting_flags.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

Json token_json(const Vocab& vocab, const TokenLogprob& t) {
  const std::string bytes = vocab.has(t.id) ? vocab.token_to_piece(t.id, SpecialText::shown) : "";
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"id", t.id}, {"token", bytes}, {"bytes", std::move(list)}, {"logprob", t.logprob}};
}

}  // namespace

Json token_json(const Vocab& vocab, const TokenLogprobs& logprobs) {
  Json token = token_json(vocab, logprobs.chosen);
  Json top = Json::array();
  for (const TokenLogprob& t : logprobs.top) top.push_back(token_json(vocab, t));
  token["top_logprobs"] = std::move(top);
  return token;
}

void JsonEvents::start(const Model& model, int64_t n_ctx, const std::string& devices) {
  write({{"event", "start"},
         {"model", model.path()},
         {"description", model.description()},
         {"devices", devices},
         {"n_ctx", n_ctx}});
}

void JsonEvents::token(const Vocab& vocab, const TokenLogprobs& logprobs) {
  Json event = {{"event", "token"}};
  event.update(token_json(vocab, logprobs));
  write(event);
}

void JsonEvents::end(StopReason reason, std::string_view content, const Json& statistics) {
  Json event = {{"event", "end"}, {"reason", stop_name(reason)}, {"content", content}};
  event.update(statistics);
  write(event);
}

void JsonEvents::error(const Error& error) {
  this->error(message_of(error), error.code());
}

void JsonEvents::error(std::string_view message, ErrorCode code) {
  write({{"event", "error"}, {"message", message}, {"code", static_cast<int>(code)}});
}

void JsonEvents::write(const Json& object) {
  out_.write_text(object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  out_.flush();
}

void run_with_events(bool json, const std::function<void()>& command) {
  if (!json) return command();
  try {
    command();
  } catch (const ClosedPipe&) {
    throw;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::interrupted) JsonEvents().error(e);
    throw;
  } catch (const std::bad_alloc&) {
    JsonEvents().error("out of memory", ErrorCode::out_of_memory);
    throw;
  }
}

}  // namespace tandem::tools
