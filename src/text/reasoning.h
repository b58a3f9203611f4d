// ReasoningSplitter: tells what a model thinks from what it says, as the text comes. Thinking stands between
// marks that the model was trained to write: <think> </think>, [THINK] [/THINK], or the channels of gpt-oss.
// Marks are taken out, however the pieces cut them, and so is the white space around what they enclose.
//
// One answer, one thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tandem {

enum class AnswerPart { reasoning, answer };

class ReasoningSplitter {
 public:
  using Sink = std::function<void(AnswerPart part, std::string_view text)>;
  // `prompt`: what stands before the answer; it may have opened the marks already.
  ReasoningSplitter(std::string_view prompt, Sink sink);

  void add(std::string_view text);
  // The rest that waited for a mark to be completed.
  void finish();

  // Whether a token of this text is a mark or a part of one, so that it must reach add().
  static bool is_mark(std::string_view token_text);

 private:
  bool take_mark();
  void emit(std::string_view text);
  size_t held_back() const;

  Sink sink_;
  const struct ReasoningMarks* open_ = nullptr;  // the marks that enclose what comes now
  bool said_something_ = false;                  // of the answer; from then on marks are plain text
  bool skip_space_ = true;
  std::string pending_;
};

}  // namespace tandem
