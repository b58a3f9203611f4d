// The output of a chat: the streamed answer, the progress of a long prompt, the statistics of a turn. One
// view is for people (text on stdout, everything else on stderr), one for programs (--json, one object per
// line on stdout).
//
// Single-threaded. Throws what Output throws.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/conversation.h"

namespace tandem::tools {

enum class ShowReasoning { show, hide, off };  // off: also tell the model not to reason

class ChatView {
 public:
  virtual ~ChatView() = default;

  virtual void begin(const Model& model, int64_t n_ctx) = 0;
  virtual void progress(int64_t n_done, int64_t n_prompt) = 0;  // of the prompt
  virtual void text(AnswerPart part, std::string_view text) = 0;
  // The answer is complete; n_past of n_ctx tokens are in use.
  virtual void end(const Answer& answer, int64_t n_past, int64_t n_ctx) = 0;
  // The answer failed; the caller reports the error.
  virtual void abandon() = 0;
  virtual void note(const std::string& text) = 0;
  // An error that does not end the chat.
  virtual void error(const std::string& message, ErrorCode code) = 0;

  virtual void set_reasoning(ShowReasoning show) = 0;
};

struct TextViewOptions {
  bool color = false;
  bool animate = true;      // progress on a terminal's stderr
  bool interactive = true;  // statistics after each answer
  ShowReasoning reasoning = ShowReasoning::show;
};
std::unique_ptr<ChatView> make_text_view(const TextViewOptions& options);
std::unique_ptr<ChatView> make_json_view();

}  // namespace tandem::tools
