#include "engine/conversation.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/setting.h"
#include "base/text.h"
#include "base/utf8.h"

namespace tandem {
namespace {

constexpr int64_t kLeastMoved = 16;  // tokens; fewer are computed as quickly

using Json = nlohmann::ordered_json;

Json as_json(const std::vector<ChatMessage>& messages) {
  Json list = Json::array();
  for (const ChatMessage& m : messages) {
    Json item = {{"role", m.role}, {"content", m.content}};
    if (!m.reasoning.empty()) {  // the two names that templates look for
      item["reasoning_content"] = m.reasoning;
      item["thinking"] = m.reasoning;
    }
    list.push_back(std::move(item));
  }
  return list;
}

size_t common_prefix(std::string_view a, std::string_view b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

// The spans before byte `end`, the last one cut there.
std::vector<TextSpan> clipped(const std::vector<TextSpan>& spans, size_t end) {
  std::vector<TextSpan> out;
  for (const TextSpan& s : spans) {
    if (s.begin < end) out.push_back({s.begin, std::min(s.end, end)});
  }
  return out;
}

}  // namespace

Conversation::Conversation(Session& session, const ChatTemplate& chat_template, ConversationOptions options)
    : session_(session), template_(chat_template), options_(std::move(options)) {
  const ModelTemplate source = read_model_template(session.model().file());
  render_.bos_token = source.bos_token;
  render_.eos_token = source.eos_token;
}

std::string_view Conversation::system() const {
  return n_system() == 1 ? std::string_view(messages_.front().content) : std::string_view();
}

void Conversation::check_text(const std::string& text) const {
  const size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return;
  throw_error(ErrorCode::usage, "found byte 0x{:02x} at offset {} of the text, needed UTF-8",
              static_cast<unsigned>(static_cast<unsigned char>(text[valid])), valid);
}

void Conversation::set_system(const std::string& text) {
  check_text(text);
  if (!text.empty()) {
    const size_t n = render({{"system", text}, {"user", "."}}).ids.size();
    if (static_cast<int64_t>(n) >= session_.n_ctx()) {
      throw_error(
          ErrorCode::usage,
          "the system prompt with a message has {} tokens and the context holds {}: {} makes it larger", n,
          session_.n_ctx(), setting_text(Setting::n_ctx));
    }
  }
  if (n_system() == 1) messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), {"system", text});
  cut_ = true;
}

std::vector<ChatMessage> Conversation::sent_messages() const {
  std::vector<ChatMessage> sent = messages_;
  const auto first = sent.begin() + n_system();
  sent.erase(first, first + static_cast<std::ptrdiff_t>(n_left_out_));
  return sent;
}

Conversation::Prompt Conversation::render(const std::vector<ChatMessage>& messages) const {
  RenderOptions how = render_;
  if (!options_.template_variables.empty()) how.extra = Json::parse(options_.template_variables);
  if (!options_.think) how.extra["enable_thinking"] = false;
  return keep_common(template_.render_marked(as_json(messages), how));
}

// Tokens at the beginning of a prompt that the session has.
int64_t Conversation::n_held(const Prompt& prompt) const {
  const std::span<const int32_t> held = session_.tokens();
  return std::mismatch(held.begin(), held.end(), prompt.ids.begin(), prompt.ids.end()).first - held.begin();
}

int64_t Conversation::n_context() const {
  if (!cut_) return messages_.empty() ? 0 : session_.n_past();
  std::vector<ChatMessage> sent = sent_messages();
  if (sent.empty()) return 0;
  // What any next message keeps: one of these differs from the one that was taken back.
  sent.push_back({"user", "."});
  const int64_t n = n_held(render(sent));
  sent.back().content = "?";
  return std::min(n, n_held(render(sent)));
}

