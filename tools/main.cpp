// The tandem program: finds the command, runs it, and turns an exception into one line and an exit code.
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/options/options.h"
#include "tools/options/setting_flags.h"
#include "tools/output.h"

namespace tandem::tools {

namespace {

// All commands, in the order of the help page.
// clang-format off
constexpr void (*kCommands[])(CLI::App&) = {
    add_run,
    add_chat,
    add_batch,
    add_bench,
    add_perplexity,
    add_inspect,
    add_tokenize,
    add_template,
    add_convert,
    add_quantize,
    add_imatrix,
    add_split,
    add_merge,
    add_plan,
    add_synth,
    add_pull,
    add_list,
    add_rm,
    add_kv,
    add_help,
    add_version,
    add_completion,
};
// clang-format on

constexpr int exit_code(ErrorCode code) {
  return static_cast<int>(code);
}

// "try 'tandem run --help'". Reads the command's name from the arguments, because parsing may have failed.
std::string help_hint(const CLI::App& app, const std::vector<std::string>& arguments) {
  const auto named = app.get_subcommands(
      [&arguments](const CLI::App* c) { return !arguments.empty() && c->check_name(arguments.front()); });
  return "try 'tandem " + (named.empty() ? "" : named.front()->get_name() + " ") + "--help'";
}

// Reports an error that ends the program. Not log_error: --log-disable must not hide it.
int report(const std::string& message, ErrorCode code) {
  const std::string line = "tandem: error: " + printable(message, message.size());  // a file name may contain a line break
  fprintf(stderr, "%s\n", wrapped_for_stderr(line).c_str());
  return exit_code(code);
}

// After a Ctrl-C: what it means for the output, if the command says so.
int report_interrupt(const std::string& message) {
  if (!message.empty()) fprintf(stderr, "%s\n", wrapped_for_stderr("tandem: " + printable(message, message.size())).c_str());
  return exit_code(ErrorCode::interrupted);
}

int run_program(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    parse_arguments(app, arguments);
    return 0;
  } catch (const CLI::CallForVersion& e) {
    const std::string text = e.what();
    Output out;
    out.write(text.ends_with('\n') ? text : text + "\n");
    out.flush();
    return 0;
  } catch (const CLI::Success&) {  // --help
    Output out;
    out.write(app.help());
    out.flush();
    return 0;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::usage) throw;
    return report(message_of(e) + " (" + help_hint(app, arguments) + ")", e.code());
  }
}

int run_and_report(int argc, char** argv) {
  try {
    const auto app = make_app("run GGUF language models on a CPU, on a GPU, or on both in tandem", "tandem");
    app->set_version_flag("--version", version_text, "print the version, and what the program was built for");
    add_config_options(*app);
    app->require_subcommand(1);
    for (const auto add : kCommands) add(*app);
    if (argc < 2) {
      fputs(app->help().c_str(), stderr);
      return exit_code(ErrorCode::usage);
    }
    return run_program(*app, {argv + 1, argv + argc});
  } catch (const ExitCode& e) {
    return e.code;
  } catch (const ClosedPipe& e) {
    return exit_code(e.code());  // the reader of stdout has gone: exit without a message
  } catch (const Error& e) {
    if (e.code() == ErrorCode::interrupted) return report_interrupt(message_of(e));
    return report(message_of(e), e.code());
  } catch (const std::bad_alloc&) {
    return report("out of memory", ErrorCode::out_of_memory);
  } catch (const std::exception& e) {
    return report(std::string("internal error: ") + e.what(), ErrorCode::bug);
  }
}

// Opens /dev/null on standard descriptors that are closed. Otherwise a file opened later could get number 2,
// and messages would be written into a model. Writing to stdout or stderr still fails; stdin is at its end.
void occupy_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    if (open("/dev/null", O_RDONLY) != descriptor) return;  // open() returns the lowest free descriptor
  }
}

}  // namespace
}  // namespace tandem::tools

int main(int argc, char** argv) {
  tandem::tools::occupy_standard_descriptors();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // exceeding the file size limit becomes a write error
  tandem::set_log_setting_writer(tandem::tools::flag_text);
  return tandem::tools::run_and_report(argc, argv);
}
