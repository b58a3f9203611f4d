#include "tools/chat/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/terminal.h"
#include "base/text_input.h"
#include "base/utf8.h"
#include "tools/chat/history.h"
#include "tools/chat/signals.h"

namespace tandem::tools {
namespace {

constexpr int kPollMs = 200;  // interval of the checks for a new window size and Ctrl-C
constexpr const char* kInsertInitial = "\033[7200~";  // a key sequence that no keyboard sends
constexpr const char* kPasteOn = "\033[?2004h";
constexpr const char* kPasteOff = "\033[?2004l";
constexpr std::wstring_view kPasteEnd = L"\033[201~";

// libedit reads characters in the locale's encoding; without a locale, use UTF-8.
void use_utf8() {
  setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
}

std::wstring widened(const std::string& text) {
  std::wstring wide(text.size(), L'\0');
  const size_t n = mbstowcs(wide.data(), text.c_str(), wide.size());
  wide.resize(n == static_cast<size_t>(-1) ? 0 : n);
  return wide;
}

std::string narrowed(const std::wstring& text) {
  std::string narrow(text.size() * 4, '\0');
  const size_t n = wcstombs(narrow.data(), text.c_str(), narrow.size());
  narrow.resize(n == static_cast<size_t>(-1) ? 0 : n);
  return narrow;
}

// Decodes one complete UTF-8 character.
wchar_t decoded(std::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (bytes.size() == 1) return static_cast<wchar_t>(lead);
  uint32_t code = lead & (0xffu >> (bytes.size() + 1));
  for (const char c : bytes.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3fu);
  return static_cast<wchar_t>(code);
}

// Whether the terminal breaks long lines anew when the window's width changes; otherwise it cuts them. There is
// no way to ask, but those that do not are few and known.
bool reflows_lines() {
  const char* term = std::getenv("TERM");
  if (std::getenv("TMUX") != nullptr) return true;
  if (std::getenv("XTERM_VERSION") != nullptr) return false;
  const std::string_view name = term != nullptr ? term : "";
  return !name.starts_with("linux") && !name.starts_with("rxvt") && !name.starts_with("screen");
}

// libedit leaves echo on.
void stop_echo() {
  termios settings{};
  if (tcgetattr(STDIN_FILENO, &settings) != 0) return;
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);
  tcsetattr(STDIN_FILENO, TCSANOW, &settings);
}

}  // namespace

struct LineEditor::Impl {
  explicit Impl(LineEditorOptions options);
  ~Impl();

  void start_editor();
  Line read_edited(const std::string& initial);
  Line read_plain();
  Line read_one(const std::string& initial) { return edit != nullptr ? read_edited(initial) : read_plain(); }
  void remember(const std::string& text);
  void add_to_history(const std::string& text);

  // Callbacks of libedit.
  static Impl& self(EditLine* e) {
    void* data = nullptr;
    el_get(e, EL_CLIENTDATA, &data);
    return *static_cast<Impl*>(data);
  }
  static char* prompt_of(EditLine* e) { return self(e).shown_prompt.data(); }
  static int get_char(EditLine* e, wchar_t* out) { return self(e).next_char(*out); }
  static unsigned char insert_newline(EditLine* e, int);
  static unsigned char insert_initial(EditLine* e, int);
  static unsigned char insert_paste(EditLine* e, int);
  static unsigned char complete_word(EditLine* e, int);

  int next_char(wchar_t& out);
  int next_byte(char& out);
  bool has_terminal() const;
  void look_at_terminal();
  int rows_above_cursor(int columns) const;
  void erase_input();
  void suspend();
  void show_again();
  bool follow_size();
  unsigned char complete();
  void show(const std::vector<std::string>& candidates);
  void say(const char* sequence);

  LineEditorOptions options;
  FILE* out;
  std::unique_ptr<FILE, int (*)(FILE*)> nowhere{nullptr, fclose};
  EditLine* edit = nullptr;
  History* history = nullptr;
  std::string shown_prompt;
  termios found_settings{};  // the terminal's settings
  std::wstring initial_text;
  winsize size{};
  bool was_interrupted = false;
  bool dumb = false;
};

// Shows the prompt on the terminal even if stdout is redirected.
LineEditor::Impl::Impl(LineEditorOptions given)
    : options(std::move(given)),
      out(isatty(STDOUT_FILENO) ? stdout : stderr),
      dumb(options.simple || is_dumb_terminal()) {
  if (isatty(fileno(out)) == 1 && tcgetattr(STDIN_FILENO, &found_settings) == 0) start_editor();
}

