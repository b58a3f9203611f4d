/* Texts that are stopped, and sessions in several threads. */
#include <pthread.h>
#include <stdlib.h>

#include "capi/check.h"

static const char kPrompt[] = "Once upon a time";

static void in_the_callback(void) {
  tandem_model* model = load_model();
  tandem_session* session = new_session(model);
  tandem_options* options = test_options();
  const tandem_result* r = tandem_session_get_result(session);
  collected c = {{0}, 0, 0, 0, 3, TANDEM_STOP_NONE};
  CHECK_OK(tandem_session_complete(session, options, kPrompt, collect, &c));
  CHECK(c.n_calls == 3 && c.stop == TANDEM_STOP_NONE);
  CHECK(r->stop == TANDEM_STOP_INTERRUPTED && r->n_generated == 3 && strcmp(r->text, c.text) == 0);
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  CHECK(r->stop == TANDEM_STOP_LIMIT && strncmp(r->text, c.text, c.n_bytes) == 0);
  tandem_options_free(options);
  tandem_session_free(session);
  tandem_model_free(model);
}

static void after_a_text(void) {
  tandem_model* model = load_model();
  tandem_session* session = new_session(model);
  tandem_options* options = test_options();
  const tandem_result* r = tandem_session_get_result(session);
  CHECK_OK(tandem_options_set_int(options, "n_predict", 200));
  CHECK_OK(tandem_options_add_stop(options, "nothing like it"));
  CHECK_OK(tandem_options_add_stop(options, "."));
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  CHECK(r->stop == TANDEM_STOP_TEXT && r->n_bytes > 1 && strchr(r->text, '.') != NULL);
  CHECK_OK(tandem_options_add_stop(options, NULL));
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  CHECK(r->stop != TANDEM_STOP_TEXT);
  tandem_options_free(options);
  tandem_session_free(session);
  tandem_model_free(model);
}

static void by_a_full_context(void) {
  tandem_model* model = load_model();
  tandem_session* session = NULL;
  tandem_options* options = test_options();
  const tandem_result* r;
  CHECK_OK(tandem_options_set_int(options, "n_ctx", 32));
  CHECK_OK(tandem_options_set_int(options, "n_predict", 100));
  CHECK_OK(tandem_options_set_int(options, "ignore_eos", 1));
  CHECK_OK(tandem_session_new(model, options, &session));
  r = tandem_session_get_result(session);
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  CHECK(r->stop == TANDEM_STOP_CONTEXT_FULL && r->n_shifts == 0);
  CHECK_OK(tandem_options_set_int(options, "context_shift", 1));
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  CHECK(r->stop == TANDEM_STOP_LIMIT && r->n_generated == 100 && r->n_shifts > 0);
  tandem_options_free(options);
  tandem_session_free(session);
  tandem_model_free(model);
}

typedef struct job {
  tandem_model* model;
  tandem_session* session;
  pthread_mutex_t mutex;
  pthread_cond_t begun;
  int n_pieces;
  tandem_stop stop;
  char text[8192];
} job;

static int count(const tandem_piece* piece, void* user_data) {
  job* j = user_data;
  pthread_mutex_lock(&j->mutex);
  j->n_pieces++;
  j->stop = piece->stop;
  pthread_cond_signal(&j->begun);
  pthread_mutex_unlock(&j->mutex);
  return 0;
}

static void* endless(void* user_data) {
  job* j = user_data;
  tandem_options* options = test_options();
  CHECK_OK(tandem_options_set_int(options, "n_predict", -1));
  CHECK_OK(tandem_options_set_int(options, "ignore_eos", 1));
  CHECK_OK(tandem_options_set_int(options, "context_shift", 1));
  CHECK_OK(tandem_session_complete(j->session, options, kPrompt, count, j));
  tandem_options_free(options);
  return NULL;
}

static void from_another_thread(void) {
  static job j;
  pthread_t thread;
  const tandem_result* r;
  const tandem_piece* piece = NULL;
  tandem_options* options = test_options();
  int32_t ids[3] = {5, 6, 7};
  j.model = load_model();
  j.session = new_session(j.model);
  pthread_mutex_init(&j.mutex, NULL);
  pthread_cond_init(&j.begun, NULL);
  CHECK(pthread_create(&thread, NULL, endless, &j) == 0);
  pthread_mutex_lock(&j.mutex);
  while (j.n_pieces < 2) pthread_cond_wait(&j.begun, &j.mutex);
  pthread_mutex_unlock(&j.mutex);
  tandem_session_interrupt(j.session);
  pthread_join(thread, NULL);
  r = tandem_session_get_result(j.session);
  CHECK(r->stop == TANDEM_STOP_INTERRUPTED && j.stop == TANDEM_STOP_INTERRUPTED && r->n_bytes > 0);

  /* Between begin and next it counts, before begin it does not. */
  CHECK_OK(tandem_session_begin(j.session, options, ids, 3));
  tandem_session_interrupt(j.session);
  CHECK_OK(tandem_session_next(j.session, &piece));
  CHECK(piece->stop == TANDEM_STOP_INTERRUPTED && piece->n_tokens == 0);
  tandem_session_interrupt(j.session);
  CHECK_OK(tandem_session_begin(j.session, options, ids, 3));
  CHECK_OK(tandem_session_next(j.session, &piece));
  CHECK(piece->n_tokens == 1);
  CHECK_OK(tandem_session_append(j.session, ids, 1, NULL)); /* ends the text */
  CHECK_FAILS(tandem_session_next(j.session, &piece), TANDEM_ERROR_USAGE, "no text to continue");
  tandem_options_free(options);
  tandem_session_free(j.session);
  tandem_model_free(j.model);
  pthread_mutex_destroy(&j.mutex);
  pthread_cond_destroy(&j.begun);
}

static void* complete_on_its_own(void* user_data) {
  job* j = user_data;
  tandem_options* options = test_options();
  tandem_session* session = new_session(j->model);
  CHECK_OK(tandem_options_set_real(options, "temp", 1));
  CHECK_OK(tandem_options_set_int(options, "seed", j->n_pieces));
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  strcpy(j->text, tandem_session_get_result(session)->text);
  /* The last error is this thread's. */
  CHECK_FAILS(tandem_session_truncate(session, -j->n_pieces), TANDEM_ERROR_USAGE,
              j->n_pieces == 1 ? "is -1," : "is -2,");
  tandem_session_free(session);
  tandem_options_free(options);
  return NULL;
}

static void two_threads(void) {
  static job alone[2], together[2];
  pthread_t threads[2];
  int i;
  tandem_model* model = load_model();
  for (i = 0; i < 2; i++) {
    alone[i].model = together[i].model = model;
    alone[i].n_pieces = together[i].n_pieces = i + 1; /* the seed */
    complete_on_its_own(&alone[i]);
  }
  for (i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, complete_on_its_own, &together[i]) == 0);
  for (i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  for (i = 0; i < 2; i++) CHECK(strcmp(alone[i].text, together[i].text) == 0);
  CHECK(strcmp(alone[0].text, alone[1].text) != 0);
  tandem_model_free(model);
}

const test stop_tests[] = {{"in_the_callback", in_the_callback},
                           {"after_a_text", after_a_text},
                           {"by_a_full_context", by_a_full_context},
                           {"from_another_thread", from_another_thread},
                           {"two_threads", two_threads},
                           {NULL, NULL}};
