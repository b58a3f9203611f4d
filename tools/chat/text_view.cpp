// The view for people.
#include <unistd.h>

#include <cstdio>

#include "base/log.h"
#include "base/progress.h"
#include "base/utf8.h"
#include "tools/chat/view.h"
#include "tools/output.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

constexpr const char* kDim = "\033[2m";
constexpr const char* kRed = "\033[31m";
constexpr const char* kPlain = "\033[0m";

// "[######    ] 60%"
std::string bar(int64_t n_done, int64_t n) {
  constexpr int64_t kWidth = 24;
  const auto full = static_cast<size_t>(n > 0 ? n_done * kWidth / n : 0);
  return "[" + std::string(full, '#') + std::string(static_cast<size_t>(kWidth) - full, ' ') + "] " +
         std::to_string(n > 0 ? n_done * 100 / n : 0) + "%";
}

// Replaces control characters except line breaks and tabs with U+FFFD, so that a model cannot control the
// terminal.
std::string harmless(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 =
        c == 0xc2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xe0) == 0x80;
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || c1) {
      out += kReplacementCharacter;
      i += c1 ? 1 : 0;
    } else {
      out += text[i];
    }
  }
  return out;
}

class TextView final : public ChatView {
 public:
  explicit TextView(const TextViewOptions& options)
      : options_(options), terminal_(isatty(STDOUT_FILENO) == 1) {}

  void begin(const Model& model, int64_t n_ctx) override {
    if (!options_.interactive) return;
    note(format("{}, context of {} tokens. /help lists commands, Ctrl-D exits.", model.description(), n_ctx));
  }

  void progress(int64_t n_done, int64_t n_prompt) override {
    if (n_done >= n_prompt) return status_.clear();
    if (options_.animate)
      status_.show(format("reading the prompt {} of {} tokens", bar(n_done, n_prompt), n_prompt));
    fflush(stderr);
  }

  void text(AnswerPart part, std::string_view text) override {
    status_.clear();
    fflush(stderr);
    if (part == AnswerPart::reasoning) {
      n_thought_bytes_ += text.size();
      if (options_.reasoning != ShowReasoning::show) return thinking();
      if (!dimmed_) start_dim();
    } else if (dimmed_) {
      end_dim();
    }
    write(text);
    out_.flush();
  }

  void end(const Answer& answer, int64_t n_past, int64_t n_ctx) override {
    finish_line();
    if (!options_.interactive) {
      log_info("{}; stopped: {}", cost(answer), reason_text(answer.stats.reason));
      return;
    }
    if (n_thought_bytes_ > 0 && options_.reasoning == ShowReasoning::hide)
      note("(/reasoning shows the reasoning)");
    n_thought_bytes_ = 0;
    if (answer.stats.reason != StopReason::end_of_generation &&
        answer.stats.reason != StopReason::stop_text) {
      note(std::string("(stopped: ") + reason_text(answer.stats.reason) + ")");
    }
    note(format("[{}; context {} of {}]", cost(answer), n_past, n_ctx));
  }

  void abandon() override {
    finish_line();
    n_thought_bytes_ = 0;
  }

  void note(const std::string& text) override {
    status_.clear();
    if (log_level() < LogLevel::info) return;
    fprintf(stderr, "%s%s%s\n", options_.color ? kDim : "", text.c_str(), options_.color ? kPlain : "");
    fflush(stderr);
  }

  void error(const std::string& message, ErrorCode) override {
    status_.clear();
    fprintf(stderr, "%serror: %s%s\n", options_.color ? kRed : "", printable(message, message.size()).c_str(),
            options_.color ? kPlain : "");
    fflush(stderr);
  }

  void set_reasoning(ShowReasoning show) override { options_.reasoning = show; }

 private:
  static std::string cost(const Answer& a) {
    const GenerateStats& s = a.stats;
    std::string text = format("prompt {} tokens", s.n_prompt);
    if (a.n_reused > 0) text += format(" ({} reused)", a.n_reused);
    return text + format(", {:.1f} t/s; answer {} tokens, {:.1f} t/s",
                         tokens_per_second(s.n_prompt, s.prompt_s), s.n_generated,
                         tokens_per_second(s.n_generated, s.generate_s));
  }

  void thinking() {
    if (options_.animate) status_.show(format("thinking, {} bytes", n_thought_bytes_));
    fflush(stderr);
  }

  void start_dim() {
    if (options_.color) out_.write(kDim);
    dimmed_ = true;
  }
  void end_dim() {
    if (options_.color) out_.write(kPlain);
    out_.write("\n\n");
    dimmed_ = false;
  }

  void write(std::string_view text) {
    if (text.empty()) return;
    out_.write(terminal_ ? harmless(text) : std::string(text));
    at_line_start_ = text.back() == '\n';
  }

  void finish_line() {
    status_.clear();
    if (dimmed_ && options_.color) out_.write(kPlain);
    dimmed_ = false;
    if (!at_line_start_) out_.write("\n");
    at_line_start_ = true;
    out_.flush();
  }

  TextViewOptions options_;
  Output out_;
  StatusLine status_;
  bool terminal_;
  bool dimmed_ = false, at_line_start_ = true;
  size_t n_thought_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ChatView> make_text_view(const TextViewOptions& options) {
  return std::make_unique<TextView>(options);
}

}  // namespace tandem::tools
