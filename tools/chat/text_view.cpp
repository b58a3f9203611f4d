// The view for people.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/log.h"
#include "base/progress.h"
#include "base/terminal.h"
#include "tools/chat/signals.h"
#include "tools/chat/view.h"
#include "tools/markdown/stream.h"
#include "tools/output.h"
#include "tools/prompt_progress.h"
#include "tools/speculation.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

constexpr const char* kDim = "\033[2m";
constexpr const char* kRed = "\033[31m";
constexpr const char* kPlain = "\033[0m";

// "tandem-demo, llama 2.1M Q8_0": the name in the file, else the file's.
std::string model_name(const Model& model) {
  const std::string path = model.path();
  const std::string name = model.file().metadata().get_or<std::string>("general.name", "");
  const std::string shown = name.empty() ? path.substr(path.rfind('/') + 1) : name;
  return printable(shown, 80) + ", " + model.description();
}

class TextView final : public ChatView {
 public:
  explicit TextView(const TextViewOptions& options)
      : options_(options),
        terminal_(isatty(STDOUT_FILENO) == 1),
        renders_(terminal_ && !options.simple && !is_dumb_terminal()),
        progress_(!options.simple) {}

  void begin(const Model& model, int64_t n_ctx, const std::string& devices) override {
    if (!options_.interactive) return;
    note(format("{}, context of {}, on {}. /help lists commands, Ctrl-D exits.", model_name(model),
                n_tokens_text(n_ctx), devices));
  }

  void progress(int64_t n_done, int64_t n_prompt) override { progress_.update(n_done, n_prompt); }

  void text(AnswerPart part, std::string_view text) override {
    clear_status();
    fflush(stderr);
    const bool reasoning = part == AnswerPart::reasoning;
    if (reasoning) has_reasoning_ = true;
    if (reasoning && options_.shown.reasoning != ShowReasoning::show) return thinking();
    if (reasoning != in_reasoning_) {
      const bool follows = in_reasoning_;
      end_part();
      if (follows) put("\n");
      in_reasoning_ = reasoning;
      if (reasoning) begin_reasoning();
    }
    renders_ ? put_rendered(text) : put_plain(text);
  }

  void end(const Answer& answer, int64_t n_past, int64_t n_ctx) override {
    finish_line();
    if (!options_.interactive) {
      log_info("{}; stopped: {}; seed {}", cost(answer), reason_text(answer.stats.reason), answer.seed);
      return;
    }
    if (has_reasoning_ && options_.shown.reasoning == ShowReasoning::hide)
      note("(/reasoning shows the reasoning)");
    has_reasoning_ = false;
    note_reason(answer.stats.reason);
    note(format("[{}; context {} of {}; seed {}]", cost(answer), n_past, n_ctx, answer.seed));
  }

  void abandon() override {
    finish_line();
    has_reasoning_ = false;
  }

  void note(const std::string& text) override {
    clear_status();
    if (log_level() < LogLevel::info) return;
    fprintf(stderr, "%s%s%s\n", options_.color ? kDim : "", for_window(text).c_str(),
            options_.color ? kPlain : "");
    fflush(stderr);
  }

  void error(const std::string& message, ErrorCode) override {
    clear_status();
    const std::string text = for_window("error: " + printable(message, message.size()));
    fprintf(stderr, "%s%s%s\n", options_.color ? kRed : "", text.c_str(), options_.color ? kPlain : "");
    fflush(stderr);
  }

  void show(std::span<const ChatMessage> messages) override {
    for (const ChatMessage& m : messages) {
      if (m.role != "assistant") {
        show_source(format("{} {}", m.role == "user" ? ">" : "(" + m.role + ")", m.content));
        continue;
      }
      if (!m.reasoning.empty() && options_.shown.reasoning == ShowReasoning::show)
        text(AnswerPart::reasoning, m.reasoning);
      text(AnswerPart::answer, m.content);
      finish_line();
    }
    has_reasoning_ = false;
  }

  // Into a file that stdout was redirected to go only answers.
  void show_source(const std::string& text) override {
    clear_status();
    if (!terminal_) return note(harmless(text));
    put(harmless(text) + (text.ends_with('\n') ? "" : "\n"));
    flush();
  }

  void change(const ViewSettings& settings) override { options_.shown = settings; }
  bool lost() const override { return lost_; }

 private:
  void clear_status() {
    progress_.clear();
    status_.clear();
  }

