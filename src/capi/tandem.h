/* tandem.h: runs GGUF language models from C, and from every language that can call C.
 *
 *   tandem_options *options = tandem_options_new();
 *   tandem_options_set_int(options, "n_ctx", 4096);
 *   tandem_model *model = NULL;
 *   tandem_session *session = NULL;
 *   if (tandem_model_load("model.gguf", options, &model) == TANDEM_OK &&
 *       tandem_session_new(model, options, &session) == TANDEM_OK)
 *     tandem_session_complete(session, options, "Once upon a time", print_piece, NULL);
 *   else
 *     fprintf(stderr, "%s\n", tandem_last_error());
 *
 * Errors. A function that can fail returns a tandem_status, TANDEM_OK if it did not. tandem_last_error() then
 * has one line of text: what is wrong, where, what was found, what would help. No C++ exception leaves the
 * library, and after an error every object can still be used and freed. A NULL argument is
 * TANDEM_ERROR_USAGE unless the function says what it means.
 *
 * Ownership. Objects that *_new and *_load return belong to the caller, who frees each once; freeing NULL
 * does nothing. The order does not matter: a session keeps its model, a chat its session. Everything else
 * that the library returns a pointer to belongs to the library: it lives until the next call on the same
 * object, unless its description says longer. Texts are UTF-8 and end with a NUL that their n_bytes does not
 * count. The library copies what it is given.
 *
 * Threads. A model may be used by any number of threads at once. A session, with its chats, is used by one
 * thread at a time, and so is an options object; any number of sessions may run at the same time. Only
 * tandem_session_interrupt() may be called from anywhere at any time. tandem_last_error() is per thread.
 *
 * The library writes nothing to stdout or stderr (see tandem_set_log) and has no state beside its objects and
 * the log. Where there is a GPU, it measures the machine once and keeps the speeds in the user's cache
 * folder. While a model file is mapped, it watches SIGBUS: if somebody truncates the file, the process ends
 * with a line on stderr and exit code 5. The setting mmap=0 reads the file into memory instead.
 *
 * Units are in the names: n_ counts, _bytes, _s for seconds. Log probabilities are natural logarithms.
 *
 * A program that was compiled with one version runs with any later one of the same major version (of the same
 * minor version while the major is 0): functions and settings are added, none changes. Structs that the
 * library owns may grow at the end, so handle them by pointer. */
#ifndef TANDEM_H
#define TANDEM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TANDEM_API __attribute__((visibility("default")))
#else
#define TANDEM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_VERSION_MAJOR 0
#define TANDEM_VERSION_MINOR 1
#define TANDEM_VERSION_PATCH 0

/* The version of the library that runs, "0.1.0". */
TANDEM_API const char* tandem_version(void);

/* ---- Errors and messages ---- */

/* The numbers are the exit codes of the program `tandem`. */
typedef enum tandem_status {
  TANDEM_OK = 0,
  TANDEM_ERROR_TOO_SMALL = 1,     /* a buffer; the needed size was returned */
  TANDEM_ERROR_USAGE = 2,         /* an argument, a setting, or a call at the wrong time */
  TANDEM_ERROR_BAD_FILE = 3,      /* the model file, or a text in a format: grammar, schema, template */
  TANDEM_ERROR_OUT_OF_MEMORY = 4, /* of the machine, or within max_ram or max_vram */
  TANDEM_ERROR_IO = 5,            /* a file cannot be read or written */
  TANDEM_ERROR_NUMERIC = 6,       /* the model computed NaN */
  TANDEM_ERROR_INTERNAL = 70,     /* please report it */
  TANDEM_INTERRUPTED = 130        /* by tandem_session_interrupt() */
} tandem_status;

/* The message of the last call of this thread that failed; "" if none did. Valid until the next one fails. */
TANDEM_API const char* tandem_last_error(void);

typedef enum tandem_log_level {
  TANDEM_LOG_ERROR = 1,
  TANDEM_LOG_WARNING = 2,
  TANDEM_LOG_INFO = 3, /* where the model was placed, and why */
  TANDEM_LOG_VERBOSE = 4
} tandem_log_level;

