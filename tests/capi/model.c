/* Models and tokens. */
#include <stdlib.h>

#include "capi/check.h"

static void info(void) {
  tandem_model* model = load_model();
  const tandem_model_info* i = tandem_model_get_info(model);
  CHECK(strcmp(i->path, g_model) == 0);
  CHECK(strcmp(i->architecture, "llama") == 0);
  CHECK(strstr(i->description, "llama") != NULL);
  CHECK(i->n_vocab == 3072 && i->n_layer == 4 && i->n_ctx_train == 512);
  CHECK(i->n_params > 3000000 && i->n_weight_bytes > i->n_params);
  CHECK(tandem_token_ends_text(model, i->eos) == 1);
  CHECK(tandem_token_ends_text(model, 100) == 0);
  CHECK(tandem_token_ends_text(model, -1) == 0 && tandem_token_ends_text(model, 1 << 30) == 0);
  tandem_model_free(model);
}

static void bad_files(void) {
  tandem_model* model = NULL;
  char path[4096];
  FILE* file;
  CHECK_FAILS(tandem_model_load("/nonexistent/model.gguf", NULL, &model), TANDEM_ERROR_IO,
              "/nonexistent/model.gguf");
  CHECK(model == NULL);
  snprintf(path, sizeof path, "%s/bad.gguf", g_folder);
  file = fopen(path, "wb");
  fputs("this is no model", file);
  fclose(file);
  CHECK_FAILS(tandem_model_load(path, NULL, &model), TANDEM_ERROR_BAD_FILE, path);
  CHECK_FAILS(tandem_model_load(g_folder, NULL, &model), TANDEM_ERROR_BAD_FILE, g_folder);
  CHECK_FAILS(tandem_model_load("", NULL, &model), TANDEM_ERROR_IO, "");
  CHECK(model == NULL);
  remove(path);
}

static void tokens(void) {
  tandem_model* model = load_model();
  const char text[] = "Hello, \xc3\xa9t\xc3\xa9!\0<|im_end|>";
  const size_t n_bytes = sizeof text - 1;
  int32_t ids[100], few[2] = {-7, -7};
  char bytes[200];
  size_t n = 0, n_parsed = 0, n_back = 0;
  int32_t bad = 1 << 20;
  CHECK_OK(tandem_tokenize(model, text, n_bytes, 0, NULL, 0, &n));
  CHECK(n > 2 && n < 100);
  CHECK_OK(tandem_tokenize(model, text, n_bytes, 0, ids, 100, &n_back));
  CHECK(n_back == n);
  CHECK_OK(tandem_detokenize(model, ids, n, 0, bytes, sizeof bytes, &n_back));
  CHECK(n_back == n_bytes && memcmp(bytes, text, n_bytes) == 0);
  CHECK_OK(tandem_tokenize(model, text, n_bytes, TANDEM_PARSE_SPECIAL, ids, 100, &n_parsed));
  CHECK(n_parsed < n);
  CHECK_OK(tandem_detokenize(model, ids, n_parsed, TANDEM_PARSE_SPECIAL, NULL, 0, &n_back));
  CHECK(n_back == n_bytes);
  CHECK_OK(tandem_detokenize(model, ids, n_parsed, 0, NULL, 0, &n_back));
  CHECK(n_back == n_bytes - strlen("<|im_end|>"));

  CHECK_FAILS(tandem_tokenize(model, text, n_bytes, 0, few, 1, &n_back), TANDEM_ERROR_TOO_SMALL,
              "room for 1");
  CHECK(n_back == n && few[0] >= 0 && few[1] == -7);
  CHECK_FAILS(tandem_detokenize(model, ids, n_parsed, 0, bytes, 1, &n_back), TANDEM_ERROR_TOO_SMALL,
              "room for 1");
  CHECK_FAILS(tandem_detokenize(model, &bad, 1, 0, NULL, 0, &n_back), TANDEM_ERROR_USAGE, "1048576");
  CHECK_OK(tandem_detokenize(model, NULL, 0, 0, NULL, 0, &n_back));
  CHECK(n_back == 0);
  tandem_model_free(model);
}