LineEditor::Impl::~Impl() {
  if (edit != nullptr) {
    el_end(edit);
    tcsetattr(STDIN_FILENO, TCSANOW, &found_settings);
  }
  if (history != nullptr) history_end(history);
}

void LineEditor::Impl::start_editor() {
  use_utf8();
  nowhere.reset(fopen("/dev/null", "w"));  // for libedit's complaints about unknown terminals
  edit = el_init("tandem", stdin, out, nowhere ? nowhere.get() : stderr);
  if (edit == nullptr) return;
  if (options.simple) el_set(edit, EL_TERMINAL, "dumb");
  stop_echo();
  el_set(edit, EL_CLIENTDATA, this);
  el_set(edit, EL_PROMPT_ESC, prompt_of, '\1');
  el_set(edit, EL_EDITOR, "emacs");
  el_set(edit, EL_SIGNAL, 0);
  el_wset(edit, EL_GETCFN, get_char);
  el_set(edit, EL_ADDFN, "tandem-newline", "start a new line", insert_newline);
  el_set(edit, EL_ADDFN, "tandem-initial", "insert the initial text", insert_initial);
  el_set(edit, EL_ADDFN, "tandem-paste", "paste", insert_paste);
  el_set(edit, EL_ADDFN, "tandem-complete", "complete", complete_word);
  const std::pair<const char*, const char*> keys[] = {
      {"\033\n", "tandem-newline"},  {"\033\r", "tandem-newline"},  {kInsertInitial, "tandem-initial"},
      {"\033[200~", "tandem-paste"}, {"\t", "tandem-complete"},     {"^R", "em-inc-search-prev"},
      {"\033[1;5C", "em-next-word"}, {"\033[1;5D", "ed-prev-word"}, {"\033[3~", "ed-delete-next-char"},
      {"\033[1~", "ed-move-to-beg"}, {"\033[4~", "ed-move-to-end"}, {"^W", "ed-delete-prev-word"}};
  for (const auto& [key, function] : keys) el_set(edit, EL_BIND, key, function, nullptr);
  // Alt-x would read a command of libedit's own and crash on a quote that is not closed.
  for (const char* key : {"\033x", "\033X"}) el_set(edit, EL_BIND, key, "ed-unassigned", nullptr);
  ioctl(STDIN_FILENO, TIOCGWINSZ, &size);
  history = history_init();
  if (history == nullptr) return;
  HistEvent event;
  ::history(history, &event, H_SETSIZE, static_cast<int>(kHistoryLines));
  ::history(history, &event, H_SETUNIQUE, 1);
  el_set(edit, EL_HIST, ::history, history);
  if (!options.history_file.empty()) {
    for (const std::string& text : load_history(options.history_file)) add_to_history(text);
  }
}

void LineEditor::Impl::add_to_history(const std::string& text) {
  HistEvent event;
  ::history(history, &event, H_ENTER, text.c_str());
}

void LineEditor::Impl::remember(const std::string& text) {
  if (history == nullptr || text.find_first_not_of(" \t\n") == text.npos) return;
  add_to_history(text);
  if (!options.history_file.empty()) append_history(options.history_file, text);
}

void LineEditor::Impl::say(const char* sequence) {
  if (dumb) return;
  fputs(sequence, out);
  fflush(out);
}

LineEditor::Line LineEditor::Impl::read_edited(const std::string& initial) {
  if (!initial.empty()) {
    initial_text = widened(initial);
    el_push(edit, kInsertInitial);
  }
  was_interrupted = false;
  follow_size();
  const SuspendLater while_reading;
  el_set(edit, EL_PREP_TERM, 1);  // raw mode before the terminal learns of bracketed paste
  say(kPasteOn);
  int n = 0;
  errno = 0;
  const char* line = el_gets(edit, &n);
  const int error = errno;
  stop_echo();
  say(kPasteOff);
  if (was_interrupted) {
    const LineInfo* const typed = el_line(edit);
    std::string text(typed->buffer, typed->lastchar);
    el_reset(edit);
    fputs("\n", out);
    fflush(out);
    return {End::interrupted, std::move(text)};
  }
  if (line == nullptr || n <= 0) {
    if (n < 0 && error != 0 && error != EIO && ending_signal() == 0)
      throw_error(ErrorCode::io, "cannot read from the terminal: {}", strerror(error));
    fputs("\n", out);
    fflush(out);
    return {End::end_of_input, ""};
  }
  std::string text(line);
  if (text.ends_with('\n')) text.pop_back();
  return {End::line, text};
}

