#include "tools/chat/loop.h"

#include <utility>

#include "base/interrupt.h"
#include "tools/chat/files.h"
#include "tools/chat/signals.h"
#include "tools/options/setting_flags.h"
#include "tools/output.h"

namespace tandem::tools {

namespace {

// Above this, only the transcript is saved after each turn, and the cache at the end.
constexpr size_t kMaxCacheEachTurn = size_t{64} << 20;

// Settings as a user of the chat changes them.
std::string chat_setting_text(const SettingValue& s) {
  return s.setting == Setting::context_shift ? "/set context_shift on" : flag_text(s);
}

}  // namespace

ChatLoop::ChatLoop(ChatEngine& engine, ChatView& view, ViewSettings& shown, const std::string& session_file)
    : view_(view), chat_{engine, view, shown, {}, {}, {}, {}, false}, session_file_(session_file) {
  if (!session_file_.empty()) chat_.own_files.insert(session_file_);
}

AnswerCallbacks ChatLoop::callbacks() {
  AnswerCallbacks c;
  c.chosen = [this](const Continuation::Choice& choice) {
    if (choice.logprobs) view_.token(*choice.logprobs);
  };
  c.text = [this](AnswerPart part, std::string_view text) {
    const unsigned changes = terminal_changes();
    if (changes != std::exchange(terminal_changes_, changes)) hide_typed_keys();
    view_.text(part, text);
  };
  c.prompt_progress = [this](int64_t n_done, int64_t n_prompt) { view_.progress(n_done, n_prompt); };
  c.interrupted = [this] { return interrupted() || ending_signal() != 0 || view_.lost(); };
  return c;
}

Answer ChatLoop::show(const std::function<Answer(const AnswerCallbacks&)>& make) {
  Answer answer;
  try {
    answer = make(callbacks());
  } catch (const ClosedPipe&) {
    throw;
  } catch (...) {
    view_.abandon();
    throw;
  }
  const Session& session = chat_.engine.session();
  chat_.seed = answer.seed;
  view_.end(answer, session.n_past(), session.n_ctx());
  if (answer.n_left_out > n_left_out_) {
    view_.note(
        format("(the context was full: the oldest {} no longer included)",
               answer.n_left_out == 1 ? "message is" : format("{} messages are", answer.n_left_out)));
  }
  n_left_out_ = answer.n_left_out;
  if (answer.stats.n_shifts > 0) {
    const std::string times = answer.stats.n_shifts == 1 ? "once" : format("{} times", answer.stats.n_shifts);
    view_.note("(the context was full: dropped its older half " + times + ")");
  }
  return answer;
}

void ChatLoop::turn(const std::string& message) {
  const std::string text = chat_.attached + message;
  chat_.unanswered = message;  // if it fails, /edit has it
  const Answer answer = show([&](const AnswerCallbacks& c) { return chat_.conversation().ask(text, c); });
  chat_.attached.clear();
  chat_.unanswered = answer.kept ? "" : text;
  if (!answer.kept) view_.note("(stopped before the answer began; use /regen or /edit)");
  save_after_turn();
}

void ChatLoop::regenerate() {
  if (!chat_.unanswered.empty()) return turn(std::exchange(chat_.unanswered, ""));
  show([&](const AnswerCallbacks& c) { return chat_.conversation().regenerate(c); });
  save_after_turn();
}

void ChatLoop::save_after_turn() {
  if (session_file_.empty()) return;
  const bool all = chat_.engine.session().kv_bytes() <= kMaxCacheEachTurn;
  try {
    check_session_target(session_file_, chat_.engine, Replace::allowed);
    chat_.conversation().save(session_file_, all ? Saved::all : Saved::transcript);
    cache_is_saved_ = all;
  } catch (const Error& e) {
    view_.error(message_of(e), e.code());
  }
}

void ChatLoop::save_at_end() {
  if (session_file_.empty() || cache_is_saved_) return;
  check_session_target(session_file_, chat_.engine, Replace::allowed);
  chat_.conversation().save(session_file_);
  cache_is_saved_ = true;
}

StopReason ChatLoop::single_turn(const std::string& message) {
  cache_is_saved_ = false;
  const Answer answer = show([&](const AnswerCallbacks& c) { return chat_.conversation().ask(message, c); });
  if (answer.stats.reason == StopReason::interrupted) throw Error(ErrorCode::interrupted, "");
  return answer.stats.reason;
}

// Shows an error instead of ending the conversation.
void ChatLoop::try_to(const std::function<void()>& action) {
  try {
    action();
  } catch (const ClosedPipe&) {
    throw;
  } catch (const Error& e) {
    view_.error(write_settings(e.message(), chat_setting_text), e.code());
    if (e.message().starts_with("the context is full"))
      view_.note("(/clear starts anew, /undo removes the last turn, /edit shortens the message)");
  } catch (const std::bad_alloc&) {
    view_.error("out of memory", ErrorCode::out_of_memory);
  }
  clear_interrupt();
}

void ChatLoop::handle(const std::string& line) {
  cache_is_saved_ = false;  // a command may change the conversation
  if (!is_command(line)) return turn(line);
  if (run_command(chat_, line) == CommandResult::regenerate) regenerate();
}

void ChatLoop::interactive(const Interactive& how) {
  if (!how.first.empty() && how.single_turn) {
    single_turn(how.first);
    return;
  }
  const auto typed = how.helper ? typed_outside(how.helper, how.color, how.simple_io)
                                : typed_here({.prompt = "> ",
                                              .color = how.color,
                                              .simple = how.simple_io,
                                              .history_file = state_file("chat_history"),
                                              .complete = complete_command});
  if (!how.first.empty()) try_to([&] { turn(how.first); });
  for (bool interrupted_before = false; !chat_.leave && ending_signal() == 0 && !view_.lost();) {
    const LineEditor::Line line = typed->read(std::exchange(chat_.edit, ""));
    clear_interrupt();
    if (line.end == LineEditor::End::end_of_input) return;
    if (line.end == LineEditor::End::interrupted) {
      if (!line.text.empty()) {  // which is gone now; the conversation stays
        interrupted_before = false;
        continue;
      }
      if (interrupted_before) throw Error(ErrorCode::interrupted, "");
      interrupted_before = true;
      view_.note("(press Ctrl-C again to exit)");
      continue;
    }
    interrupted_before = false;
    if (line.text.find_first_not_of(" \t\n") == line.text.npos) continue;
    if (how.single_turn && !is_command(line.text)) {
      single_turn(chat_.attached + line.text);
      return;
    }
    try_to([&] { handle(line.text); });
  }
}

}  // namespace tandem::tools
