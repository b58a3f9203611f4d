// ReasoningSplitter: separates a model's reasoning from its answer while the text streams in. Reasoning
// stands between marks that the model was trained to write: <think> </think>, [THINK] [/THINK], or the
// channels of gpt-oss and of Gemma 4. The splitter removes the marks, even if pieces cut them, and the white space around
// what they enclose.
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
  // `prompt`: the text before the answer; it may have opened the marks already.
  ReasoningSplitter(std::string_view prompt, Sink sink);

  void add(std::string_view text);
  // Emits text that was held back in case a mark followed.
  void finish();

  // Returns whether a token with this text is a mark or a piece of one, so that it must reach add().
  static bool is_mark(std::string_view token_text);

 private:
  bool take_mark();
  void emit(std::string_view text);
  size_t held_back() const;

  Sink sink_;
  const struct ReasoningMarks* open_ = nullptr;  // the marks that enclose the current text
  bool has_answer_ = false;                      // the answer has text: from then on marks are plain text
  bool skip_space_ = true;
  std::string pending_;
};

}  // namespace tandem