/* One line without a line break. Calls come from any thread, one at a time. It must not call the library. */
typedef void (*tandem_log_callback)(tandem_log_level level, const char* message, void* user_data);

/* Sends messages up to `level` to the callback; NULL: nowhere, as at the start. For the whole process. */
TANDEM_API void tandem_set_log(tandem_log_level level, tandem_log_callback callback, void* user_data);

/* ---- Options ----
 *
 * One object has all settings; each function reads those that concern it. Wherever options are an argument,
 * NULL means the defaults. Error messages use the same names.
 *
 *   read by     setting          default  meaning
 *   load        mmap             1        map the file; 0: read it into memory
 *               mlock            0        keep the weights in memory
 *               self_extend      1        texts up to N times as long as the model was trained with: what is far from a token
 *                                         is seen by groups of N positions (SelfExtend); 1: off
 *               self_extend_width 512     tokens before each one that it sees at their true distance; a multiple of N
 *   session     n_ctx            0        tokens of context; 0: as the model was trained, or what fits
 *               n_ubatch         512      most tokens of a prompt in one step; for a mixture on the CPU, and where
 *                                         prompts stream weights to a GPU, more
 *               n_state_checkpoints 8     states of recurrent layers to keep, for tandem_session_truncate
 *               n_draft          0        most tokens that are guessed from the text so far and checked in one
 *                                         step; the text stays the same; 0: none
 *               n_deferred       0        of the experts that a token of a mixture chooses, so many of the lowest
 *                                         rank join one layer later (lossy)
 *               n_threads        -1       for single tokens; -1: one per physical core
 *               n_threads_batch  -1       for prompts; -1: as n_threads
 *               k_dtype, v_dtype "f16"    of the cache: "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0",
 *                                         "q4_1", "q4_0", "iq4_nl", "kivi4", "kivi2"
 *               kv_type_layers   ""       other types for some layers: "0-3=q8_0/q4_0,4-=q4_0"
 *               kv_rotate        "off"    rotate heads before they are cached: "on", "off"; "auto": those of 4-bit types
 *               sparse_kv        ""       "R,K": read only K positions of a cache in host memory, chosen by R components
 *                                         of keys, when generating (lossy); "": all
 *               kv_memory        0        most bytes of host memory for the cache; the older part is on disk, and read for each
 *                                         token; 0: all is in memory
 *               kv_spill         ""       folder for that, which kv_memory needs
 *               devices          ""       GPUs by name, "CUDA0,CUDA1"; "": all; "none"
 *               isa              ""       instruction set of the CPU's kernels: "scalar", "avx2", "avx_vnni",
 *                                         "avx512", "avx512_vnni", "avx512_vbmi", "avx512_bf16", "avx512_amx"; "": the best
 *               n_gpu_layers     -1       last layers of the model on GPUs; -1: what is fastest
 *               split_mode       "auto"   with several GPUs: "layer", whole layers on each; "tensor", each layer over all
 *                                         of them; "none", only the first; "auto", what is fastest
 *               tensor_split     ""       share of each GPU, "3,1"; "": by free memory
 *               kv_on_host       "auto"   keep the cache of layers on GPUs in host memory, where the CPU attends: "on", "off"
 *               kv_prefetched    0        1: it is there, and comes to the GPU for each step
 *               kv_split         0        only the newest tokens, so many, have their cache on the GPU; 0: all
 *               stream           "auto"   send weights in host memory to the GPU for each step: "on", "off"
 *               gpu_weights_percent -1    of the weights that GPUs keep, the rest is sent; -1: what is fastest
 *               expert_cache     -1       most bytes of each GPU for experts of layers in host memory or on disk; 0: none;
 *                                         -1: what is fastest
 *               pin              "auto"   page-lock what GPUs fetch often: "on", "off"
 *               disk             "auto"   read layers that host memory has no room for from disk in each step: "on", "off"
 *               huge_pages       "auto"   move weights that the CPU computes with to huge pages: "on", "off"
 *               kv_store         ""       folder that keeps what is computed of texts, for all that begin alike
 *               kv_store_bytes   10 GiB   its largest size; what was not used for longest goes first
 *   both        max_ram          0        most bytes of host memory, weights included; 0: what is free
 *               max_vram         0        most bytes of each GPU; 0: what is free
 *   generation  n_predict        -1       most tokens; -1: until the text ends
 *               n_logprobs       -1       report log probabilities, with the N most likely tokens; -1: none
 *               context_shift    0        1: when the context is full, drop the older half and go on
 *               exact_shift      0        1: what then remains is computed again, instead of moved in the cache, which is
 *                                         faster but keeps in it what it had seen of the dropped text
 *               n_keep           0        tokens of the prompt that a shift keeps; -1: all
 *               special          0        1: show control tokens in the text
 *               seed             -1       the same seed gives the same text; -1: random
 *               temp             0.8      temperature; 0: always the most likely token
 *               top_k 40, top_p 0.95, min_p 0.05, typical_p 1, top_n_sigma -1, xtc_probability 0,
 *               xtc_threshold 0.1, dynatemp_range 0, dynatemp_exponent 1, repeat_last_n 64, repeat_penalty 1,
 *               presence_penalty 0, frequency_penalty 0, dry_multiplier 0, dry_base 1.75,
 *               dry_allowed_length 2, dry_penalty_last_n -1, mirostat 0, mirostat_lr 0.1, mirostat_ent 5,
 *               ignore_eos 0              as the options of `tandem run` with these names
 *               samplers         "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
 *               grammar          ""       the text must be one of this GBNF grammar
 *               json_schema      ""       the text must be JSON of this schema; replaces grammar
 *   chat        chat_template    ""       Jinja, or a name ("chatml", "llama3", ...); "": the model's
 *               think            1        0: tells templates that know of it not to reason
 */
