/* Arguments that cannot be, and settings. */
#include <math.h>
#include <stdlib.h>

#include "capi/check.h"

/* Every function with NULL for each of its pointers. */
static void null_everywhere(void) {
  tandem_model* model = load_model();
  tandem_session* session = new_session(model);
  tandem_chat* chat = NULL;
  tandem_options* options = test_options();
  const tandem_piece* piece = NULL;
  const float* logits = NULL;
  int32_t id = 1;
  size_t n = 7;
  char byte;
  CHECK_OK(tandem_chat_new(session, NULL, &chat));

  CHECK_FAILS(tandem_options_set_int(NULL, "n_ctx", 1), TANDEM_ERROR_USAGE, "options is NULL");
  CHECK_FAILS(tandem_options_set_int(options, NULL, 1), TANDEM_ERROR_USAGE, "name is NULL");
  CHECK_FAILS(tandem_options_set_real(NULL, "temp", 1), TANDEM_ERROR_USAGE, "options is NULL");
  CHECK_FAILS(tandem_options_set_real(options, NULL, 1), TANDEM_ERROR_USAGE, "name is NULL");
  CHECK_FAILS(tandem_options_set_text(NULL, "devices", ""), TANDEM_ERROR_USAGE, "options is NULL");
  CHECK_FAILS(tandem_options_set_text(options, NULL, ""), TANDEM_ERROR_USAGE, "name is NULL");
  CHECK_FAILS(tandem_options_set_text(options, "devices", NULL), TANDEM_ERROR_USAGE, "value is NULL");
  CHECK_FAILS(tandem_options_add_stop(NULL, "x"), TANDEM_ERROR_USAGE, "options is NULL");
  CHECK_OK(tandem_options_add_stop(options, NULL));
  CHECK_FAILS(tandem_options_add_bias(NULL, 1, 0), TANDEM_ERROR_USAGE, "options is NULL");

  {
    tandem_model* none = model;
    CHECK_FAILS(tandem_model_load(NULL, NULL, &none), TANDEM_ERROR_USAGE, "path is NULL");
    CHECK(none == NULL);
  }
  CHECK_FAILS(tandem_model_load(g_model, NULL, NULL), TANDEM_ERROR_USAGE, "model is NULL");
  CHECK(tandem_model_get_info(NULL) == NULL);
  CHECK_FAILS(tandem_tokenize(NULL, "a", 1, 0, NULL, 0, &n), TANDEM_ERROR_USAGE, "model is NULL");
  CHECK(n == 0);
  CHECK_FAILS(tandem_tokenize(model, NULL, 1, 0, NULL, 0, &n), TANDEM_ERROR_USAGE, "text is NULL");
  CHECK_OK(tandem_tokenize(model, NULL, 0, 0, NULL, 0, &n));
  CHECK_FAILS(tandem_tokenize(model, "a", 1, 0, &id, 1, NULL), TANDEM_ERROR_USAGE, "n_ids is NULL");
  CHECK_FAILS(tandem_detokenize(NULL, &id, 1, 0, NULL, 0, &n), TANDEM_ERROR_USAGE, "model is NULL");
  CHECK_FAILS(tandem_detokenize(model, NULL, 1, 0, NULL, 0, &n), TANDEM_ERROR_USAGE, "ids is NULL");
  CHECK_FAILS(tandem_detokenize(model, &id, 1, 0, &byte, 1, NULL), TANDEM_ERROR_USAGE, "n_bytes is NULL");
  CHECK(tandem_token_ends_text(NULL, 0) == 0);
  {
    const tandem_message no_role = {NULL, "a"}, no_content = {"user", NULL};
    CHECK_FAILS(tandem_tokenize_chat(NULL, NULL, &no_role, 1, NULL, 0, &n), TANDEM_ERROR_USAGE,
                "model is NULL");
    CHECK_FAILS(tandem_tokenize_chat(model, NULL, NULL, 1, NULL, 0, &n), TANDEM_ERROR_USAGE,
                "messages is NULL");
    CHECK_FAILS(tandem_tokenize_chat(model, NULL, &no_role, 1, NULL, 0, &n), TANDEM_ERROR_USAGE,
                "role is NULL");
    CHECK_FAILS(tandem_tokenize_chat(model, NULL, &no_content, 1, NULL, 0, &n), TANDEM_ERROR_USAGE,
                "content is NULL");
    CHECK_FAILS(tandem_tokenize_chat(model, NULL, &no_role, 0, NULL, 0, NULL), TANDEM_ERROR_USAGE,
                "n_ids is NULL");
  }

  {
    tandem_session* none = session;
    CHECK_FAILS(tandem_session_new(NULL, NULL, &none), TANDEM_ERROR_USAGE, "model is NULL");
    CHECK(none == NULL);
  }
  CHECK_FAILS(tandem_session_new(model, NULL, NULL), TANDEM_ERROR_USAGE, "session is NULL");
  CHECK(tandem_session_n_ctx(NULL) == 0 && tandem_session_n_past(NULL) == 0);
  tandem_session_interrupt(NULL);
  CHECK(tandem_session_get_result(NULL) == NULL);
  CHECK_FAILS(tandem_session_complete(NULL, NULL, "a", NULL, NULL), TANDEM_ERROR_USAGE, "session is NULL");
  CHECK_FAILS(tandem_session_complete(session, NULL, NULL, NULL, NULL), TANDEM_ERROR_USAGE, "prompt is NULL");
  CHECK_FAILS(tandem_session_begin(NULL, NULL, &id, 1), TANDEM_ERROR_USAGE, "session is NULL");
  CHECK_FAILS(tandem_session_begin(session, NULL, NULL, 1), TANDEM_ERROR_USAGE, "ids is NULL");
  CHECK_FAILS(tandem_session_begin(session, NULL, NULL, 0), TANDEM_ERROR_USAGE, "no tokens");
  CHECK_FAILS(tandem_session_next(NULL, &piece), TANDEM_ERROR_USAGE, "session is NULL");
  CHECK_FAILS(tandem_session_next(session, NULL), TANDEM_ERROR_USAGE, "piece is NULL");
  CHECK_FAILS(tandem_session_append(NULL, &id, 1, &logits), TANDEM_ERROR_USAGE, "session is NULL");
  CHECK_FAILS(tandem_session_append(session, NULL, 1, &logits), TANDEM_ERROR_USAGE, "ids is NULL");
  CHECK_FAILS(tandem_session_truncate(NULL, 0), TANDEM_ERROR_USAGE, "session is NULL");

  {
    tandem_chat* none = chat;
    CHECK_FAILS(tandem_chat_new(NULL, NULL, &none), TANDEM_ERROR_USAGE, "session is NULL");
    CHECK(none == NULL);
  }
  CHECK_FAILS(tandem_chat_new(session, NULL, NULL), TANDEM_ERROR_USAGE, "chat is NULL");
  CHECK_FAILS(tandem_chat_set_system(NULL, "a"), TANDEM_ERROR_USAGE, "chat is NULL");
  CHECK_OK(tandem_chat_set_system(chat, NULL));
  CHECK_FAILS(tandem_chat_ask(NULL, NULL, "a", NULL, NULL), TANDEM_ERROR_USAGE, "chat is NULL");
  CHECK_FAILS(tandem_chat_ask(chat, NULL, NULL, NULL, NULL), TANDEM_ERROR_USAGE, "message is NULL");
  CHECK_FAILS(tandem_chat_undo(NULL), TANDEM_ERROR_USAGE, "chat is NULL");
  CHECK_FAILS(tandem_chat_clear(NULL), TANDEM_ERROR_USAGE, "chat is NULL");
  CHECK_FAILS(tandem_chat_save(NULL, "a"), TANDEM_ERROR_USAGE, "chat is NULL");
  CHECK_FAILS(tandem_chat_save(chat, NULL), TANDEM_ERROR_USAGE, "path is NULL");
  CHECK_FAILS(tandem_chat_load(NULL, "a"), TANDEM_ERROR_USAGE, "chat is NULL");
  CHECK_FAILS(tandem_chat_load(chat, NULL), TANDEM_ERROR_USAGE, "path is NULL");

  tandem_options_free(NULL);
  tandem_model_free(NULL);
  tandem_session_free(NULL);
  tandem_chat_free(NULL);
  tandem_set_log(TANDEM_LOG_VERBOSE, NULL, NULL);
  tandem_chat_free(chat);
  tandem_session_free(session);
  tandem_model_free(model);
  tandem_options_free(options);
}

