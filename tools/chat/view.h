// The output of a chat: the streamed answer, the progress of a long prompt, the statistics of a turn. One
// view is for people (text on stdout, everything else on stderr), one for programs (--json, one object per
// line on stdout).
//
// Single-threaded. Throws what Output throws.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/conversation.h"

namespace tandem::tools {

enum class ShowReasoning { show, hide, off };  // off: also tell the model not to reason

// What the user can change while the chat runs.
struct ViewSettings {
  ShowReasoning reasoning = ShowReasoning::show;
  bool markdown = true;  // render it, where the terminal can
};

class ChatView {
 public:
  virtual ~ChatView() = default;

  virtual void begin(const Model& model, int64_t n_ctx, const std::string& devices) = 0;
  virtual void progress(int64_t n_done, int64_t n_prompt) = 0;  // of the prompt
  virtual void token(const TokenLogprobs&) {}                   // with --logprobs
  virtual void text(AnswerPart part, std::string_view text) = 0;
  // The answer is complete; n_past of n_ctx tokens are in use.
  virtual void end(const Answer& answer, int64_t n_past, int64_t n_ctx) = 0;
  // The answer failed; the caller reports the error.
  virtual void abandon() = 0;
  virtual void note(const std::string& text) = 0;
  // An error that does not end the chat.
  virtual void error(const std::string& message, ErrorCode code) = 0;

  // Messages of the conversation, as they were shown when they came.
  virtual void show(std::span<const ChatMessage> messages) = 0;
  // A text as it is, without rendering.
  virtual void show_source(const std::string& text) = 0;

  virtual void change(const ViewSettings& settings) = 0;
  // The terminal has gone: nothing is shown any more, and nothing is thrown.
  virtual bool lost() const { return false; }
};

struct TextViewOptions {
  bool color = false;
  bool simple = false;      // no control sequences, so no progress and no rendering
  bool interactive = true;  // statistics after each answer
  ViewSettings shown;
};
std::unique_ptr<ChatView> make_text_view(const TextViewOptions& options);
std::unique_ptr<ChatView> make_json_view();

}  // namespace tandem::tools
