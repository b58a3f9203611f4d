// What every function of the C library has in common: arguments are checked, exceptions become a status and
// the thread's last error.
#pragma once

#include <exception>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "capi/tandem.h"

namespace tandem {
class Model;
}

namespace tandem::capi {

// Sets the last error of this thread; throws nothing and needs no memory. Returns `status`.
tandem_status fail(tandem_status status, std::string_view message) noexcept;

// Throws Error(usage) if `argument` is null.
inline void need(const void* argument, const char* name) {
  if (argument == nullptr) throw_error(ErrorCode::usage, "{} is NULL", name);
}

// Throws Error(usage) for a text that is not UTF-8.
void check_utf8(std::string_view text, const char* name);
// Throws Error(usage) for an id that the model does not have.
void check_ids(const Model& model, std::span<const int32_t> ids);

// Runs `body`, which returns a tandem_status or nothing.
template <class Body>
tandem_status guarded(Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      std::forward<Body>(body)();
      return TANDEM_OK;
    } else {
      return std::forward<Body>(body)();
    }
  } catch (const Error& e) {
    return fail(static_cast<tandem_status>(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return fail(TANDEM_ERROR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return fail(TANDEM_ERROR_INTERNAL, e.what());
  } catch (...) {
    return fail(TANDEM_ERROR_INTERNAL, "an unknown exception");
  }
}

}  // namespace tandem::capi