static void settings(void) {
  static const char* const ints[] = {"mmap",
                                     "mlock",
                                     "self_extend",
                                     "self_extend_width",
                                     "n_ctx",
                                     "n_ubatch",
                                     "n_state_checkpoints",
                                     "n_deferred",
                                     "n_threads",
                                     "n_threads_batch",
                                     "n_gpu_layers",
                                     "max_ram",
                                     "max_vram",
                                     "kv_store_bytes",
                                     "n_predict",
                                     "n_logprobs",
                                     "context_shift",
                                     "n_keep",
                                     "special",
                                     "seed",
                                     "top_k",
                                     "repeat_last_n",
                                     "dry_allowed_length",
                                     "dry_penalty_last_n",
                                     "mirostat",
                                     "ignore_eos",
                                     "think"};
  static const char* const reals[] = {"temp",
                                      "top_p",
                                      "min_p",
                                      "typical_p",
                                      "top_n_sigma",
                                      "xtc_probability",
                                      "xtc_threshold",
                                      "dynatemp_range",
                                      "dynatemp_exponent",
                                      "repeat_penalty",
                                      "presence_penalty",
                                      "frequency_penalty",
                                      "dry_multiplier",
                                      "dry_base",
                                      "mirostat_lr",
                                      "mirostat_ent"};
  tandem_options* options = tandem_options_new();
  size_t i;
  for (i = 0; i < sizeof ints / sizeof *ints; i++) CHECK_OK(tandem_options_set_int(options, ints[i], 1));
  for (i = 0; i < sizeof reals / sizeof *reals; i++) {
    CHECK_OK(tandem_options_set_real(options, reals[i], 0.5));
    CHECK_OK(tandem_options_set_int(options, reals[i], 1));
  }
  CHECK_OK(tandem_options_set_text(options, "k_dtype", "q8_0"));
  CHECK_OK(tandem_options_set_text(options, "v_dtype", "F32"));
  CHECK_OK(tandem_options_set_text(options, "kv_type_layers", "0-3=q8_0/q4_0,4-=q4_0"));
  CHECK_OK(tandem_options_set_text(options, "kv_type_layers", ""));
  CHECK_OK(tandem_options_set_text(options, "kv_rotate", "on"));
  CHECK_OK(tandem_options_set_text(options, "sparse_kv", "16,2048"));
  CHECK_OK(tandem_options_set_text(options, "sparse_kv", ""));
  CHECK_OK(tandem_options_set_text(options, "devices", "CUDA0,CUDA1"));
  CHECK_OK(tandem_options_set_text(options, "split_mode", "tensor"));
  CHECK_OK(tandem_options_set_text(options, "tensor_split", "3,1"));
  CHECK_OK(tandem_options_set_text(options, "tensor_split", ""));
  CHECK_FAILS(tandem_options_set_text(options, "split_mode", "row"), TANDEM_ERROR_USAGE, "'row' is none of");
  CHECK_FAILS(tandem_options_set_text(options, "tensor_split", "1,-2"), TANDEM_ERROR_USAGE, "'-2' is no share");
  CHECK_OK(tandem_options_set_text(options, "kv_on_host", "on"));
  CHECK_OK(tandem_options_set_text(options, "stream", "off"));
  CHECK_OK(tandem_options_set_text(options, "pin", "auto"));
  CHECK_OK(tandem_options_set_text(options, "disk", "on"));
  CHECK_OK(tandem_options_set_text(options, "huge_pages", "on"));
  CHECK_FAILS(tandem_options_set_text(options, "pin", "1"), TANDEM_ERROR_USAGE, "'1' is none of on, off, auto");
  CHECK_OK(tandem_options_set_int(options, "kv_prefetched", 1));
  CHECK_OK(tandem_options_set_int(options, "kv_split", 4096));
  CHECK_OK(tandem_options_set_int(options, "expert_cache", 0));
  CHECK_OK(tandem_options_set_int(options, "gpu_weights_percent", 50));
  CHECK_FAILS(tandem_options_set_int(options, "gpu_weights_percent", 101), TANDEM_ERROR_USAGE, "gpu_weights_percent is 101");
  CHECK_OK(tandem_options_set_text(options, "kv_store", "folder"));
  CHECK_OK(tandem_options_set_text(options, "samplers", "top_k;temperature"));
  CHECK_OK(tandem_options_set_text(options, "grammar", "root ::= \"a\""));
  CHECK_OK(tandem_options_set_text(options, "json_schema", "{\"type\": \"integer\"}"));
  CHECK_OK(tandem_options_set_text(options, "chat_template", "chatml"));
  CHECK_OK(tandem_options_add_bias(options, 5, -INFINITY));

  CHECK_FAILS(tandem_options_set_int(options, "n_ctxx", 1), TANDEM_ERROR_USAGE, "no setting 'n_ctxx'");
  CHECK_FAILS(tandem_options_set_int(options, "grammar", 1), TANDEM_ERROR_USAGE, "grammar is a text");
  CHECK_FAILS(tandem_options_set_real(options, "n_ctx", 1), TANDEM_ERROR_USAGE, "n_ctx is an integer");
  CHECK_FAILS(tandem_options_set_text(options, "temp", "1"), TANDEM_ERROR_USAGE, "temp is a real number");
  CHECK_FAILS(tandem_options_set_int(options, "n_ctx", -1), TANDEM_ERROR_USAGE, "n_ctx is -1, needed 0 to");
  CHECK_FAILS(tandem_options_set_int(options, "mmap", 2), TANDEM_ERROR_USAGE, "mmap is 2");
  CHECK_FAILS(tandem_options_set_int(options, "max_ram", -5), TANDEM_ERROR_USAGE, "max_ram is -5");
  CHECK_FAILS(tandem_options_set_real(options, "temp", NAN), TANDEM_ERROR_USAGE, "temp");
  CHECK_FAILS(tandem_options_set_text(options, "kv_type_layers", "0-3"), TANDEM_ERROR_USAGE,
              "kv_type_layers=0-3: found no '=', needed LAYERS=TYPE");
  CHECK_FAILS(tandem_options_set_text(options, "kv_rotate", "yes"), TANDEM_ERROR_USAGE,
              "'yes' is none of on, off, auto");
  CHECK_FAILS(tandem_options_set_text(options, "k_dtype", "q4_k"), TANDEM_ERROR_USAGE,
              "k_dtype: 'q4_k' is none of");
  CHECK_FAILS(tandem_options_set_text(options, "samplers", "top_x"), TANDEM_ERROR_USAGE,
              "unknown sampler 'top_x'");
  CHECK_FAILS(tandem_options_set_text(options, "grammar", "root ::= ("), TANDEM_ERROR_BAD_FILE, "grammar");
  CHECK_FAILS(tandem_options_set_text(options, "json_schema", "{"), TANDEM_ERROR_BAD_FILE, "json_schema");
  CHECK_FAILS(tandem_options_add_stop(options, ""), TANDEM_ERROR_USAGE, "empty");
  tandem_options_free(options);
}

