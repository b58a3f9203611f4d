// ChatLoop: turns at a terminal until the user exits, or a single turn for a script.
#pragma once

#include <memory>
#include <string>

#include "engine/conversation.h"
#include "tools/chat/commands.h"
#include "tools/chat/typed_lines.h"
#include "tools/chat/view.h"

namespace tandem::tools {

class ChatLoop {
 public:
  // `session_file`, if not empty, is saved after each turn.
  ChatLoop(ChatEngine& engine, ChatView& view, ViewSettings& shown, const std::string& session_file);

  // One message and its answer; returns why that ended. Throws what Conversation::ask throws, and
  // Error(interrupted) after a Ctrl-C.
  StopReason single_turn(const std::string& message);

  // Reads lines until Ctrl-D, /exit, a signal that ends the program, or Ctrl-C twice at the prompt
  // (Error(interrupted)). `first`, if not empty, is the first message; with single_turn, returns after one
  // answer. Shows an error in a turn and continues.
  struct Interactive {
    std::string first;
    bool single_turn = false;
    bool color = false;
    bool simple_io = false;  // no control sequences
    std::shared_ptr<sandbox::FileHelper> helper =
        nullptr;  // where lines are typed, if the program is confined
  };
  void interactive(const Interactive& how);

  // Saves the session file with the cache, if it is not what was saved last.
  void save_at_end();

 private:
  void turn(const std::string& message);
  void regenerate();
  void handle(const std::string& line);
  void try_to(const std::function<void()>& action);
  void save_after_turn();
  Answer show(const std::function<Answer(const AnswerCallbacks&)>& make);
  AnswerCallbacks callbacks();

  ChatView& view_;
  ChatState chat_;
  std::string session_file_;
  bool cache_is_saved_ = false;
  unsigned terminal_changes_ = 0;
  int64_t n_left_out_ = 0;  // as last reported to the user
};

}  // namespace tandem::tools