// Reads without editing, for when no terminal can show the prompt.
LineEditor::Line LineEditor::Impl::read_plain() {
  std::string text;
  was_interrupted = false;
  for (char c;;) {
    const int n = next_byte(c);
    if (n < 0 && was_interrupted) return {End::interrupted, text};
    if (n <= 0) return {text.empty() ? End::end_of_input : End::line, text};
    if (c == '\n') return {End::line, text};
    if (text.size() >= kMaxStreamBytes) {
      throw_error(ErrorCode::bad_file, "stdin: a line of more than {} bytes", kMaxStreamBytes);
    }
    text += c;
  }
}

unsigned char LineEditor::Impl::insert_newline(EditLine* e, int) {
  return el_winsertstr(e, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::Impl::insert_initial(EditLine* e, int) {
  return el_winsertstr(e, self(e).initial_text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

// Inserts everything up to the end mark literally, line breaks and tabs included.
unsigned char LineEditor::Impl::insert_paste(EditLine* e, int) {
  std::wstring text;
  for (wchar_t c; !text.ends_with(kPasteEnd);) {
    if (el_wgetc(e, &c) != 1) return CC_EOF;
    text += c == L'\r' ? L'\n' : c;
  }
  text.resize(text.size() - kPasteEnd.size());
  std::erase_if(text, [](wchar_t c) { return c < L' ' && c != L'\n' && c != L'\t'; });
  if (text.empty()) return CC_REFRESH;
  return el_winsertstr(e, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char LineEditor::Impl::complete_word(EditLine* e, int) {
  return self(e).complete();
}

unsigned char LineEditor::Impl::complete() {
  const LineInfoW* info = el_wline(edit);
  const std::string line = narrowed(std::wstring(info->buffer, info->cursor));
  if (!options.complete) return CC_ERROR;
  const Completion found = options.complete(line);
  if (found.candidates.empty()) return CC_ERROR;
  std::string common = found.candidates.front();
  for (const std::string& c : found.candidates) {
    const auto differ = std::mismatch(common.begin(), common.end(), c.begin(), c.end()).first;
    common.erase(differ, common.end());
  }
  common.resize(valid_utf8_prefix(common));
  const std::string typed = line.substr(found.begin);
  if (common.size() > typed.size() && common.starts_with(typed)) {
    return el_winsertstr(edit, widened(common.substr(typed.size())).c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }
  if (found.candidates.size() < 2) return CC_ERROR;
  show(found.candidates);
  return CC_REDISPLAY;
}

void LineEditor::Impl::show(const std::vector<std::string>& candidates) {
  constexpr size_t kMaxShown = 100;
  std::string text = "\n";
  for (size_t i = 0; i < std::min(candidates.size(), kMaxShown); ++i)
    text += printable(candidates[i], 200) + "  ";
  if (candidates.size() > kMaxShown) text += "and " + std::to_string(candidates.size() - kMaxShown) + " more";
  fputs((text + "\n").c_str(), out);
  fflush(out);
}

// The rows between the prompt and the cursor in a window of so many columns.
int LineEditor::Impl::rows_above_cursor(int columns) const {
  const LineInfoW* info = el_wline(edit);
  int row = 0, column = static_cast<int>(options.prompt.size());
  for (const wchar_t* c = info->buffer; c < info->cursor; ++c) {
    if (*c == L'\n') {
      ++row;
      column = 0;
      continue;
    }
    const int tab = 8 - column % 8;
    const int width = *c == L'\t' ? tab : *c < L' ' ? 2 : std::max(wcwidth(*c), 0);
    if (column + width > columns) {  // a wide character does not fit into the last column
      ++row;
      column = 0;
    }
    column += width;
    if (column < columns) continue;
    ++row;
    column = 0;
  }
  return row;
}

// Erases the prompt and what was typed, in a window that may have been resized since they were shown.
void LineEditor::Impl::erase_input() {
  if (dumb) return;
  winsize now{};
  const bool known = ioctl(STDIN_FILENO, TIOCGWINSZ, &now) == 0 && now.ws_col > 0;
  const int columns = known && reflows_lines() ? now.ws_col : size.ws_col;
  const int up = rows_above_cursor(std::max(columns, 1));
  if (up > 0) fprintf(out, "\033[%dA", up);
  fputs("\r\033[J", out);
  fflush(out);
}

// Stops the program; after it is continued, all is shown again below what the shell wrote.
void LineEditor::Impl::suspend() {
  erase_input();
  say(kPasteOff);
  el_set(edit, EL_PREP_TERM, 0);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &found_settings);
  SuspendLater::suspend();
  show_again();
}

void LineEditor::Impl::show_again() {
  el_set(edit, EL_PREP_TERM, 0);  // the shell has set the terminal to its own mode
  stop_echo();
  el_set(edit, EL_PREP_TERM, 1);
  say(kPasteOn);
  follow_size();
  el_set(edit, EL_REFRESH);
}

// Returns whether the window has another size.
bool LineEditor::Impl::follow_size() {
  winsize now{};
  if (ioctl(STDIN_FILENO, TIOCGWINSZ, &now) != 0) return false;
  if (now.ws_col == size.ws_col && now.ws_row == size.ws_row) return false;
  size = now;
  el_resize(edit);
  return true;
}

// Detects a resized window, and a shell that changed the terminal's mode after a SIGSTOP.
void LineEditor::Impl::look_at_terminal() {
  if (SuspendLater::wants_suspend()) return suspend();
  termios settings{};
  if (tcgetattr(STDIN_FILENO, &settings) == 0 && (settings.c_lflag & ICANON) != 0) return show_again();
  winsize now{};
  if (ioctl(STDIN_FILENO, TIOCGWINSZ, &now) != 0) return;
  if (now.ws_col == size.ws_col && now.ws_row == size.ws_row) return;
  erase_input();
  follow_size();
  el_set(edit, EL_REFRESH);
}

// Whether this process may use the terminal: a shell that stopped the program uses it itself.
bool LineEditor::Impl::has_terminal() const {
  const pid_t foreground = tcgetpgrp(STDIN_FILENO);
  return options.program < 0 || foreground < 0 || foreground == getpgrp();
}

// Returns 1 for a byte, 0 at the end, -1 after Ctrl-C or an error (in errno).
int LineEditor::Impl::next_byte(char& byte) {
  for (;;) {
    if (interrupted()) {
      was_interrupted = true;
      errno = EINTR;
      return -1;
    }
    if (ending_signal() != 0) return 0;
    const bool may_read = has_terminal();
    pollfd ready[] = {{may_read ? STDIN_FILENO : -1, POLLIN, 0}, {options.program, POLLIN, 0}};
    const int n = poll(ready, 2, kPollMs);
    if (n > 0 && ready[1].revents != 0) {
      const Heard heard = options.heard();
      if (heard == Heard::end) return 0;
      if (heard == Heard::nothing) continue;
      was_interrupted = true;
      errno = EINTR;
      return -1;
    }
    if (n <= 0) {
      if (n < 0 && errno != EINTR) return -1;
      if (may_read && edit != nullptr) look_at_terminal();
      continue;
    }
    const ssize_t n_read = ::read(STDIN_FILENO, &byte, 1);
    if (n_read >= 0) return static_cast<int>(n_read);
    if (errno != EINTR && errno != EAGAIN) return -1;
  }
}

int LineEditor::Impl::next_char(wchar_t& wide) {
  std::string bytes;
  for (;;) {
    char byte;
    const int n = next_byte(byte);
    if (n != 1) return n;
    bytes += byte;
    const Utf8Char step = next_utf8(bytes);
    if (step.status == Utf8Status::incomplete) continue;
    wide = step.status == Utf8Status::valid ? decoded(bytes) : L'\xfffd';
    return 1;
  }
}

LineEditor::LineEditor(LineEditorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
LineEditor::~LineEditor() = default;

LineEditor::Line LineEditor::read(const std::string& initial) {
  const auto set_prompt = [&](const std::string& prompt) {
    const bool color = impl_->options.color && !impl_->dumb;
    // libedit drops a control sequence at the very end, so the space follows it.
    const std::string mark = prompt.substr(0, prompt.size() - 1);
    impl_->shown_prompt = color ? "\1\033[1;32m\1" + mark + "\1\033[0m\1 " : prompt;
  };
  set_prompt(impl_->options.prompt);
  Line line = impl_->read_one(initial);
  while (line.end == End::line && line.text.ends_with('\\')) {
    set_prompt(std::string(impl_->options.prompt.size() - 1, '.') + " ");
    const Line more = impl_->read_one("");
    if (more.end != End::line)
      return {more.end == End::interrupted ? End::interrupted : End::line, line.text};
    line.text.back() = '\n';
    line.text += more.text;
  }
  if (line.end == End::line) impl_->remember(line.text);
  return line;
}

void hide_typed_keys() {
  if (tcgetpgrp(STDIN_FILENO) == getpgrp()) stop_echo();  // in the background it would stop the program
}

std::string state_file(const std::string& name) {
  namespace fs = std::filesystem;
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (state != nullptr && *state == '/') {
    folder = state;
  } else if (home != nullptr && *home == '/') {
    folder = fs::path(home) / ".local" / "state";
  } else {
    return "";
  }
  folder /= "tandem";
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? "" : (folder / name).string();
}

}  // namespace tandem::tools
