// The subcommands of the tandem binary. Each add_* function adds a command's options to the app and sets the
// callback that runs it. A callback throws tandem::Error; main() turns that into one line and an exit code.
#pragma once

namespace CLI {
class App;
}

namespace tandem::tools {

// Thrown by a command to exit with this code and no message, such as 1 for "the files differ".
struct ExitCode {
  int code;
};

void add_run(CLI::App& app);
void add_chat(CLI::App& app);
void add_batch(CLI::App& app);
void add_bench(CLI::App& app);
void add_perplexity(CLI::App& app);
void add_inspect(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_template(CLI::App& app);
void add_convert(CLI::App& app);
void add_quantize(CLI::App& app);
void add_imatrix(CLI::App& app);
void add_split(CLI::App& app);
void add_merge(CLI::App& app);
void add_plan(CLI::App& app);
void add_synth(CLI::App& app);
void add_pull(CLI::App& app);
void add_list(CLI::App& app);
void add_rm(CLI::App& app);
void add_kv(CLI::App& app);
void add_help(CLI::App& app);
void add_version(CLI::App& app);
void add_completion(CLI::App& app);

}  // namespace tandem::tools