typedef struct tandem_options tandem_options;

/* NULL if there is no memory. */
TANDEM_API tandem_options* tandem_options_new(void);
TANDEM_API void tandem_options_free(tandem_options* options);
/* Each refuses an unknown name, a setting of another kind, and a value that cannot be. A real setting takes
 * an integer too. Some values are only checked when they are used: load, session, completion. */
TANDEM_API tandem_status tandem_options_set_int(tandem_options* options, const char* name, int64_t value);
TANDEM_API tandem_status tandem_options_set_real(tandem_options* options, const char* name, double value);
TANDEM_API tandem_status tandem_options_set_text(tandem_options* options, const char* name,
                                                 const char* value);
/* Ends a text after `text`, which stays in it; several may be added. NULL removes them all. */
TANDEM_API tandem_status tandem_options_add_stop(tandem_options* options, const char* text);
/* Adds `bias` to the logit of a token; -INFINITY bans it. */
TANDEM_API tandem_status tandem_options_add_bias(tandem_options* options, int32_t id, float bias);

/* ---- Models ---- */

typedef struct tandem_model tandem_model;

typedef struct tandem_model_info {
  const char* path;
  const char* name;         /* of the model, as its maker wrote it; may be "" */
  const char* description;  /* architecture, size and type: "llama 8.0B Q4_K" */
  const char* architecture; /* "llama" */
  int64_t n_params;
  int64_t n_weight_bytes;
  int64_t n_ctx_train; /* tokens of context that it was trained with */
  int32_t n_vocab;     /* token ids are 0 .. n_vocab - 1 */
  int32_t n_layer;
  int32_t bos, eos; /* -1: none */
} tandem_model_info;

/* Loads a GGUF file; of a split one, the first part. *model is NULL if it fails. */
TANDEM_API tandem_status tandem_model_load(const char* path, const tandem_options* options,
                                           tandem_model** model);
TANDEM_API void tandem_model_free(tandem_model* model);
/* Lives as long as the model. NULL for NULL. */
TANDEM_API const tandem_model_info* tandem_model_get_info(const tandem_model* model);

enum {
  TANDEM_ADD_SPECIAL = 1,  /* tokenize: add the tokens that the model wants at the beginning and the end */
  TANDEM_PARSE_SPECIAL = 2 /* tokenize: "<|im_end|>" in the text becomes that token. detokenize: show it */
};

