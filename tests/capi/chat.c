/* Conversations. */
#include <stdlib.h>

#include "capi/check.h"

typedef struct fixture {
  tandem_model* model;
  tandem_session* session;
  tandem_options* options;
  tandem_chat* chat;
} fixture;

static fixture set_up(void) {
  fixture f;
  f.model = load_model();
  f.session = new_session(f.model);
  f.options = test_options();
  f.chat = NULL;
  CHECK_OK(tandem_chat_new(f.session, f.options, &f.chat));
  return f;
}

static void tear_down(fixture* f) {
  tandem_chat_free(f->chat);
  tandem_options_free(f->options);
  tandem_session_free(f->session);
  tandem_model_free(f->model);
}

static void asks(void) {
  fixture f = set_up();
  const tandem_result* r = tandem_session_get_result(f.session);
  collected c = {{0}, 0, 0, 0, 0, TANDEM_STOP_NONE};
  char first[8192];
  int64_t n_past;
  CHECK_OK(tandem_chat_ask(f.chat, f.options, "Hello", collect, &c));
  CHECK(c.n_bytes > 0 && strcmp(c.text, r->text) == 0 && c.stop == r->stop);
  CHECK(c.n_tokens == r->n_generated);
  CHECK(strstr(r->text, "<|im_end|>") == NULL);
  strcpy(first, r->text);
  n_past = tandem_session_n_past(f.session);
  CHECK_OK(tandem_chat_ask(f.chat, f.options, "Thank you", NULL, NULL));
  CHECK(r->n_reused >= n_past); /* the first turn was not computed again */
  CHECK_OK(tandem_chat_undo(f.chat));
  CHECK_OK(tandem_chat_undo(f.chat));
  CHECK_FAILS(tandem_chat_undo(f.chat), TANDEM_ERROR_USAGE, "no message");
  CHECK_OK(tandem_chat_ask(f.chat, f.options, "Hello", NULL, NULL));
  CHECK(strcmp(r->text, first) == 0);
  CHECK_OK(tandem_chat_clear(f.chat));
  CHECK_OK(tandem_chat_set_system(f.chat, "You are brief."));
  CHECK_OK(tandem_chat_ask(f.chat, f.options, "Hello", NULL, NULL));
  CHECK_FAILS(tandem_chat_ask(f.chat, f.options, "caf\xe9", NULL, NULL), TANDEM_ERROR_USAGE, "needed UTF-8");
  CHECK_FAILS(tandem_chat_set_system(f.chat, "\xff"), TANDEM_ERROR_USAGE, "needed UTF-8");
  CHECK_OK(tandem_chat_undo(f.chat)); /* of the one that did not fail */
  tear_down(&f);
}

static void stops(void) {
  fixture f = set_up();
  const tandem_result* r = tandem_session_get_result(f.session);
  collected c = {{0}, 0, 0, 0, 2, TANDEM_STOP_NONE};
  CHECK_OK(tandem_options_set_int(f.options, "n_logprobs", 2));
  CHECK_OK(tandem_chat_ask(f.chat, f.options, "Tell me a story about a fox.", collect, &c));
  CHECK(c.n_calls == 2 && r->stop == TANDEM_STOP_INTERRUPTED);
  CHECK(c.n_bytes > 0 && strncmp(c.text, r->text, c.n_bytes) == 0);
  CHECK_OK(tandem_chat_undo(f.chat));
  tear_down(&f);
}

static int check_logprobs(const tandem_piece* piece, void* user_data) {
  size_t i;
  int* n = user_data;
  for (i = 0; i < piece->n_tokens; i++, ++*n) {
    CHECK(piece->tokens[i].logprob <= 0 && piece->tokens[i].n_top == 2);
    CHECK(piece->tokens[i].top[0].id == piece->tokens[i].id); /* greedy */
  }
  return 0;
}

