// The "Constrained output" group. Grammars are compiled while parsing the options, so that an error is
// reported before loading a model.

#include "sample/grammar/grammar.h"
#include "base/error.h"
#include "sample/json_schema/json_schema.h"
#include "tools/options/command_line.h"
#include "tools/options/options.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

void set_grammar(SamplerParams& params, std::string_view gbnf, const GrammarSource& source) {
  if (params.grammar) {
    throw_error(ErrorCode::usage,
                "use only one of --grammar, --grammar-file, --json-schema and --json-schema-file");
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
    choice(app, names, type, help, "", std::move(set)).group("Constrained output");
  };
  add("--grammar", "GBNF", "constrain the output to this grammar", [&p](const std::string& text) {
    if (!text.empty()) set_grammar(p, text, {"--grammar", ErrorCode::usage});
  });
  add("--grammar-file", "FILE", "read the grammar from this file", [&p](const std::string& path) {
    set_grammar(p, read_text_file(path, GrammarLimits::kTextBytes), file_source(path));
  });
  add("-j,--json-schema", "SCHEMA", "constrain the output to JSON that matches this schema, '{}': any JSON",
      [&p](const std::string& text) {
        set_schema(p, text, {"--json-schema", ErrorCode::usage});
      });
  add("--json-schema-file", "FILE", "read the schema from this file", [&p](const std::string& path) {
    set_schema(p, read_text_file(path, GrammarLimits::kTextBytes), file_source(path));
  });
}

}  // namespace tandem::tools