// The longest part of what the session was last given that the new text repeats; text and tokens of it.
Conversation::Prompt Conversation::keep_common(const MarkedPrompt& marked) const {
  const Prompt& old = track_.prompt;
  const std::string& text = marked.text;
  const size_t n_same = common_prefix(old.text, text);
  Prompt kept;
  const auto same_marks = [&](size_t end) { return clipped(old.user, end) == clipped(marked.user, end); };
  if (n_same == old.text.size() && same_marks(n_same)) {
    kept = old;
    // The answer, as far as it is the same but for white space around it, which some templates change.
    const std::string_view said = trimmed(track_.answer);
    const size_t begin = std::min(text.find_first_not_of(kWhiteSpace, n_same), text.size());
    const bool exact = std::string_view(text).substr(n_same).starts_with(track_.answer);
    if (!said.empty() && (exact || std::string_view(text).substr(begin).starts_with(said))) {
      kept.ids.insert(kept.ids.end(), track_.answer_ids.begin(), track_.answer_ids.end());
      kept.cuts.push_back({kept.ids.size(), exact ? n_same + track_.answer.size() : begin + said.size()});
    }
  } else {
    const auto usable = std::find_if(old.cuts.rbegin(), old.cuts.rend(), [&](const TokenCut& cut) {
      return cut.n_bytes <= n_same && same_marks(cut.n_bytes);
    });
    if (usable != old.cuts.rend()) {
      kept.cuts.assign(old.cuts.begin(), usable.base());
      kept.ids.assign(old.ids.begin(), old.ids.begin() + usable->n_tokens);
    }
  }
  kept.text = text;
  kept.user = marked.user;
  const Vocab& vocab = session_.model().vocab();
  const size_t done = kept.cuts.empty() ? 0 : kept.cuts.back().n_bytes;
  if (kept.ids.empty() && vocab.add_bos() && !text.starts_with(render_.bos_token)) {
    kept.ids.push_back(vocab.special().bos);
  }
  std::vector<TextSpan> rest_user;
  for (const TextSpan& s : kept.user) {
    if (s.end > done) rest_user.push_back({std::max(s.begin, done) - done, s.end - done});
  }
  std::vector<TokenCut> cuts;
  TokenizeOptions how;
  how.add_special = false;
  how.plain = rest_user;
  how.at_start = kept.ids.empty() || vocab.restarts_text(kept.ids.back());
  how.cuts = &cuts;
  const auto ids = vocab.tokenize(std::string_view(text).substr(done), how);
  for (const TokenCut& cut : cuts) kept.cuts.push_back({kept.ids.size() + cut.n_tokens, done + cut.n_bytes});
  kept.ids.insert(kept.ids.end(), ids.begin(), ids.end());
  if (kept.cuts.empty() || kept.cuts.back().n_bytes < text.size())
    kept.cuts.push_back({kept.ids.size(), text.size()});
  return kept;
}

// The prompt of the turn; a context that is too full for it loses its oldest turns or is an error.
Conversation::Prompt Conversation::fitting_prompt() {
  const auto n_ctx = static_cast<size_t>(session_.n_ctx());
  const size_t n_left_out_before = n_left_out_;
  Prompt prompt = render(sent_messages());
  if (prompt.ids.size() < n_ctx) return prompt;
  const size_t n_needed = prompt.ids.size();
  // Room for more than this turn, so that not every turn loses one.
  const auto n_last = messages_.size() - n_system() - 1;
  try {
    while (options_.context_shift && n_left_out_ + 2 <= n_last && prompt.ids.size() >= n_ctx - n_ctx / 4) {
      n_left_out_ += 2;
      prompt = render(sent_messages());
    }
  } catch (...) {
    n_left_out_ = n_left_out_before;
    throw;
  }
  if (prompt.ids.size() < n_ctx) return prompt;
  n_left_out_ = n_left_out_before;
  const std::string shift = setting_text(Setting::context_shift) + " leaves old turns out; or a larger ";
  throw_error(ErrorCode::usage,
              "the context is full: the conversation has {} tokens and there is room for {} ({}{})", n_needed,
              n_ctx, options_.context_shift ? "" : shift, setting_text(Setting::n_ctx));
}

// Tokens that a shift in the middle of an answer keeps: all before the first message of the user.
int64_t Conversation::n_keep(const Prompt& prompt) const {
  const std::vector<ChatMessage> sent = sent_messages();
  size_t at = 0;
  if (n_system() == 1) {
    const std::string_view text = trimmed(sent[0].content);
    at = prompt.text.find(text);
    if (at != std::string::npos) at += text.size();
  }
  if (at != std::string::npos) at = prompt.text.find(trimmed(sent[n_system()].content), at);
  size_t n = session_.model().vocab().add_bos() ? 1 : 0;
  for (const TokenCut& cut : prompt.cuts) {
    if (at != std::string::npos && cut.n_bytes <= at) n = std::max(n, cut.n_tokens);
  }
  return static_cast<int64_t>(n);
}

// A sampler that has seen what the session holds. With a seed every answer has numbers of its own, and the
// same ones when the conversation is repeated.
Sampler Conversation::make_sampler(const Prompt& prompt, int64_t n_common) const {
  SamplerParams params = options_.sampling;
  if (params.seed >= 0)
    params.seed = static_cast<int64_t>((static_cast<uint64_t>(params.seed) + n_answers_) & INT64_MAX);
  Sampler sampler(params, sampler_model(session_));
  for (int64_t i = 0; i < n_common; ++i) sampler.accept_prompt(prompt.ids[i]);
  return sampler;
}

Answer Conversation::ask(const std::string& text, const AnswerCallbacks& callbacks) {
  check_text(text);
  messages_.push_back({"user", text});
  const auto rollback = [&] {
    messages_.pop_back();
    n_left_out_ = std::min(n_left_out_, messages_.size() - n_system());
  };
  try {
    Answer result = answer(callbacks);
    if (!result.kept) rollback();
    return result;
  } catch (...) {
    if (messages_.back().role == "assistant") messages_.pop_back();
    rollback();
    throw;
  }
}

Answer Conversation::regenerate(const AnswerCallbacks& callbacks) {
  TANDEM_CHECK(can_regenerate());
  ChatMessage old = std::move(messages_.back());
  messages_.pop_back();
  try {
    Answer result = answer(callbacks);
    if (!result.kept) messages_.push_back(std::move(old));
    return result;
  } catch (...) {
    messages_.push_back(std::move(old));
    throw;
  }
}