/* Writes the tokens of text[n_bytes], which may be any bytes, to ids[capacity] and their number to *n_ids,
 * also if the buffer is too small (TANDEM_ERROR_TOO_SMALL: it is filled as far as it goes). ids may be NULL,
 * to ask for the number: that is TANDEM_OK. `flags`: TANDEM_ADD_SPECIAL | TANDEM_PARSE_SPECIAL. */
TANDEM_API tandem_status tandem_tokenize(const tandem_model* model, const char* text, size_t n_bytes,
                                         int flags, int32_t* ids, size_t capacity, size_t* n_ids);
/* The bytes of tokens, in the same way; no NUL is added. Single tokens may be half a character. */
TANDEM_API tandem_status tandem_detokenize(const tandem_model* model, const int32_t* ids, size_t n_ids,
                                           int flags, char* bytes, size_t capacity, size_t* n_bytes);
/* 1 if the token ends a text (end of sequence, of turn, ...), else 0. */
TANDEM_API int tandem_token_ends_text(const tandem_model* model, int32_t id);

typedef struct tandem_message {
  const char* role; /* "system", "user", "assistant", ... */
  const char* content;
} tandem_message;

/* The tokens of a conversation in the model's chat format, up to where the next answer begins, in the same
 * way. Text of messages never becomes a control token. Reads the setting chat_template. */
TANDEM_API tandem_status tandem_tokenize_chat(const tandem_model* model, const tandem_options* options,
                                              const tandem_message* messages, size_t n_messages, int32_t* ids,
                                              size_t capacity, size_t* n_ids);

/* ---- Sessions ----
 *
 * A session is a text with its KV cache. It has threads, and memory on the devices, of its own. */
typedef struct tandem_session tandem_session;

/* *session is NULL if it fails. */
TANDEM_API tandem_status tandem_session_new(tandem_model* model, const tandem_options* options,
                                            tandem_session** session);
TANDEM_API void tandem_session_free(tandem_session* session);
/* Tokens that fit, and tokens that are there; 0 for NULL. */
TANDEM_API int64_t tandem_session_n_ctx(const tandem_session* session);
TANDEM_API int64_t tandem_session_n_past(const tandem_session* session);
/* Stops the call that is running on the session, after the token or the part of the prompt in work; between
 * begin and the end of its text, stops that text. Else it has no effect. From any thread or signal
 * handler. */
TANDEM_API void tandem_session_interrupt(tandem_session* session);

typedef enum tandem_stop {
  TANDEM_STOP_NONE = 0,         /* the text goes on */
  TANDEM_STOP_END = 1,          /* the model ended the text, or the grammar did */
  TANDEM_STOP_LIMIT = 2,        /* n_predict */
  TANDEM_STOP_CONTEXT_FULL = 3, /* n_ctx */
  TANDEM_STOP_TEXT = 4,         /* tandem_options_add_stop() */
  TANDEM_STOP_INTERRUPTED = 5   /* the callback returned nonzero, or tandem_session_interrupt() */
} tandem_stop;

typedef enum tandem_part { TANDEM_PART_TEXT = 0, TANDEM_PART_REASONING = 1 } tandem_part;

/* A token, or one that was likely in its place. This struct does not grow. */
typedef struct tandem_token {
  int32_t id;
  float logprob;    /* log softmax of the logits as the model computed them; NAN without n_logprobs */
  const char* text; /* its bytes: half a character, perhaps */
  size_t n_bytes;
  const struct tandem_token* top; /* the most likely tokens, the most likely first */
  size_t n_top;
} tandem_token;

/* What a step adds to the text. */
typedef struct tandem_piece {
  const char* text; /* whole characters; may be "" */
  size_t n_bytes;
  tandem_part part;           /* of a chat's answer; else TANDEM_PART_TEXT */
  tandem_stop stop;           /* TANDEM_STOP_NONE until the last piece */
  const tandem_token* tokens; /* chosen since the piece before; the one that ends the text is among them */
  size_t n_tokens;
} tandem_piece;

/* Gets the pieces of a text as they come; `piece` is valid during the call. Returns 0 to go on, anything else
 * to stop; it is not called again then. It must not return by an exception or longjmp, and must not use the
 * session except to interrupt it. */