  static std::string cost(const Answer& a) {
    const GenerateStats& s = a.stats;
    std::string text = "prompt " + n_tokens_text(s.n_prompt);
    if (a.n_reused > 0) {
      const std::string loaded = a.n_loaded > 0 ? format(", {} of them loaded", a.n_loaded) : "";
      text += format(" ({} reused{})", a.n_reused, loaded);
    }
    text += format(", {:.1f} t/s; answer {}", tokens_per_second(s.n_prompt, s.prompt_s),
                   answer_speed_text(s.n_generated, s.generate_s));
    const std::string speculation = speculation_text(s.speculation, s.generate_s);
    const std::string experts = experts_used_text(s);
    if (!speculation.empty()) text += "; " + speculation;
    return experts.empty() ? text : text + "; " + experts;
  }

  void note_reason(StopReason reason) {
    switch (reason) {
      case StopReason::end_of_generation:
      case StopReason::stop_text: return;
      case StopReason::limit: return note("(stopped: limit of -n reached; /set n_predict -1 removes it)");
      case StopReason::context_full:
        return note(
            "(stopped: the context is full; /set context_shift on drops the oldest turns, /clear starts "
            "anew, "
            "/undo removes the last turn)");
      case StopReason::interrupted: return note("(stopped: interrupted)");
    }
  }

  void thinking() {
    const auto now = std::chrono::steady_clock::now();
    if (!thinks_) thinks_since_ = now;
    thinks_ = true;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - thinks_since_).count();
    if (!options_.simple) status_.show(format("thinking, {} s", seconds));
    fflush(stderr);
  }

  // --- The text of an answer

  // Dims the reasoning; without color it has a mark, or where nothing can be rendered, a title.
  void begin_reasoning() {
    if (renders_) return;
    if (options_.color) put(kDim);
    if (!options_.color && terminal_) put("[reasoning]\n");
    titled_ = !options_.color && terminal_;
  }

  void put_rendered(std::string_view text) {
    if (!stream_) {
      TextStreamOptions how;
      read_window(how.rows, how.columns);
      how.markdown = options_.shown.markdown && !in_reasoning_;
      how.color = options_.color;
      if (in_reasoning_) how.style.dim = true;
      if (in_reasoning_ && !options_.color) how.mark = "\xe2\x94\x82 ";
      stream_.emplace(how);
      changes_ = terminal_changes();
    } else if (changes_ != terminal_changes()) {
      changes_ = terminal_changes();
      int rows = 0, columns = 0;
      read_window(rows, columns);
      put(stream_->resize(rows, columns));
    }
    put(stream_->add(text));
    flush();
  }

  void put_plain(std::string_view text) {
    if (text.empty()) return;
    put(terminal_ ? harmless(text) : std::string(text));
    at_line_start_ = text.back() == '\n';
    flush();
  }

  // The part of the answer that is complete ends its line.
  void end_part() {
    if (stream_) put(stream_->finish());
    stream_.reset();
    if (in_reasoning_ && options_.color && !renders_) put(kPlain);
    if (!at_line_start_) put("\n");
    at_line_start_ = true;
    if (in_reasoning_ && titled_) put("[answer]");
  }

  void finish_line() {
    clear_status();
    titled_ = false;
    end_part();
    in_reasoning_ = thinks_ = false;
    flush();
  }

  // With words wrapped at the window's width, if it is on a terminal that can show that.
  std::string for_window(const std::string& text) const {
    if (!renders_ || isatty(STDERR_FILENO) == 0) return text;
    int n_rows = 0, columns = 0;
    read_window(n_rows, columns);
    std::string out;
    for (const Row& row : wrapped(glyphs_of(text), std::max(columns - 1, 2))) out += as_bytes(row) + "\n";
    out.pop_back();
    return out;
  }

  static void read_window(int& rows, int& columns) {
    winsize size{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    rows = known ? size.ws_row : 24;
    columns = known ? size.ws_col : 80;
  }

  void put(std::string_view bytes) {
    unless_lost([&] { out_.write(bytes); });
  }
  void flush() {
    unless_lost([&] { out_.flush(); });
  }
  template <class Action>
  void unless_lost(const Action& action) {
    if (lost_) return;
    try {
      action();
    } catch (const ClosedPipe&) {
      throw;
    } catch (const Error&) {
      if (!terminal_) throw;
      lost_ = true;  // the window was closed; what the model said so far can still be saved
    }
  }

  TextViewOptions options_;
  Output out_;
  bool terminal_;      // stdout
  bool renders_;       // Markdown, wrapped at the window's width
  StatusLine status_;  // the model thinks, and that is hidden
  PromptProgress progress_;
  std::optional<TextStream> stream_;
  unsigned changes_ = 0;
  bool in_reasoning_ = false, titled_ = false, at_line_start_ = true, has_reasoning_ = false, lost_ = false;
  bool thinks_ = false;
  std::chrono::steady_clock::time_point thinks_since_;
};

}  // namespace

std::unique_ptr<ChatView> make_text_view(const TextViewOptions& options) {
  return std::make_unique<TextView>(options);
}

}  // namespace tandem::tools
