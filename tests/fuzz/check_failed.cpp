// A broken invariant ends the program at once, without a word to the fuzzer. Here it aborts instead, so that the fuzzer
// saves the input. The linker puts this in the place of tandem::check_failed() (--wrap).
#include <cstdio>
#include <cstdlib>

extern "C" [[noreturn]] void __wrap__ZN6tandem12check_failedEPKciS1_(const char* file, int line,
                                                                     const char* condition);

extern "C" [[noreturn]] void __wrap__ZN6tandem12check_failedEPKciS1_(const char* file, int line,
                                                                     const char* condition) {
  fprintf(stderr, "tandem: internal error at %s:%d: %s\n", file, line, condition);
  std::abort();
}