static void version(void) {
  char text[32];
  sprintf(text, "%d.%d.%d", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR, TANDEM_VERSION_PATCH);
  CHECK(strcmp(tandem_version(), text) == 0);
  CHECK(strcmp(tandem_version(), BUILD_VERSION) == 0);
}

static void remember(tandem_log_level level, const char* message, void* user_data) {
  char* first = user_data;
  CHECK(level <= TANDEM_LOG_VERBOSE && strchr(message, '\n') == NULL);
  if (*first == '\0') snprintf(first, 100, "%s", message);
}

static void log_goes_to_the_callback(void) {
  char first[100] = "";
  tandem_model* model;
  tandem_session* session;
  tandem_set_log(TANDEM_LOG_VERBOSE, remember, first);
  model = load_model();
  session = new_session(model);
  CHECK(first[0] != '\0');
  tandem_set_log(TANDEM_LOG_VERBOSE, NULL, NULL);
  first[0] = '\0';
  tandem_session_free(session);
  session = new_session(model);
  CHECK(first[0] == '\0');
  tandem_session_free(session);
  tandem_model_free(model);
}

const test argument_tests[] = {{"null_everywhere", null_everywhere},
                               {"settings", settings},
                               {"version", version},
                               {"log_goes_to_the_callback", log_goes_to_the_callback},
                               {NULL, NULL}};
