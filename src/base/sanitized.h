// Whether this is a build with a sanitizer of addresses, threads or memory: it needs all of the address space for notes of its
// own, and calls that the program itself does not make.
#pragma once

#if defined(__has_feature)
#define TANDEM_HAS_FEATURE(x) __has_feature(x)
#else
#define TANDEM_HAS_FEATURE(x) 0
#endif

namespace tandem {

inline constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                 \
    TANDEM_HAS_FEATURE(address_sanitizer) || TANDEM_HAS_FEATURE(thread_sanitizer) || \
    TANDEM_HAS_FEATURE(memory_sanitizer)
    true;
#else
    false;
#endif

// Whether it is one with the thread sanitizer, which runs handlers of signals only when the program calls a function that it
// knows, and now and then loses a signal.
inline constexpr bool kThreadSanitized =
#if defined(__SANITIZE_THREAD__) || defined(TANDEM_TEST_OF_THREADS) || TANDEM_HAS_FEATURE(thread_sanitizer)
    true;
#else
    false;
#endif

}  // namespace tandem