// Cuts the session back to what it has in common with a prompt, whose first n_common tokens it holds. Where turns were left
// out, the session holds what followed them further on: that is moved. Returns how many tokens it then holds.
int64_t Conversation::reuse(std::span<const int32_t> prompt, int64_t n_common, bool left_out) {
  const std::span<const int32_t> held = session_.tokens(), rest = prompt.subspan(n_common);
  int64_t n_drop = 0, n_moved = 0;
  for (int64_t n = 1; left_out && !options_.exact_shift && n_common + n < std::ssize(held); ++n) {
    const auto later = held.subspan(n_common + n);
    const auto n_equal = std::ranges::mismatch(later, rest).in1 - later.begin();
    if (n_equal > n_moved) std::tie(n_drop, n_moved) = std::pair(n, int64_t{n_equal});
  }
  n_moved = std::min(n_moved, std::ssize(rest) - 1);  // the last one's logits are needed
  if (n_moved < kLeastMoved) n_moved = n_drop = 0;
  session_.truncate(n_common + n_drop + n_moved);
  if (n_drop > 0 && session_.shift(n_common, n_drop)) return n_common + n_moved;
  session_.truncate(n_common);
  return n_common;
}

Answer Conversation::answer(const AnswerCallbacks& callbacks) {
  Answer result;
  const size_t n_left_out_before = n_left_out_;
  Prompt prompt = fitting_prompt();
  result.n_left_out = static_cast<int64_t>(n_left_out_);
  result.n_reused =
      std::min(n_held(prompt), static_cast<int64_t>(prompt.ids.size()) - 1);  // the last one's logits are needed
  cut_ = true;  // until there is an answer
  result.n_reused = reuse(prompt.ids, result.n_reused, n_left_out_ > n_left_out_before);
  const int64_t n_held_before = result.n_reused;
  result.n_reused = session_.load_kept(prompt.ids);
  result.n_loaded = std::max<int64_t>(0, result.n_reused - n_held_before);
  Sampler sampler = make_sampler(prompt, result.n_reused);
  result.seed = sampler.seed();
  GenerateOptions how;
  how.n_predict = options_.n_predict;
  how.n_keep = n_keep(prompt);
  how.context_shift = options_.context_shift;
  how.exact_shift = options_.exact_shift;
  how.stop = options_.stop;
  how.special = SpecialText::shown;
  how.n_logprobs = options_.n_logprobs;

  track_ = {std::move(prompt), {}, {}};
  const std::span<const int32_t> rest = std::span(track_.prompt.ids).subspan(result.n_reused);
  ++n_answers_;
  result.message.role = "assistant";
  ReasoningSplitter splitter(track_.prompt.text, [&](AnswerPart part, std::string_view text) {
    (part == AnswerPart::reasoning ? result.message.reasoning : result.message.content) += text;
    if (callbacks.text) callbacks.text(part, text);
  });
  const Vocab& vocab = session_.model().vocab();
  bool hidden = false;  // control tokens that are no marks are not for the reader
  GenerateCallbacks inner;
  inner.token = [&](int32_t id) {
    track_.answer_ids.push_back(id);
    const bool control = vocab.has(id) && (vocab.token(id).type == TokenType::control ||
                                           vocab.token(id).type == TokenType::unknown);
    hidden = control && !ReasoningSplitter::is_mark(vocab.token(id).text);
  };
  inner.text = [&](std::string_view text) {
    track_.answer += text;
    if (!hidden) splitter.add(text);
    hidden = false;
  };
  inner.chosen = callbacks.chosen;
  inner.interrupted = callbacks.interrupted;
  if (callbacks.prompt_progress) {
    inner.prompt_progress = [&](int64_t n) {
      callbacks.prompt_progress(n, static_cast<int64_t>(rest.size()));
    };
  }
  result.stats = generate(session_, sampler, rest, how, inner, options_.speculation);
  splitter.finish();
  session_.keep();
  result.kept = result.stats.reason != StopReason::interrupted || !track_.answer_ids.empty();
  if (result.kept) {
    messages_.push_back(result.message);
    cut_ = false;
  }
  return result;
}

std::optional<std::string> Conversation::undo() {
  if (messages_.size() < n_system() + 2) return std::nullopt;
  messages_.pop_back();
  std::string text = std::move(messages_.back().content);
  messages_.pop_back();
  n_left_out_ = std::min(n_left_out_, messages_.size() - n_system());
  cut_ = true;
  return text;
}

void Conversation::adopt(std::vector<ChatMessage> messages) {
  if (!messages.empty()) {
    std::vector<ChatMessage> asked = messages;
    if (asked.back().role != "user") asked.push_back({"user", "."});
    render(asked);
  }
  messages_ = std::move(messages);
  n_left_out_ = 0;
}

void Conversation::clear() {
  messages_.resize(n_system());
  n_left_out_ = 0;
  cut_ = true;
}

}  // namespace tandem
