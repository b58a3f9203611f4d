// tandem tokenize: shows the tokens of a text. Also works on files that have only a vocabulary.
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/text_input.h"
#include "gguf/file.h"
#include "text/vocab.h"
#include "text/vocab_gguf.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/hub/model_path.h"
#include "tools/options/command_line.h"
#include "tools/output.h"

namespace tandem::tools {
namespace {

struct TokenizeCommand {
  std::string model;
  HubOptions hub;
  std::optional<std::string> prompt, file;
  bool from_stdin = false;
  bool ids_only = false;
  bool no_bos = false;
  bool no_parse_special = false;
  bool show_count = false;
  bool sandbox = true;
};

std::string text_of(const TokenizeCommand& options) {
  if (options.prompt) return *options.prompt;
  return read_text(options.file.value_or("-"));
}

[[noreturn]] void refuse_texts() {
  throw_error(ErrorCode::usage, "needed exactly one text: -p TEXT, -f FILE or --stdin");
}

void print_ids(const std::vector<int32_t>& ids, Output& out) {
  std::string line = "[";
  for (size_t i = 0; i < ids.size(); ++i) line += (i == 0 ? "" : ", ") + std::to_string(ids[i]);
  out.write(line + "]\n");
}

void print_tokens(const Vocab& vocab, const std::vector<int32_t>& ids, Output& out) {
  for (const int32_t id : ids) {
    out.write_text(format("{:6} -> '", id) + vocab.token_to_piece(id, SpecialText::shown) + "'\n");
  }
}

void tokenize(const TokenizeCommand& options) {
  const int n_texts = options.from_stdin + options.prompt.has_value() + options.file.has_value();
  const bool perhaps_from_pipe = n_texts == 0 && isatty(STDIN_FILENO) == 0;
  if (n_texts != 1 && !perhaps_from_pipe) refuse_texts();
  const ModelHeader model = model_header(options.model, options.hub);
  Confinement confinement(options.sandbox);
  confinement.reads_header(model).reads(options.file.value_or("")).begin();
  const GgufFile file(model.path, {.metadata_only = true});
  const std::shared_ptr<const Vocab> vocab = load_vocab(file);
  const std::string text = text_of(options);
  if (perhaps_from_pipe && text.empty()) refuse_texts();  // most likely forgotten, in a script
  const auto ids = vocab->tokenize(
      text, {.add_special = !options.no_bos, .parse_special = !options.no_parse_special});
  Output out;
  if (options.ids_only)
    print_ids(ids, out);
  else
    print_tokens(*vocab, ids, out);
  if (options.show_count) out.write(format("Total number of tokens: {}\n", ids.size()));
  out.flush();
}

}  // namespace

void add_tokenize(CLI::App& app) {
  const auto options = std::make_shared<TokenizeCommand>();
  CLI::App& command = add_command(app, "tokenize", "show the tokens of a text");
  text(command, "-m,--model", options->model, "FILE", "GGUF file; it may have only a vocabulary");
  add_hub_options(command, options->hub, "Options");
  add_sandbox_option(command, options->sandbox);

  text(command, "-p,--prompt", options->prompt, "TEXT", "tokenize this text as it is")
      .group("Text (one of these)");
  text(command, "-f,--file", options->file, "FILE",
       "tokenize this file as it is, including the last newline; at most 1 GiB, from a pipe or a device 64 "
       "MiB")
      .group("Text (one of these)");
  flag(command, "--stdin", options->from_stdin, "tokenize standard input (default: if it is not a terminal)")
      .group("Text (one of these)");

  flag(command, "--no-bos", options->no_bos, "add no BOS or EOS token, even if the model uses one")
      .group("Tokens");
  flag(command, "--no-parse-special", options->no_parse_special,
       "treat special tokens in the text, such as <|eot_id|>, as plain text")
      .group("Tokens");

  flag(command, "--ids", options->ids_only,
       "print only the ids, as [1, 2, 3] (default: one line per token: id -> 'bytes')")
      .group("Output");
  flag(command, "--show-count", options->show_count, "print the number of tokens at the end").group("Output");

  set_footer(command, "Example: tandem tokenize -m model.gguf -p \"Hello world\" --ids");
  set_callback(command, [options] {
    set_log_level(LogLevel::info);
    tokenize(*options);
  });
}

}  // namespace tandem::tools
