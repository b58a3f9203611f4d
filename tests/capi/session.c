/* Completions: pushed and pulled, their tokens and probabilities. */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "capi/check.h"

static const char kPrompt[] = "Once upon a time";

static size_t prompt_ids(tandem_model* model, int32_t* ids, size_t capacity) {
  size_t n = 0;
  CHECK_OK(tandem_tokenize(model, kPrompt, strlen(kPrompt), TANDEM_ADD_SPECIAL | TANDEM_PARSE_SPECIAL, ids,
                           capacity, &n));
  return n;
}

static void completes(void) {
  tandem_model* model = load_model();
  tandem_session* session = new_session(model);
  tandem_options* options = test_options();
  collected c = {{0}, 0, 0, 0, 0, TANDEM_STOP_NONE};
  const tandem_result* r;
  CHECK_OK(tandem_session_complete(session, options, kPrompt, collect, &c));
  r = tandem_session_get_result(session);
  CHECK(c.n_bytes > 20 && c.stop == TANDEM_STOP_LIMIT && c.n_tokens == 24);
  CHECK(strcmp(r->text, c.text) == 0 && r->n_bytes == c.n_bytes && r->stop == TANDEM_STOP_LIMIT);
  CHECK(r->n_generated == 24 && r->n_reused == 0 && r->n_prompt > 0 && r->prompt_s > 0 && r->generate_s > 0);
  CHECK(strcmp(r->reasoning, "") == 0);
  CHECK(tandem_session_n_past(session) == r->n_prompt + 23); /* the last token was not read */
  CHECK(tandem_session_n_ctx(session) == 256);
  { /* the same again: the prompt is there */
    const int64_t n_prompt = r->n_prompt;
    CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
    CHECK(r->n_reused == n_prompt - 1 && r->n_prompt == 1);
    CHECK(strcmp(r->text, c.text) == 0);
  }
  CHECK_OK(tandem_session_truncate(session, 2));
  CHECK(tandem_session_n_past(session) == 2);
  CHECK_FAILS(tandem_session_truncate(session, 3), TANDEM_ERROR_USAGE, "n_tokens is 3, needed 0 to 2");
  CHECK_FAILS(tandem_session_truncate(session, -1), TANDEM_ERROR_USAGE, "n_tokens is -1");
  tandem_options_free(options);
  tandem_session_free(session);
  tandem_model_free(model);
}

/* The same text with guesses, at the caller's pace too; and the session holds no guesses. */
static void guesses(void) {
  tandem_model* model = load_model();
  tandem_session *plain = new_session(model), *session = NULL;
  tandem_options* options = test_options();
  const tandem_piece* piece = NULL;
  int32_t ids[50];
  const size_t n = prompt_ids(model, ids, 50);
  int64_t n_tokens = 0;
  char text[8192] = "";
  CHECK_OK(tandem_options_set_int(options, "n_predict", 100));
  CHECK_OK(tandem_options_set_int(options, "n_draft", 8));
  CHECK_FAILS(tandem_options_set_int(options, "n_draft", 65), TANDEM_ERROR_USAGE, "n_draft");
  CHECK_OK(tandem_session_new(model, options, &session));
  CHECK_OK(tandem_session_complete(plain, options, kPrompt, NULL, NULL));
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  CHECK(strcmp(tandem_session_get_result(session)->text, tandem_session_get_result(plain)->text) == 0);
  CHECK(tandem_session_n_past(session) == tandem_session_n_past(plain));
  CHECK(tandem_session_get_result(plain)->n_guessed == 0);
  CHECK(tandem_session_get_result(session)->n_guessed >= tandem_session_get_result(session)->n_guessed_right);
  CHECK_OK(tandem_session_begin(session, options, ids, n));
  do {
    CHECK(tandem_session_n_past(session) == (int64_t)n + (n_tokens == 0 ? 0 : n_tokens - 1));
    CHECK_OK(tandem_session_next(session, &piece));
    if (piece == NULL) break;
    strcat(text, piece->text);
    n_tokens += piece->n_tokens;
  } while (piece->stop == TANDEM_STOP_NONE);
  CHECK(strcmp(tandem_session_get_result(plain)->text, text) == 0);
  tandem_options_free(options);
  tandem_session_free(session);
  tandem_session_free(plain);
  tandem_model_free(model);
}

