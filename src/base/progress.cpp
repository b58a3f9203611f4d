#include "base/progress.h"

#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"

namespace tandem {
namespace {

constexpr size_t kBarColumns = 24;

bool can_erase_line() {
  return isatty(STDERR_FILENO) == 1 && !is_dumb_terminal();
}

// Cuts to at most n bytes, between UTF-8 characters.
std::string_view cut(std::string_view text, size_t n) {
  if (text.size() <= n) return text;
  while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80) --n;
  return text.substr(0, n);
}

std::string rate_text(double rate, std::string_view unit) {
  const bool bytes = unit == "bytes";
  const double step = bytes ? 1024 : 1000;
  const char* const prefixes[] = {"", bytes ? "Ki" : "k ", bytes ? "Mi" : "M ", bytes ? "Gi" : "G "};
  size_t at = 0;
  while (rate >= step && at + 1 < std::size(prefixes)) {
    rate /= step;
    ++at;
  }
  const std::string name = bytes ? "B" : std::string(unit);
  return format("{:.1f} {}{}/s", rate, prefixes[at], name);
}

std::string time_text(double seconds) {
  const auto s = static_cast<long long>(std::min(seconds, 359999.0));  // 99:59:59
  if (s < 3600) return format("{}:{:02}", s / 60, s % 60);
  return format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

StatusLine::StatusLine(bool wanted) : shown_(wanted && log_level() >= LogLevel::info && can_erase_line()) {}

void StatusLine::show(std::string_view text) {
  // A line that wraps could not be erased.
  if (shown_) show_status(std::string(cut(text, terminal_columns(STDERR_FILENO) - 1)));
}

void StatusLine::clear() {
  if (shown_) show_status("");
}

std::string progress_text(const ProgressState& state, size_t n_columns) {
  const double total = static_cast<double>(std::max<int64_t>(state.total, 1));
  const double share = std::clamp(static_cast<double>(state.done) / total, 0.0, 1.0);
  std::string text = format("{:3.0f}%", 100 * share);
  if (state.done > state.before && state.seconds > 0) {
    const double rate = static_cast<double>(state.done - state.before) / state.seconds;
    text += "  " + rate_text(rate, state.unit) + ", " +
            time_text(static_cast<double>(std::max<int64_t>(state.total - state.done, 0)) / rate) + " left";
  }
  if (text.size() + kBarColumns + 3 <= n_columns) {
    const auto filled = static_cast<size_t>(static_cast<double>(kBarColumns) * share);
    text = "[" + std::string(filled, '#') + std::string(kBarColumns - filled, '.') + "] " + text;
  }
  if (!state.item.empty() && text.size() + 2 < n_columns) {
    text += "  " + std::string(cut(state.item, n_columns - text.size() - 2));
  }
  return std::string(cut(text, n_columns));
}

Progress::Progress(std::string unit, int64_t total, int64_t before, bool wants_bar)
    : unit_(std::move(unit)), total_(total), before_(before), line_(wants_bar) {}

void Progress::update(int64_t done, std::string_view item) {
  if (!line_.shown()) return;
  const Clock::time_point now = Clock::now();
  if (now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  const std::string name = printable(item);
  line_.show(
      progress_text({unit_, done, total_, seconds(), name, before_}, terminal_columns(STDERR_FILENO) - 1));
}

void Progress::item_done(const std::string& line) {
  if (!line_.shown()) log_info("{}", line);
}

}  // namespace tandem
