#include "capi/call.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/utf8.h"
#include "engine/model.h"

namespace tandem::capi {
namespace {

static_assert(TANDEM_ERROR_USAGE == static_cast<int>(ErrorCode::usage) &&
              TANDEM_ERROR_BAD_FILE == static_cast<int>(ErrorCode::bad_file) &&
              TANDEM_ERROR_OUT_OF_MEMORY == static_cast<int>(ErrorCode::out_of_memory) &&
              TANDEM_ERROR_IO == static_cast<int>(ErrorCode::io) &&
              TANDEM_ERROR_NUMERIC == static_cast<int>(ErrorCode::numeric) &&
              TANDEM_ERROR_INTERNAL == static_cast<int>(ErrorCode::bug) &&
              TANDEM_INTERRUPTED == static_cast<int>(ErrorCode::interrupted));

thread_local std::array<char, 4096> t_message{};

}  // namespace

tandem_status fail(tandem_status status, std::string_view message) noexcept {
  const size_t n = std::min(message.size(), t_message.size() - 1);
  std::memcpy(t_message.data(), message.data(), n);
  t_message[n] = '\0';
  // One line of valid text, whatever a file name in it has. Cut before the first thing that is not.
  for (size_t i = 0; i < n; ++i) {
    if (static_cast<unsigned char>(t_message[i]) < 0x20) t_message[i] = ' ';
  }
  t_message[valid_utf8_prefix({t_message.data(), n})] = '\0';
  return status;
}

void check_utf8(std::string_view text, const char* name) {
  const size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) return;
  throw_error(ErrorCode::usage, "{}: found byte 0x{:02x} at offset {}, needed UTF-8", name,
              static_cast<unsigned>(static_cast<unsigned char>(text[valid])), valid);
}

void check_ids(const Model& model, std::span<const int32_t> ids) {
  const auto n_vocab = model.hparams().n_vocab;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < n_vocab) continue;
    throw_error(ErrorCode::usage, "token {} at index {} does not exist, the vocabulary has {}", ids[i], i,
                n_vocab);
  }
}

}  // namespace tandem::capi

const char* tandem_last_error(void) {
  return tandem::capi::t_message.data();
}
