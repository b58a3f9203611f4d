// tandem tokenize: shows the tokens of a text. Works on files that hold only a vocabulary, too.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "base/error.h"
#include "gguf/file.h"
#include "text/vocab.h"
#include "text/vocab_gguf.h"
#include "tools/command.h"

namespace tandem::tools {
namespace {

struct Options {
  std::string model;
  std::string prompt;
  std::string file;
  bool from_stdin = false;
  bool ids_only = false;
  bool no_bos = false;
  bool no_parse_special = false;
  bool show_count = false;
};

std::string read_all(std::istream& in, const std::string& name) {
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) throw_error(ErrorCode::io, "%s: reading failed", name.c_str());
  return text;
}

std::string read_text(const Options& options) {
  if (options.from_stdin) return read_all(std::cin, "standard input");
  if (options.file.empty()) return options.prompt;
  std::ifstream in(options.file, std::ios::binary);
  if (!in || in.peek() == std::ifstream::traits_type::eof()) {
    if (!in.eof()) throw_error(ErrorCode::io, "%s: cannot be read", options.file.c_str());
    return {};
  }
  return read_all(in, options.file);
}

void print_ids(const std::vector<int32_t>& ids) {
  std::string line = "[";
  for (size_t i = 0; i < ids.size(); ++i) line += (i == 0 ? "" : ", ") + std::to_string(ids[i]);
  line += "]\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
}

void print_tokens(const Vocab& vocab, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    const std::string piece = vocab.token_to_piece(id, SpecialText::shown);
    std::printf("%6d -> '", id);
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fputs("'\n", stdout);
  }
}

void tokenize(const Options& options) {
  OpenOptions open;
  open.metadata_only = true;
  const GgufFile file(options.model, open);
  const std::shared_ptr<const Vocab> vocab = load_vocab(file);
  const std::string text = read_text(options);
  const auto ids = vocab->tokenize(
      text, {.add_special = !options.no_bos, .parse_special = !options.no_parse_special});
  if (options.ids_only) print_ids(ids);
  else print_tokens(*vocab, ids);
  if (options.show_count) std::printf("Total number of tokens: %zu\n", ids.size());
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw_error(ErrorCode::io, "standard output: writing failed");
}

}  // namespace

void add_tokenize(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the tokens of a text");
  command->add_option("-m,--model", options->model, "GGUF file; one that holds only a vocabulary will do")
      ->type_name("FILE")
      ->envname("TANDEM_ARG_MODEL")
      ->required();

  CLI::Option_group* text = command->add_option_group("Text", "where the text comes from, one of");
  text->add_option("-p,--prompt", options->prompt, "the text itself, byte for byte")->type_name("TEXT");
  text->add_option("-f,--file", options->file, "a file, byte for byte, with its last newline")->type_name("FILE");
  text->add_flag("--stdin", options->from_stdin, "standard input, to its end");
  text->require_option(1);

  CLI::Option_group* how = command->add_option_group("How");
  how->add_flag("--no-bos", options->no_bos, "add no token at the beginning or end, even if the model wants it");
  how->add_flag("--no-parse-special", options->no_parse_special,
                "take the text of special tokens, such as <|eot_id|>, for plain text");

  CLI::Option_group* output = command->add_option_group("Output");
  output->add_flag("--ids", options->ids_only, "print the ids only, as [1, 2, 3]");
  output->add_flag("--show-count", options->show_count, "print the number of tokens at the end");

  command->footer(
      "Without --ids, one token a line: its id, and the bytes that it stands for.\n"
      "Example: tandem tokenize -m model.gguf -p \"Hello world\" --ids");
  command->callback([options] { tokenize(*options); });
}

}  // namespace tandem::tools
