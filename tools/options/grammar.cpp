// The "Constrained output" group: four ways to say what the output must be a text of. Compiled while parsing,
// so that a mistake is told before a model is loaded.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "sample/grammar/grammar.h"
#include "sample/json_schema/json_schema.h"
#include "tools/options/options.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

void set_grammar(SamplerParams& params, std::string_view gbnf, const GrammarSource& source) {
  if (params.grammar) {
    throw_error(ErrorCode::usage,
                "there can be only one of --grammar, --grammar-file, --json-schema and --json-schema-file");
  }
  params.grammar = Grammar::parse(gbnf, source);
}

void set_schema(SamplerParams& params, std::string_view schema, const GrammarSource& source) {
  set_grammar(params, json_schema_to_gbnf(schema, source), source);
}

GrammarSource file_source(const std::string& path) {
  return {printable(path, 4096), ErrorCode::bad_file};
}

}  // namespace

void add_grammar_options(CLI::App& app, SamplerParams& p) {
  const auto add = [&app](const char* names, const char* type, const char* help,
                          std::function<void(const std::string&)> set) {
    choice(app, names, type, help, "", std::move(set))->group("Constrained output");
  };
  add("--grammar", "GBNF", "the output is a text of this grammar", [&p](const std::string& text) {
    if (!text.empty()) set_grammar(p, text, {"--grammar", ErrorCode::usage});
  });
  add("--grammar-file", "FILE", "the same, the grammar is in a file", [&p](const std::string& path) {
    set_grammar(p, read_text_file(path, GrammarLimits::kTextBytes), file_source(path));
  });
  add("-j,--json-schema", "SCHEMA", "the output is JSON that this JSON schema accepts, '{}': any JSON",
      [&p](const std::string& text) {
        set_schema(p, text, {"--json-schema", ErrorCode::usage});
      });
  add("--json-schema-file", "FILE", "the same, the schema is in a file", [&p](const std::string& path) {
    set_schema(p, read_text_file(path, GrammarLimits::kTextBytes), file_source(path));
  });
}

}  // namespace tandem::tools