typedef int (*tandem_callback)(const tandem_piece* piece, void* user_data);

/* How the latest text of a session came about. */
typedef struct tandem_result {
  tandem_stop stop;
  const char* text; /* all of it, without the prompt */
  size_t n_bytes;
  const char* reasoning; /* a chat's, else "" */
  size_t n_reasoning_bytes;
  int64_t n_prompt;    /* tokens of the prompt that were computed */
  int64_t n_reused;    /* tokens of the prompt that the session held already, or loaded */
  int64_t n_generated; /* tokens chosen */
  int64_t n_shifts;    /* times that a full context lost its older half */
  double prompt_s, generate_s;
  uint64_t seed;                      /* also if it was random */
  int64_t n_guessed, n_guessed_right; /* with n_draft */
  int64_t n_loaded;                   /* of n_reused: found in kv_store */
} tandem_result;

/* Completes a prompt. The session then holds the prompt and the text; a beginning that the new prompt has in
 * common with what the session held is not computed again. `callback` may be NULL. A text that is stopped is
 * not an error. */
TANDEM_API tandem_status tandem_session_complete(tandem_session* session, const tandem_options* options,
                                                 const char* prompt, tandem_callback callback,
                                                 void* user_data);
/* The same at the caller's pace: begin with the tokens of a prompt (at least one), then next() until
 * (*piece)->stop says that the text is complete. Each piece has one token, a piece that reports an
 * interruption none. Any other use of the session ends the text. */
TANDEM_API tandem_status tandem_session_begin(tandem_session* session, const tandem_options* options,
                                              const int32_t* ids, size_t n_ids);
TANDEM_API tandem_status tandem_session_next(tandem_session* session, const tandem_piece** piece);
/* Of the latest text, complete or not. The struct lives as long as the session, its texts until the next
 * call. NULL for NULL. */
TANDEM_API const tandem_result* tandem_session_get_result(const tandem_session* session);

/* For programs that choose tokens themselves. Appends tokens (at least one); their logits [n_vocab] are those
 * of the token that would follow, valid until the next call on the session. `logits` may be NULL. If it is
 * interrupted (TANDEM_INTERRUPTED), the session holds the first part of the tokens. */
TANDEM_API tandem_status tandem_session_append(tandem_session* session, const int32_t* ids, size_t n_ids,
                                               const float** logits);
/* Removes the tokens from position n_tokens on; 0 makes it empty. */
TANDEM_API tandem_status tandem_session_truncate(tandem_session* session, int64_t n_tokens);

/* ---- Chats ----
 *
 * A chat is a conversation that uses a session: it keeps the messages, renders them with the chat template,
 * computes only what is new, and separates reasoning from the answer. */
typedef struct tandem_chat tandem_chat;

/* *chat is NULL if it fails; TANDEM_ERROR_USAGE if neither the model nor the options have a template. */
TANDEM_API tandem_status tandem_chat_new(tandem_session* session, const tandem_options* options,
                                         tandem_chat** chat);
TANDEM_API void tandem_chat_free(tandem_chat* chat);
/* The system prompt; NULL or "": none. */
TANDEM_API tandem_status tandem_chat_set_system(tandem_chat* chat, const char* text);
/* Adds a message of the user and the answer. If it fails, or is stopped before the answer begins, the message
 * is taken back. The answer is in tandem_session_get_result() of the session. */
TANDEM_API tandem_status tandem_chat_ask(tandem_chat* chat, const tandem_options* options,
                                         const char* message, tandem_callback callback, void* user_data);
/* Takes back the last message of the user and its answer; TANDEM_ERROR_USAGE if there is none. */
TANDEM_API tandem_status tandem_chat_undo(tandem_chat* chat);
/* Forgets all but the system prompt. */
TANDEM_API tandem_status tandem_chat_clear(tandem_chat* chat);
/* Writes the conversation with its cache to a file, which it replaces; continues one, also of `tandem
 * chat`. */
TANDEM_API tandem_status tandem_chat_save(const tandem_chat* chat, const char* path);
TANDEM_API tandem_status tandem_chat_load(tandem_chat* chat, const char* path);

#ifdef __cplusplus
}
#endif

#endif
