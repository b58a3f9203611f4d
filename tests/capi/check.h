/* What the C tests share. A test is a function; it passes if no check in it failed. */
#ifndef TESTS_CAPI_CHECK_H
#define TESTS_CAPI_CHECK_H

#include <stdio.h>
#include <string.h>
#include <tandem.h>

typedef struct test {
  const char* name;
  void (*run)(void);
} test;

/* Each file's tests; the last has no name. */
extern const test argument_tests[], model_tests[], session_tests[], stop_tests[], chat_tests[];

extern const char* g_model;  /* path of the demo model */
extern const char* g_folder; /* for files, empty at the start */
extern int g_failures;

#define CHECK(condition)                                                                                    \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, tandem_last_error()); \
      g_failures++;                                                                                         \
    }                                                                                                       \
  } while (0)
#define CHECK_OK(call) CHECK((call) == TANDEM_OK)
/* The call fails so, with a message that has this text. */
#define CHECK_FAILS(call, status, text)                 \
  do {                                                  \
    CHECK((call) == (status));                          \
    CHECK(strstr(tandem_last_error(), (text)) != NULL); \
  } while (0)

/* Greedy, on one thread, with a small context. */
tandem_options* test_options(void);
tandem_model* load_model(void);
tandem_session* new_session(tandem_model* model);

/* Collects the text of pieces; as a callback with a `collected` as user data. */
typedef struct collected {
  char text[8192];
  size_t n_bytes;
  int n_calls, n_tokens;
  int stop_after; /* calls; 0: never */
  tandem_stop stop;
} collected;
int collect(const tandem_piece* piece, void* user_data);

#endif
