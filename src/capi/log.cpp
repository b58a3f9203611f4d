#include "base/log_sink.h"
#include "capi/tandem.h"

#define TANDEM_TEXT_OF(x) #x
#define TANDEM_TEXT(x) TANDEM_TEXT_OF(x)

namespace tandem {
namespace {

static_assert(TANDEM_LOG_ERROR == static_cast<int>(LogLevel::error) &&
              TANDEM_LOG_WARNING == static_cast<int>(LogLevel::warning) &&
              TANDEM_LOG_INFO == static_cast<int>(LogLevel::info) &&
              TANDEM_LOG_VERBOSE == static_cast<int>(LogLevel::verbose));

// A library is silent until it is told otherwise.
[[maybe_unused]] const bool g_silent = [] {
  set_log_level(LogLevel::quiet);
  return true;
}();

}  // namespace
}  // namespace tandem

const char* tandem_version(void) {
  return TANDEM_TEXT(TANDEM_VERSION_MAJOR) "." TANDEM_TEXT(TANDEM_VERSION_MINOR) "." TANDEM_TEXT(
      TANDEM_VERSION_PATCH);
}

void tandem_set_log(tandem_log_level level, tandem_log_callback callback, void* user_data) {
  using tandem::LogLevel;
  tandem::set_log_level(LogLevel::quiet);
  tandem::set_log_sink(nullptr);
  if (callback == nullptr) return;
  tandem::set_log_sink([callback, user_data](LogLevel of, const std::string& message) {
    callback(static_cast<tandem_log_level>(of), message.c_str(), user_data);
  });
  tandem::set_log_level(static_cast<LogLevel>(level));
}