/* What one session computed, another loads: the same text. A folder of something else is refused. */
static void keeps(void) {
  static const char story[] = "Once upon a time there was a small dog, and the small dog had a red ball. The dog "
                                    "and the ball went to the park, and there was a cat in the park, and the cat had a hat.";
  tandem_model* model = load_model();
  tandem_options* options = test_options();
  tandem_session* sessions[2] = {NULL, NULL};
  char folder[4096], long_prompt[512];
  int i;
  snprintf(long_prompt, sizeof long_prompt, "%ld. %s", (long)time(NULL), story); /* new in each run of the test */
  snprintf(folder, sizeof folder, "%s/kept", g_folder);
  CHECK_OK(tandem_options_set_text(options, "kv_store", folder));
  CHECK_OK(tandem_options_set_int(options, "kv_store_bytes", 1 << 20));
  for (i = 0; i < 2; ++i) {
    const tandem_result* r;
    CHECK_OK(tandem_session_new(model, options, &sessions[i]));
    CHECK_OK(tandem_session_complete(sessions[i], options, long_prompt, NULL, NULL));
    r = tandem_session_get_result(sessions[i]);
    CHECK(r->n_loaded == r->n_reused);
    CHECK(i == 0 ? r->n_loaded == 0 : r->n_loaded >= 32 && r->n_loaded % 32 == 0);
    tandem_session_free(i == 0 ? sessions[0] : NULL); /* which waits until all is written */
  }
  sessions[0] = NULL;
  CHECK_OK(tandem_options_set_text(options, "kv_store", g_model));
  CHECK_FAILS(tandem_session_new(model, options, &sessions[0]), TANDEM_ERROR_USAGE, "not a folder");
  CHECK_OK(tandem_options_set_text(options, "kv_store", ""));
  CHECK_OK(tandem_session_complete(sessions[1], options, kPrompt, NULL, NULL));
  tandem_session_free(sessions[1]);
  tandem_options_free(options);
  tandem_model_free(model);
}

/* begin and next give the text of complete, with seeds too; and what cannot be is refused. */
static void pulls(void) {
  tandem_model* model = load_model();
  tandem_session *session = new_session(model), *other = new_session(model);
  tandem_options* options = test_options();
  const tandem_piece* piece = NULL;
  int32_t ids[50];
  const size_t n = prompt_ids(model, ids, 50);
  char text[8192] = "";
  int n_tokens = 0;
  CHECK_OK(tandem_options_set_real(options, "temp", 1.2));
  CHECK_OK(tandem_options_set_int(options, "seed", 42));
  CHECK_FAILS(tandem_session_next(session, &piece), TANDEM_ERROR_USAGE, "no text to continue");
  CHECK_OK(tandem_session_begin(session, options, ids, n));
  do {
    CHECK_OK(tandem_session_next(session, &piece));
    if (piece == NULL) break;
    CHECK(piece->n_tokens == 1 && isnan(piece->tokens[0].logprob) && piece->tokens[0].n_top == 0);
    strcat(text, piece->text);
    n_tokens++;
  } while (piece->stop == TANDEM_STOP_NONE);
  CHECK_FAILS(tandem_session_next(session, &piece), TANDEM_ERROR_USAGE, "no text to continue");
  CHECK(piece == NULL);
  CHECK_OK(tandem_session_complete(other, options, kPrompt, NULL, NULL));
  CHECK(strcmp(tandem_session_get_result(other)->text, text) == 0);
  CHECK(strcmp(tandem_session_get_result(session)->text, text) == 0);
  CHECK(tandem_session_get_result(session)->seed == 42);
  CHECK(tandem_session_get_result(session)->n_generated == n_tokens);

  CHECK_OK(tandem_options_set_int(options, "n_predict", 0));
  CHECK_OK(tandem_session_begin(session, options, ids, n));
  CHECK_OK(tandem_session_next(session, &piece));
  CHECK(piece->stop == TANDEM_STOP_LIMIT && piece->n_tokens == 0 && piece->n_bytes == 0);

  ids[1] = 1 << 20;
  CHECK_FAILS(tandem_session_begin(session, options, ids, n), TANDEM_ERROR_USAGE, "token 1048576 at index 1");
  ids[1] = -1;
  CHECK_FAILS(tandem_session_begin(session, options, ids, n), TANDEM_ERROR_USAGE, "token -1 at index 1");
  CHECK_OK(tandem_options_add_bias(options, 1 << 20, 1));
  CHECK_FAILS(tandem_session_begin(session, options, ids, 1), TANDEM_ERROR_USAGE, "token 1048576");
  tandem_options_free(options);
  tandem_session_free(session);
  tandem_session_free(other);
  tandem_model_free(model);
}

