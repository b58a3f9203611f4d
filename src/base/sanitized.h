// Whether this is a build with a sanitizer.
#pragma once

#if defined(__has_feature)
#define TANDEM_HAS_FEATURE(x) __has_feature(x)
#else
#define TANDEM_HAS_FEATURE(x) 0
#endif

namespace tandem {

// One with the thread sanitizer, which runs handlers of signals only when the program calls a function that it knows, and now
// and then loses a signal. TANDEM_THREAD_SANITIZED is for the sources of such a build that are compiled without its checks.
inline constexpr bool kThreadSanitized =
#if defined(__SANITIZE_THREAD__) || defined(TANDEM_THREAD_SANITIZED) || TANDEM_HAS_FEATURE(thread_sanitizer)
    true;
#else
    false;
#endif

// One with a sanitizer of addresses, threads or memory: it is slow, and needs all of the address space for notes of its own and
// calls that the program itself does not make.
inline constexpr bool kSanitized = kThreadSanitized ||
#if defined(__SANITIZE_ADDRESS__) || TANDEM_HAS_FEATURE(address_sanitizer) || \
    TANDEM_HAS_FEATURE(memory_sanitizer)
                                   true;
#else
                                   false;
#endif

}  // namespace tandem
