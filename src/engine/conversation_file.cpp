// Saving and loading a Conversation: its transcript as JSON within a session file.
#include <new>

#include "base/error.h"
#include "base/json.h"
#include "engine/conversation.h"
#include "engine/session_file.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

Json message_json(const ChatMessage& m) {
  Json item = {{"role", m.role}, {"content", m.content}};
  if (!m.reasoning.empty()) item["reasoning"] = m.reasoning;
  return item;
}

// Throws Json::exception or Error for what save() would not have written.
std::vector<ChatMessage> read_messages(const Json& list) {
  std::vector<ChatMessage> messages;
  for (const Json& item : list) {
    messages.push_back({item.at("role"), item.at("content"), item.value("reasoning", "")});
    const bool system = messages.size() == 1 && messages.back().role == "system";
    const size_t n_turns = messages.size() - (messages.front().role == "system" ? 1 : 0);
    if (!system && messages.back().role != (n_turns % 2 == 1 ? "user" : "assistant")) {
      throw Error(ErrorCode::bad_file, "turns of user and assistant do not alternate");
    }
  }
  return messages;
}

void check_prompt(bool sound) {
  if (!sound) throw Error(ErrorCode::bad_file, "the prompt's parts contradict each other");
}

}  // namespace

std::string Conversation::transcript() const {
  Json messages = Json::array(), user = Json::array(), cuts = Json::array();
  for (const ChatMessage& m : messages_) messages.push_back(message_json(m));
  for (const TextSpan& s : track_.prompt.user) user.push_back({s.begin, s.end});
  for (const TokenCut& c : track_.prompt.cuts) cuts.push_back({c.n_tokens, c.n_bytes});
  const Json all = {
      {"messages", messages},         {"n_left_out", n_left_out_}, {"n_answers", n_answers_},
      {"prompt", track_.prompt.text}, {"prompt_user", user},       {"prompt_ids", track_.prompt.ids},
      {"prompt_cuts", cuts},          {"answer", track_.answer},   {"answer_ids", track_.answer_ids}};
  return all.dump();
}

void Conversation::save(const std::string& path, Saved what) const {
  save_session(session_, path, transcript(), what);
}

void Conversation::load(const std::string& path) {
  const SessionFile file(path, session_);
  std::vector<ChatMessage> messages;
  Track track;
  size_t n_left_out = 0;
  uint64_t n_answers = 0;
  if (file.transcript().empty()) {
    throw_error(ErrorCode::bad_file, "{}: holds a prompt and no conversation", path);
  }
  try {
    const Json all = parse_json<Json>(file.transcript(), "");
    messages = read_messages(all.at("messages"));
    n_left_out = all.at("n_left_out");
    n_answers = all.at("n_answers");
    track.answer = all.at("answer");
    all.at("answer_ids").get_to(track.answer_ids);
    Prompt& prompt = track.prompt;
    prompt.text = all.at("prompt");
    all.at("prompt_ids").get_to(prompt.ids);
    for (const Json& s : all.at("prompt_user")) {
      prompt.user.push_back({s.at(0), s.at(1)});
      check_prompt(s.at(0) <= s.at(1) && prompt.user.back().end <= prompt.text.size());
    }
    for (const Json& c : all.at("prompt_cuts")) {
      const TokenCut cut{c.at(0), c.at(1)};
      const TokenCut before = prompt.cuts.empty() ? TokenCut{0, 0} : prompt.cuts.back();
      check_prompt(cut.n_tokens >= before.n_tokens && cut.n_bytes >= before.n_bytes &&
                   cut.n_tokens <= prompt.ids.size() && cut.n_bytes <= prompt.text.size());
      prompt.cuts.push_back(cut);
    }
    const auto n_turns = messages.size() - (messages.empty() || messages[0].role != "system" ? 0 : 1);
    check_prompt(n_left_out % 2 == 0 && n_left_out <= n_turns && n_turns % 2 == 0);
    for (const int32_t id : prompt.ids) check_prompt(id >= 0 && id < session_.model().hparams().n_vocab);
    for (const int32_t id : track.answer_ids)
      check_prompt(id >= 0 && id < session_.model().hparams().n_vocab);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    throw_error(ErrorCode::bad_file, "{}: the transcript is damaged: {}", path, json_error_text(e));
  }
  file.restore(session_, file.tokens().size());
  messages_ = std::move(messages);
  n_left_out_ = n_left_out;
  n_answers_ = n_answers;
  track_ = std::move(track);
}

}  // namespace tandem