/* The log probabilities are the log softmax of the logits that append() returns, whatever the sampling. */
static void logprobs(void) {
  tandem_model* model = load_model();
  tandem_session *session = new_session(model), *reference = new_session(model);
  const int n_vocab = tandem_model_get_info(model)->n_vocab;
  tandem_options* options = test_options();
  const tandem_piece* piece = NULL;
  const float* logits = NULL;
  int32_t ids[50];
  const size_t n = prompt_ids(model, ids, 50);
  int i, step;
  CHECK_OK(tandem_options_set_int(options, "n_logprobs", 3));
  CHECK_OK(tandem_options_set_real(options, "temp", 2));
  CHECK_OK(tandem_options_set_int(options, "seed", 7));
  CHECK_OK(tandem_options_set_real(options, "repeat_penalty", 1.3));
  CHECK_OK(tandem_options_add_bias(options, 40, 2));
  CHECK_OK(tandem_session_begin(session, options, ids, n));
  CHECK_OK(tandem_session_append(reference, ids, n, &logits));
  for (step = 0; step < 8; step++) {
    const tandem_token* token;
    double max = -1e30, sum = 0;
    int best = 0;
    CHECK_OK(tandem_session_next(session, &piece));
    if (piece == NULL || logits == NULL) break;
    for (i = 0; i < n_vocab; i++) {
      if (logits[i] > max) max = logits[best = i];
    }
    for (i = 0; i < n_vocab; i++) sum += exp(logits[i] - max);
    token = &piece->tokens[0];
    CHECK(token->n_top == 3 && token->top[0].id == best);
    CHECK(token->top[0].logprob >= token->top[1].logprob && token->top[1].logprob >= token->top[2].logprob);
    CHECK(fabs(token->logprob - (logits[token->id] - max - log(sum))) < 1e-4);
    for (i = 0; i < 3; i++) {
      const tandem_token* top = &token->top[i];
      CHECK(fabs(top->logprob - (logits[top->id] - max - log(sum))) < 1e-4);
      CHECK(top->n_bytes == strlen(top->text) && top->n_top == 0);
    }
    CHECK_OK(tandem_session_append(reference, &token->id, 1, &logits));
  }
  tandem_options_free(options);
  tandem_session_free(session);
  tandem_session_free(reference);
  tandem_model_free(model);
}

static int whole_characters(const tandem_piece* piece, void* user_data) {
  size_t i = 0;
  (void)user_data;
  while (i < piece->n_bytes) {
    const unsigned char c = (unsigned char)piece->text[i];
    i += c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
  }
  CHECK(i == piece->n_bytes);
  return 0;
}

/* Characters of which the vocabulary has only bytes: each comes in one piece. */
static void characters_across_tokens(void) {
  tandem_model* model = load_model();
  tandem_session* session = new_session(model);
  tandem_options* options = test_options();
  const tandem_result* r = tandem_session_get_result(session);
  CHECK_OK(tandem_options_set_text(options, "grammar", "root ::= \"\xc3\xa9\xf0\x9f\x98\x80\xe2\x82\xac\""));
  CHECK_OK(tandem_session_complete(session, options, kPrompt, whole_characters, NULL));
  CHECK(strcmp(r->text, "\xc3\xa9\xf0\x9f\x98\x80\xe2\x82\xac") == 0);
  CHECK(r->n_generated > 3);
  CHECK_OK(tandem_options_set_int(options, "n_predict", 1)); /* half a character at the end */
  CHECK_OK(tandem_options_set_text(options, "grammar", "root ::= \"\xf0\x9f\x98\x80\""));
  CHECK_OK(tandem_session_complete(session, options, kPrompt, whole_characters, NULL));
  CHECK(strcmp(r->text, "\xef\xbf\xbd") == 0);
  tandem_options_free(options);
  tandem_session_free(session);
  tandem_model_free(model);
}

/* After an error the session is as useful as before. */
static void use_after_errors(void) {
  tandem_model* model = load_model();
  tandem_session* session = new_session(model);
  tandem_options* options = test_options();
  const tandem_result* r = tandem_session_get_result(session);
  char long_prompt[4000];
  char first[8192];
  memset(long_prompt, 'x', sizeof long_prompt - 1);
  long_prompt[sizeof long_prompt - 1] = '\0';
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  strcpy(first, r->text);
  CHECK_FAILS(tandem_session_complete(session, options, long_prompt, NULL, NULL), TANDEM_ERROR_USAGE,
              "the context holds 256");
  CHECK_OK(tandem_options_set_text(options, "grammar", "root ::= \"a\""));
  CHECK_OK(tandem_options_add_bias(options, 0, 0));
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  CHECK(strcmp(r->text, "a") == 0 && r->stop == TANDEM_STOP_END);
  CHECK_OK(tandem_options_set_text(options, "grammar", ""));
  CHECK_OK(tandem_session_complete(session, options, kPrompt, NULL, NULL));
  CHECK(strcmp(r->text, first) == 0);
  tandem_options_free(options);
  tandem_session_free(session);
  tandem_model_free(model);
}

const test session_tests[] = {{"completes", completes},
                              {"guesses", guesses},
                              {"keeps", keeps},
                              {"pulls", pulls},
                              {"logprobs", logprobs},
                              {"characters_across_tokens", characters_across_tokens},
                              {"use_after_errors", use_after_errors},
                              {NULL, NULL}};
