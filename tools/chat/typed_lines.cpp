#include "tools/chat/typed_lines.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>

#include "base/error.h"
#include "base/interrupt.h"
#include "tools/chat/commands.h"
#include "tools/chat/signals.h"

namespace tandem::tools {
namespace {

using sandbox::Channel;
using sandbox::Message;

// Messages between the program and the editor outside. Every question but kInterrupt and kEnd has one answer.
enum Kind : uint32_t {
  kOpenEditor = sandbox::kFirstOwnKind,  // number: bits of kColor, kSimple
  kRead,                                 // text: the initial text; answer: kLine, kSuspend or kFailed
  kContinued,                            // after kSuspend
  kClose,                                // the terminal is as it was before; answer: kClosed
  kInterrupt,                            // Ctrl-C, while a line is read
  kEnd,                                  // a signal ends the program, while a line is read
  kLine,                                 // number: LineEditor::End, text
  kSuspend,                              // Ctrl-Z: stop, then say kContinued
  kFailed,                               // number: ErrorCode, text: the message
  kClosed,
};
constexpr int64_t kColor = 1, kSimple = 2;

class TypedHere : public TypedLines {
 public:
  explicit TypedHere(LineEditorOptions options) : editor_(std::move(options)) {}
  LineEditor::Line read(const std::string& initial) override { return editor_.read(initial); }

 private:
  LineEditor editor_;
};

// ---- Outside ----

class Typing : public sandbox::HelperHandler {
 public:
  explicit Typing(Channel& channel) : channel_(channel) {}

  void start() override {
    install_chat_signals();                                                        // window sizes
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);  // the program says so
  }

  bool answer(const Message& question, sandbox::HelperFiles& files) override {
    switch (question.kind) {
      case kOpenEditor: open_editor(question.number); return true;
      case kRead: return channel_.send(read(question.text, files));
      case kClose: editor_.reset(); return channel_.send({.kind = kClosed});
      default: return true;  // too late
    }
  }

 private:
  void open_editor(int64_t how) {
    editor_ = std::make_unique<LineEditor>(LineEditorOptions{.prompt = "> ",
                                                             .color = (how & kColor) != 0,
                                                             .simple = (how & kSimple) != 0,
                                                             .history_file = state_file("chat_history"),
                                                             .complete = complete_command,
                                                             .program = channel_.fd(),
                                                             .heard = [this] { return heard(); }});
    set_suspender([this] { suspend(); });
  }

  Message read(const std::string& initial, sandbox::HelperFiles& files) {
    try {
      const LineEditor::Line line = editor_->read(initial);
      ::signal(SIGTSTP, SIG_IGN);
      // A program taken over could put a command into the line for the user to send.
      if (line.end == LineEditor::End::line && !file_of_command(initial)) allow_files_of(line.text, files);
      return {.kind = kLine, .number = static_cast<int64_t>(line.end), .text = line.text};
    } catch (const Error& e) {
      return {.kind = kFailed, .number = static_cast<int64_t>(e.code()), .text = e.message()};
    }
  }

  static void allow_files_of(const std::string& line, sandbox::HelperFiles& files) {
    const auto file = file_of_command(line);
    if (!file) return;
    if (file->writes) {
      files.allow_writing({file->path, false, ""});
    } else {
      files.allow_reading(file->path);
    }
  }

  // The program stops itself, for the shell waits for it; this process then waits for the program.
  void suspend() {
    if (!channel_.send({.kind = kSuspend})) return;
    for (Message answer; channel_.receive(answer) && answer.kind != kContinued;) {}
  }

  Heard heard() {
    Message message;
    if (!channel_.receive(message)) return Heard::end;
    if (message.kind == kEnd) return Heard::end;
    return message.kind == kInterrupt ? Heard::interrupt : Heard::nothing;
  }

  Channel& channel_;
  std::unique_ptr<LineEditor> editor_;
};

// ---- Inside ----

class TypedOutside : public TypedLines {
 public:
  TypedOutside(std::shared_ptr<sandbox::FileHelper> helper, bool color, bool simple)
      : helper_(std::move(helper)) {
    helper_->channel().send({.kind = kOpenEditor, .number = (color ? kColor : 0) | (simple ? kSimple : 0)});
  }
  ~TypedOutside() override {
    if (!helper_->channel().send({.kind = kClose})) return;
    for (Message answer; helper_->channel().receive(answer) && answer.kind != kClosed;) {}
  }

  LineEditor::Line read(const std::string& initial) override {
    ::signal(SIGTSTP, SIG_IGN);  // the editor sees Ctrl-Z and leaves the line first
    if (!helper_->channel().send({.kind = kRead, .text = initial}))
      return {LineEditor::End::end_of_input, ""};
    Message answer;
    for (bool told = false; receive(answer, told);) {
      if (answer.kind == kSuspend) {
        stop();
        continue;
      }
      ::signal(SIGTSTP, SIG_DFL);
      if (answer.kind == kFailed) throw Error(static_cast<ErrorCode>(answer.number), answer.text);
      return {static_cast<LineEditor::End>(answer.number), answer.text};
    }
    ::signal(SIGTSTP, SIG_DFL);
    return {LineEditor::End::end_of_input, ""};
  }

 private:
  // Waits for an answer, and tells the editor of signals to this process.
  bool receive(Message& answer, bool& told) {
    constexpr int kWaitMs = 200;
    Channel& channel = helper_->channel();
    for (;;) {
      if (!told && (interrupted() || ending_signal() != 0)) {
        told = true;
        if (!channel.send({.kind = ending_signal() != 0 ? kEnd : kInterrupt})) return false;
      }
      pollfd ready{channel.fd(), POLLIN, 0};
      if (poll(&ready, 1, kWaitMs) > 0) return channel.receive(answer);
    }
  }

  void stop() {
    ::signal(SIGTSTP, SIG_DFL);
    raise(SIGTSTP);  // returns when the program is continued
    ::signal(SIGTSTP, SIG_IGN);
    helper_->channel().send({.kind = kContinued});
  }

  std::shared_ptr<sandbox::FileHelper> helper_;
};

}  // namespace

std::unique_ptr<TypedLines> typed_here(LineEditorOptions options) {
  return std::make_unique<TypedHere>(std::move(options));
}

std::unique_ptr<TypedLines> typed_outside(std::shared_ptr<sandbox::FileHelper> helper, bool color,
                                          bool simple) {
  return std::make_unique<TypedOutside>(std::move(helper), color, simple);
}

sandbox::HelperWork helper_for_typing() {
  return [](Channel& channel) { return std::make_unique<Typing>(channel); };
}

}  // namespace tandem::tools