/* Objects may be freed in any order. */
static void a_session_keeps_its_model(void) {
  tandem_model* model = load_model();
  tandem_session* session = new_session(model);
  tandem_chat* chat = NULL;
  tandem_options* options = test_options();
  tandem_model_free(model);
  CHECK_OK(tandem_session_complete(session, options, "A", NULL, NULL));
  CHECK_OK(tandem_chat_new(session, options, &chat));
  tandem_session_free(session);
  CHECK_OK(tandem_chat_ask(chat, options, "Hello", NULL, NULL));
  tandem_chat_free(chat);
  tandem_options_free(options);
}

static void memory_limits(void) {
  tandem_model* model = load_model();
  tandem_session* session = NULL;
  tandem_options* options = test_options();
  CHECK_OK(tandem_options_set_int(options, "max_ram", 100000));
  CHECK_FAILS(tandem_session_new(model, options, &session), TANDEM_ERROR_OUT_OF_MEMORY, "");
  CHECK(session == NULL && strlen(tandem_last_error()) > 20);
  CHECK_OK(tandem_options_set_int(options, "max_ram", 0));
  CHECK_OK(tandem_session_new(model, options, &session));
  CHECK_OK(tandem_session_complete(session, options, "A", NULL, NULL));
  tandem_session_free(session);
  tandem_options_free(options);
  tandem_model_free(model);
}

static void no_gpu_by_that_name(void) {
  tandem_model* model = load_model();
  tandem_session* session = NULL;
  tandem_options* options = test_options();
  CHECK_OK(tandem_options_set_text(options, "devices", "NOGPU7"));
  CHECK_FAILS(tandem_session_new(model, options, &session), TANDEM_ERROR_USAGE, "NOGPU7");
  CHECK_OK(tandem_options_set_text(options, "devices", "none"));
  CHECK_OK(tandem_options_set_int(options, "n_gpu_layers", 99));
  CHECK_OK(tandem_session_new(model, options, &session));
  tandem_session_free(session);
  tandem_options_free(options);
  tandem_model_free(model);
}

static void placement(void) {
  tandem_model* model = load_model();
  tandem_session* session = NULL;
  tandem_options* options = test_options();
  CHECK_OK(tandem_options_set_text(options, "huge_pages", "on"));
  CHECK_OK(tandem_options_set_text(options, "kv_on_host", "on"));
  CHECK_OK(tandem_options_set_text(options, "stream", "off"));
  CHECK_OK(tandem_session_new(model, options, &session));
  tandem_session_free(session);
  session = NULL;
  CHECK_OK(tandem_options_set_int(options, "kv_prefetched", 1));
  CHECK_FAILS(tandem_session_new(model, options, &session), TANDEM_ERROR_USAGE, "kv_prefetched");
  tandem_options_free(options);
  tandem_model_free(model);
}

static void instruction_set(void) {
  tandem_model* model = load_model();
  tandem_session* session = NULL;
  tandem_options* options = test_options();
  CHECK_OK(tandem_options_set_text(options, "isa", "mmx"));
  CHECK_FAILS(tandem_session_new(model, options, &session), TANDEM_ERROR_USAGE, "mmx is no instruction set");
  CHECK_OK(tandem_options_set_text(options, "isa", "scalar"));
  CHECK_OK(tandem_session_new(model, options, &session));
  tandem_session_free(session);
  tandem_options_free(options);
  tandem_model_free(model);
}

const test model_tests[] = {{"info", info},
                            {"bad_files", bad_files},
                            {"tokens", tokens},
                            {"a_session_keeps_its_model", a_session_keeps_its_model},
                            {"memory_limits", memory_limits},
                            {"no_gpu_by_that_name", no_gpu_by_that_name},
                            {"placement", placement},
                            {"instruction_set", instruction_set},
                            {NULL, NULL}};
