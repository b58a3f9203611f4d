/* Tests of the C library, in C: capi_tests MODEL FOLDER TEST; "all" runs them all, for valgrind. */
#include <stdlib.h>

#include "capi/check.h"

const char *g_model, *g_folder;
int g_failures = 0;

tandem_options* test_options(void) {
  tandem_options* options = tandem_options_new();
  CHECK_OK(tandem_options_set_int(options, "n_ctx", 256));
  CHECK_OK(tandem_options_set_int(options, "n_threads", 1));
  CHECK_OK(tandem_options_set_int(options, "n_predict", 24));
  CHECK_OK(tandem_options_set_real(options, "temp", 0));
  return options;
}

tandem_model* load_model(void) {
  tandem_model* model = NULL;
  CHECK_OK(tandem_model_load(g_model, NULL, &model));
  if (model == NULL) exit(1);
  return model;
}

tandem_session* new_session(tandem_model* model) {
  tandem_options* options = test_options();
  tandem_session* session = NULL;
  CHECK_OK(tandem_session_new(model, options, &session));
  tandem_options_free(options);
  if (session == NULL) exit(1);
  return session;
}

int collect(const tandem_piece* piece, void* user_data) {
  collected* c = user_data;
  CHECK(c->stop == TANDEM_STOP_NONE); /* nothing comes after the last piece */
  CHECK(piece->n_bytes == strlen(piece->text));
  if (c->n_bytes + piece->n_bytes < sizeof c->text) {
    memcpy(c->text + c->n_bytes, piece->text, piece->n_bytes + 1);
    c->n_bytes += piece->n_bytes;
  }
  c->n_calls++;
  c->n_tokens += (int)piece->n_tokens;
  c->stop = piece->stop;
  return c->n_calls == c->stop_after;
}

static int run(const test* tests, const char* name) {
  int n = 0;
  for (; tests->name != NULL; tests++) {
    if (strcmp(tests->name, name) != 0 && strcmp(name, "all") != 0) continue;
    tests->run();
    n++;
  }
  return n;
}

int main(int argc, char** argv) {
  int n;
  if (argc != 4) return 2;
  g_model = argv[1];
  g_folder = argv[2];
  n = run(argument_tests, argv[3]) + run(model_tests, argv[3]) + run(session_tests, argv[3]) +
      run(stop_tests, argv[3]) + run(chat_tests, argv[3]);
  if (n == 0) {
    fprintf(stderr, "no test %s\n", argv[3]);
    return 2;
  }
  return g_failures > 0;
}
