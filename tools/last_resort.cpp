// What happens when an exception cannot be caught: while static variables are initialized, in a thread, in a destructor, or
// because the exception itself has no memory. Running out of memory is the one such failure that is not a bug; it ends the
// program with its message and its exit code, as it does elsewhere. It needs no memory.
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "base/error.h"

namespace tandem::tools {
namespace {

bool is_out_of_memory() {
  if (!std::current_exception()) {  // also if there was no memory for one
    void* const some = std::malloc(4096);
    std::free(some);
    return !some;
  }
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const Error& e) {
    return e.code() == ErrorCode::out_of_memory;
  } catch (...) {
    return false;
  }
}

[[noreturn]] void end_program() {
  if (!is_out_of_memory()) std::abort();
  constexpr std::string_view kMessage = "tandem: error: out of memory\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  _exit(static_cast<int>(ErrorCode::out_of_memory));
}

// Before other static variables are initialized.
[[gnu::constructor(101)]] void install() {
  std::set_terminate(end_program);
}

}  // namespace
}  // namespace tandem::tools
