// The option groups that several commands share, with the names, short forms and defaults that people type
// from memory. A command calls add_*_options with structs that outlive the parse (it captures them in its
// callback) and finds them filled. Values that make no sense are refused while parsing, as Error(usage).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/options.h"
#include "sample/params.h"
#include "tools/hub/model_path.h"

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace tandem::tools {

// ---- Logging ----

struct LogOptions {
  bool verbose = false;  // -v
  bool disable = false;  // --log-disable
  std::string file;      // --log-file
};
void add_log_options(CLI::App& app, LogOptions& options);
// Sets the log level (info by default: statistics are shown) and file. Throws Error(io).
void apply_log_options(const LogOptions& options);

// ---- The engine ----

// The options of a command that runs a model: the engine's, and the program's own.
struct CommandOptions {
  EngineOptions engine;
  HubOptions hub;                              // where engine.model.path comes from; see load_model
  bool explain = false;                        // --explain
  Toggle flash_attention = Toggle::automatic;  // -fa, accepted; see note_no_effect
  LogOptions log;
};

void add_model_options(CLI::App& app, CommandOptions& options);
void add_context_options(CLI::App& app, ContextOptions& options, Toggle& flash_attention);
void add_sparse_option(CLI::App& app, ContextOptions& options, const char* group);
void add_spill_options(CLI::App& app, ContextOptions& options, const char* group);
void add_rope_options(CLI::App& app, RopeOverrides& options);
void add_thread_options(CLI::App& app, DeviceOptions& options);
void add_numa_option(CLI::App& app, DeviceOptions& options, const char* group);
// Reports options without effect in a verbose message, and warns of more threads than processors.
void note_no_effect(const CommandOptions& options);
// Warns of more threads than processors.
void warn_of_threads(int32_t n_threads);

// ---- Sampling ----

void add_sampling_options(CLI::App& app, SamplerParams& params);
// --grammar and its kin; add_sampling_options adds them too.
void add_grammar_options(CLI::App& app, SamplerParams& params);

// ---- Input and output ----

struct TextOptions {
  std::string prompt;                        // -p
  std::string file;                          // -f, "-" is stdin
  bool escape = true;                        // -e / --no-escape
  int32_t n_predict = -1;                    // -n, -1 = no limit, -2 = until the context is full
  int32_t keep = 0;                          // --keep, -1 = the whole prompt
  std::vector<std::string> reverse_prompts;  // -r, repeatable: stop after one of these
  bool display_prompt = true;                // --display-prompt / --no-display-prompt
  Toggle color = Toggle::automatic;          // --color, bare: on
  bool simple_io = false;                    // --simple-io
  bool json = false;                         // --json
  int32_t n_logprobs = -1;                   // --logprobs, -1 = none
};
void add_text_options(CLI::App& app, TextOptions& options);
// --logprobs; add_text_options adds it too.
void add_logprobs_option(CLI::App& app, TextOptions& options, const char* group);
// Throws Error(usage) for --logprobs without --json.
void check_logprobs(const TextOptions& options);
// Whether to color text on stdout: as the user says, or where it can show colors.
bool color_on(const TextOptions& options);
// Turns escapes in -p, -r and the sequence breakers into the characters they stand for, unless --no-escape. A
// file's text is never changed. Call once, after the parse.
void apply_escapes(TextOptions& options, SamplerParams& params);
// The text of -p, of -f (without its last newline), or both, with an empty line between them, as in
// `-p "Summarize:" -f notes.txt`. Throws Error(io).
std::string read_prompt(const TextOptions& options);

// ---- Values ----

// \n \t \r \\ \" \' \a \b \f \v \0 and \xNN become characters; any other backslash stays as it is.
std::string process_escapes(std::string_view text);
// "15043+1", "15043-0.5", "2-inf". Throws Error(usage).
LogitBias parse_logit_bias(const std::string& text);
// "a=int:1,b=str:x\,y". Types: int float bool str. Throws Error(usage).
std::vector<MetadataOverride> parse_metadata_overrides(const std::string& text);
// One of kCacheDTypes by name, in any case. Throws Error(usage). `option` names the flag in the message.
DType parse_cache_type(const std::string& option, const std::string& text);

// ---- Parsing ----

// The app to add commands to: our help pages; the last of repeated options wins.
std::unique_ptr<CLI::App> make_app(const std::string& description, const std::string& name);

// --config and --no-config: an app with these reads the configuration file, and takes them after a command too.
void add_config_options(CLI::App& app);

// Parses what follows the program's name and runs the chosen command. Understands multi-letter short forms
// (-ub 512, -ctk=q8_0) and positional arguments (see positional.h). An option of the command that is not given is
// taken from TANDEM_ARG_<LONG_NAME> (--ctx-size: TANDEM_ARG_CTX_SIZE) if that is set and not empty, else from
// LLAMA_ARG_<LONG_NAME>, else from the configuration file (see config.h); flags accept 1/0, true/false, on/off.
// Throws Error(usage), Error(bad_file) for the configuration file, CLI::Success when help or the version was asked
// for, and what the command throws.
void parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

// The name of the short form of a long option ("ub" for "ubatch-size"), "" if it has none of several letters.
std::string_view multi_letter_short_form(std::string_view long_name);
// The long name for a short form ("ubatch-size" for "ub"), "" if there is none.
std::string_view long_name_of(std::string_view short_form);

std::shared_ptr<CLI::FormatterBase> make_help_formatter();

}  // namespace tandem::tools
