// ChatLoop: turns at a terminal until the user exits, or a single turn for a script.
#pragma once

#include <string>

#include "engine/conversation.h"
#include "tools/chat/commands.h"
#include "tools/chat/line_editor.h"
#include "tools/chat/view.h"

namespace tandem::tools {

class ChatLoop {
 public:
  ChatLoop(Conversation& conversation, ChatView& view, ShowReasoning& reasoning)
      : view_(view), chat_{conversation, view, reasoning, {}, {}, {}, false} {}

  // One message and its answer. Throws what Conversation::ask throws, and Error(interrupted) after a Ctrl-C.
  void single_turn(const std::string& message);

  // Reads lines until Ctrl-D, /exit, or Ctrl-C twice at the prompt (Error(interrupted)). `first`, if not
  // empty, is the first message; with single_turn, returns after one answer. Shows an error in a turn and
  // continues.
  struct Interactive {
    std::string first;
    bool single_turn = false;
    bool color = false;
  };
  void interactive(const Interactive& how);

 private:
  void turn(const std::string& message);
  void regenerate();
  void handle(const std::string& line);
  void try_to(const std::function<void()>& action);
  Answer show(const std::function<Answer(const AnswerCallbacks&)>& make);
  AnswerCallbacks callbacks() const;

  ChatView& view_;
  ChatState chat_;
  int64_t n_left_out_ = 0;  // as last reported to the user
};

}  // namespace tandem::tools