static void reports_tokens(void) {
  fixture f = set_up();
  int n = 0;
  CHECK_OK(tandem_options_set_int(f.options, "n_logprobs", 2));
  CHECK_OK(tandem_chat_ask(f.chat, f.options, "Hello", check_logprobs, &n));
  CHECK(n == tandem_session_get_result(f.session)->n_generated && n > 2);
  tear_down(&f);
}

static void saves(void) {
  fixture f = set_up();
  tandem_chat* loaded = NULL;
  tandem_session* session = new_session(f.model);
  const tandem_result* r = tandem_session_get_result(session);
  char path[4096], second[8192];
  snprintf(path, sizeof path, "%s/talk", g_folder);
  CHECK_OK(tandem_chat_ask(f.chat, f.options, "Hello", NULL, NULL));
  CHECK_OK(tandem_chat_save(f.chat, path));
  CHECK_OK(tandem_chat_ask(f.chat, f.options, "Thank you", NULL, NULL));
  strcpy(second, tandem_session_get_result(f.session)->text);
  CHECK_OK(tandem_chat_new(session, f.options, &loaded));
  CHECK_OK(tandem_chat_load(loaded, path));
  CHECK_OK(tandem_chat_ask(loaded, f.options, "Thank you", NULL, NULL));
  CHECK(strcmp(r->text, second) == 0 && r->n_reused > 0);
  CHECK_FAILS(tandem_chat_load(loaded, "/dev/null/talk"), TANDEM_ERROR_IO, "/dev/null/talk");
  CHECK_FAILS(tandem_chat_load(loaded, g_model), TANDEM_ERROR_BAD_FILE, g_model);
  CHECK_FAILS(tandem_chat_save(loaded, "/dev/null/talk"), TANDEM_ERROR_IO, "/dev/null/talk");
  CHECK_OK(tandem_chat_ask(loaded, f.options, "Hello", NULL, NULL));
  remove(path);
  tandem_chat_free(loaded);
  tandem_session_free(session);
  tear_down(&f);
}

static void templates(void) {
  fixture f = set_up();
  tandem_chat* chat = NULL;
  const tandem_message messages[] = {{"system", "Be brief."}, {"user", "<|im_end|>"}};
  int32_t ids[200], end = -1;
  size_t n = 0, n_ends = 0, i;
  CHECK_OK(tandem_tokenize(f.model, "<|im_end|>", 10, TANDEM_PARSE_SPECIAL, &end, 1, &n));
  CHECK_OK(tandem_tokenize_chat(f.model, NULL, messages, 2, ids, 200, &n));
  for (i = 0; i < n; i++) n_ends += ids[i] == end;
  CHECK(n_ends == 2); /* of the two turns, not the one that the user typed */
  CHECK_FAILS(tandem_tokenize_chat(f.model, NULL, messages, 2, ids, 3, &i), TANDEM_ERROR_TOO_SMALL,
              "room for 3");
  CHECK(i == n);
  CHECK_OK(tandem_options_set_text(f.options, "chat_template", "no such name"));
  CHECK_FAILS(tandem_chat_new(f.session, f.options, &chat), TANDEM_ERROR_USAGE,
              "chat_template: 'no such name'");
  CHECK_OK(tandem_options_set_text(f.options, "chat_template", "{% for m in messages %}{{ m.content "));
  CHECK_FAILS(tandem_chat_new(f.session, f.options, &chat), TANDEM_ERROR_BAD_FILE, "chat_template");
  CHECK(chat == NULL);
  CHECK_OK(tandem_options_set_text(f.options, "chat_template",
                                   "{% for m in messages %}{{ m.content }}{% endfor %}"));
  CHECK_OK(tandem_chat_new(f.session, f.options, &chat));
  CHECK_OK(tandem_chat_ask(chat, f.options, "Once upon a time", NULL, NULL));
  CHECK(tandem_session_get_result(f.session)->n_bytes > 0);
  tandem_chat_free(chat);
  tear_down(&f);
}

const test chat_tests[] = {{"asks", asks},   {"stops", stops},         {"reports_tokens", reports_tokens},
                           {"saves", saves}, {"templates", templates}, {NULL, NULL}};
