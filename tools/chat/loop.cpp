#include "tools/chat/loop.h"

#include "base/interrupt.h"
#include "tools/options/setting_flags.h"
#include "tools/output.h"

namespace tandem::tools {

AnswerCallbacks ChatLoop::callbacks() const {
  AnswerCallbacks c;
  c.text = [this](AnswerPart part, std::string_view text) { view_.text(part, text); };
  c.prompt_progress = [this](int64_t n_done, int64_t n_prompt) { view_.progress(n_done, n_prompt); };
  c.interrupted = [] { return interrupted(); };
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
  const Session& session = chat_.conversation.session();
  view_.end(answer, session.n_past(), session.n_ctx());
  if (answer.n_left_out > n_left_out_) {
    view_.note(
        format("(the context was full: the oldest {} messages are no longer included)", answer.n_left_out));
  }
  n_left_out_ = answer.n_left_out;
  if (answer.stats.n_shifts > 0) {
    view_.note(format("(the context was full: dropped its older half {} times)", answer.stats.n_shifts));
  }
  return answer;
}

void ChatLoop::turn(const std::string& message) {
  const std::string text = chat_.attached + message;
  const Answer answer = show([&](const AnswerCallbacks& c) { return chat_.conversation.ask(text, c); });
  chat_.attached.clear();
  chat_.unanswered = answer.kept ? "" : text;
  if (!answer.kept) view_.note("(stopped before the answer began; use /regen or /edit)");
}

void ChatLoop::regenerate() {
  if (!chat_.unanswered.empty()) return turn(std::exchange(chat_.unanswered, ""));
  show([&](const AnswerCallbacks& c) { return chat_.conversation.regenerate(c); });
}

void ChatLoop::single_turn(const std::string& message) {
  const Answer answer = show([&](const AnswerCallbacks& c) { return chat_.conversation.ask(message, c); });
  if (answer.stats.reason == StopReason::interrupted) throw Error(ErrorCode::interrupted, "");
}

// Shows an error instead of ending the conversation.
void ChatLoop::try_to(const std::function<void()>& action) {
  try {
    action();
  } catch (const ClosedPipe&) {
    throw;
  } catch (const Error& e) {
    view_.error(message_of(e), e.code());
  } catch (const std::bad_alloc&) {
    view_.error("out of memory", ErrorCode::out_of_memory);
  }
  clear_interrupt();
}

void ChatLoop::handle(const std::string& line) {
  if (!is_command(line)) return turn(line);
  if (run_command(chat_, line) == CommandResult::regenerate) regenerate();
}

void ChatLoop::interactive(const Interactive& how) {
  if (!how.first.empty() && how.single_turn) return single_turn(how.first);
  LineEditor editor({.prompt = "> ",
                     .color = how.color,
                     .history_file = state_file("chat_history"),
                     .complete = complete_command});
  if (!how.first.empty()) try_to([&] { turn(how.first); });
  for (bool interrupted_before = false; !chat_.leave;) {
    const LineEditor::Line line = editor.read(std::exchange(chat_.edit, ""));
    clear_interrupt();
    if (line.end == LineEditor::End::end_of_input) return;
    if (line.end == LineEditor::End::interrupted) {
      if (interrupted_before) throw Error(ErrorCode::interrupted, "");
      interrupted_before = true;
      view_.note("(press Ctrl-C again to exit)");
      continue;
    }
    interrupted_before = false;
    if (line.text.find_first_not_of(" \t\n") == line.text.npos) continue;
    if (how.single_turn && !is_command(line.text)) return single_turn(chat_.attached + line.text);
    try_to([&] { handle(line.text); });
  }
}

}  // namespace tandem::tools
