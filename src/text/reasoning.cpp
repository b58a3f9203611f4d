#include "text/reasoning.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"

namespace tandem {

struct ReasoningMarks {
  std::string_view open, close;
};

namespace {

constexpr ReasoningMarks kMarks[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<|channel|>analysis<|message|>", "<|end|>"},
    {"<|channel>thought", "<channel|>"},
};
// Marks that gpt-oss writes before its answer; dropped.
constexpr std::string_view kDropped[] = {"<|start|>assistant", "<|channel|>final<|message|>"};

// Returns the number of bytes at the end of `text` that may start `mark`.
size_t partial_match(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(std::string_view prompt, Sink sink) : sink_(std::move(sink)) {
  for (const ReasoningMarks& marks : kMarks) {
    if (trimmed_end(prompt).ends_with(marks.open)) open_ = &marks;
  }
}

bool ReasoningSplitter::is_mark(std::string_view token_text) {
  if (token_text.empty()) return false;
  const auto within = [&](std::string_view mark) { return mark.find(token_text) != mark.npos; };
  return std::any_of(std::begin(kMarks), std::end(kMarks),
                     [&](const ReasoningMarks& m) { return within(m.open) || within(m.close); }) ||
         std::any_of(std::begin(kDropped), std::end(kDropped), within);
}

void ReasoningSplitter::add(std::string_view text) {
  pending_ += text;
  while (take_mark()) {}
  const size_t n_ready = pending_.size() - held_back();
  emit(std::string_view(pending_).substr(0, n_ready));
  pending_.erase(0, n_ready);
}

void ReasoningSplitter::finish() {
  emit(pending_);
  pending_.clear();
}

// Removes the first complete mark and emits the text before it.
bool ReasoningSplitter::take_mark() {
  size_t position = pending_.npos, n_bytes = 0;
  const ReasoningMarks* then = open_;
  const auto look_for = [&](std::string_view mark, const ReasoningMarks* next) {
    const size_t found = pending_.find(mark);
    if (found >= position) return;
    position = found;
    n_bytes = mark.size();
    then = next;
  };
  if (open_ != nullptr) {
    look_for(open_->close, nullptr);
  } else if (!has_answer_) {
    for (const ReasoningMarks& marks : kMarks) look_for(marks.open, &marks);
    for (const std::string_view mark : kDropped) look_for(mark, nullptr);
  }
  if (position == pending_.npos) return false;
  const std::string_view before = std::string_view(pending_).substr(0, position);
  const bool opens_late = open_ == nullptr && !trimmed_end(before).empty();
  if (opens_late) return false;  // after text of the answer: the mark belongs to it
  emit(trimmed_end(before));
  pending_.erase(0, position + n_bytes);
  open_ = then;
  skip_space_ = true;
  return true;
}

void ReasoningSplitter::emit(std::string_view text) {
  if (skip_space_) {
    const size_t first = text.find_first_not_of(kWhiteSpace);
    text.remove_prefix(first == text.npos ? text.size() : first);
  }
  if (text.empty()) return;
  skip_space_ = false;
  if (open_ == nullptr) has_answer_ = true;
  sink_(open_ != nullptr ? AnswerPart::reasoning : AnswerPart::answer, text);
}

// Returns the bytes to hold back: the start of a mark, or white space before a possible mark.
size_t ReasoningSplitter::held_back() const {
  size_t n = 0;
  const auto wait_for = [&](std::string_view mark) { n = std::max(n, partial_match(pending_, mark)); };
  if (open_ != nullptr) {
    wait_for(open_->close);
    const std::string_view rest = std::string_view(pending_).substr(0, pending_.size() - n);
    return n + rest.size() - trimmed_end(rest).size();
  }
  if (has_answer_) return 0;
  for (const ReasoningMarks& marks : kMarks) wait_for(marks.open);
  for (const std::string_view mark : kDropped) wait_for(mark);
  return n;
}

}  // namespace tandem
