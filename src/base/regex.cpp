#include "base/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <memory>
#include <new>

#include "base/error.h"

namespace tandem {
namespace {

constexpr size_t kMaxBytes = 10'000;
constexpr uint32_t kMaxNesting = 100;      // of parentheses
constexpr uint32_t kMaxSteps = 1'000'000;  // for one text; a tensor's name takes some hundred
constexpr uint32_t kMaxHeapKiB = 16 << 10;

struct Free {
  void operator()(pcre2_compile_context* c) const { pcre2_compile_context_free(c); }
  void operator()(pcre2_match_context* c) const { pcre2_match_context_free(c); }
  void operator()(pcre2_match_data* d) const { pcre2_match_data_free(d); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

template <class T>
Owned<T> owned(T* object) {
  if (object == nullptr) throw std::bad_alloc();
  return Owned<T>(object);
}

std::string error_text(int error) {
  std::array<PCRE2_UCHAR, 120> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

Regex::Regex(std::string_view pattern, std::string source) : pattern_(pattern), source_(std::move(source)) {
  if (pattern.size() > kMaxBytes) {
    throw_error(ErrorCode::usage, "{}: found a regular expression of {} bytes, needed at most {}", source_,
                pattern.size(), kMaxBytes);
  }
  const auto context = owned(pcre2_compile_context_create(nullptr));
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
  if (code == nullptr) {
    if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
    throw_error(ErrorCode::usage, "{}: '{}' is not a regular expression: {} (at offset {})", source_,
                printable(pattern), error_text(error), offset);
  }
  code_ = std::shared_ptr<const pcre2_code>(code, [](pcre2_code* c) { pcre2_code_free(c); });
}

bool Regex::found_in(std::string_view text) const {
  const auto context = owned(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_heap_limit(context.get(), kMaxHeapKiB);
  const auto data = owned(pcre2_match_data_create(1, nullptr));
  const int n =
      pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()),
                  text.size(), 0, 0, data.get(), context.get());
  if (n >= 0) return true;
  if (n == PCRE2_ERROR_NOMATCH) return false;
  if (n == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
  throw_error(ErrorCode::usage, "{}: '{}' cannot be matched with '{}': {}", source_, printable(pattern_),
              printable(text), error_text(n));
}

}  // namespace tandem
