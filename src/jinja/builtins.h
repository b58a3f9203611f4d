// The functions, filters, tests and methods available to templates: tables by name, with the parameters of
// Python and Jinja2.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace tandem::jinja {

// The arguments of a builtin, in the order of its parameters.
struct Call {
  Interp& in;
  std::string_view name;
  std::vector<Value> values;  // Missing where not given
  Args rest;                  // collected by "*"

  const Value& operator[](size_t i) const { return values[i]; }
  bool given(size_t i) const { return !values[i].is_missing() && !values[i].is_none(); }
  bool flag(size_t i) const { return !values[i].is_missing() && truth(values[i]); }
  // Fail for another type. The *_or forms return the default for an argument that is not given or None.
  const Text& text(size_t i) const;
  Text text_or(size_t i, const char* otherwise) const;
  int64_t integer(size_t i) const;
  int64_t integer_or(size_t i, int64_t otherwise) const;
};

// `parameters`: names separated by spaces; "name?" is optional; "*" at the end accepts any others.
struct Builtin {
  std::string_view name;
  std::string_view parameters;
  Value (*run)(Call& call);
};

using Builtins = std::span<const Builtin>;

Builtins text_filters();
Builtins number_filters();
Builtins list_filters();
Builtins mapping_filters();  // apply other filters or tests: map, select, ...
Builtins tests();
Builtins string_methods();
Builtins string_tests();  // isdigit, ...
Builtins list_methods();
Builtins dict_methods();
Builtins global_functions();
Builtins loop_methods();
Builtins cycler_methods();

const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);
const Builtin* find_method(const Value& self, std::string_view name);
const Builtin* find_in(Builtins builtins, std::string_view name);
// Returns whether `name` is a method that would change a list or dictionary, which templates may not do.
bool is_mutating(const Value& self, std::string_view name);

Value run_builtin(const Builtin& builtin, Interp& in, Args& args);

// --- Shared ---
Text json_text(const Value& value, const Value& indent, const Value& separators, bool ascii, bool sort_keys);
Text percent_format(const Text& pattern, const Args& args);
Text brace_format(Interp& in, const Text& pattern, const Args& args);
Value replaced(const Text& text, const Text& from, const Text& to, int64_t n_max);
Text stripped(const Text& text, const Value& characters, bool left, bool right);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
// Pads the text to `width` characters. Fails for a width past the limits of a text.
enum class Side { left, center, right };
Text justified(const Text& text, int64_t width, Side side, const Text& fill);

}  // namespace tandem::jinja
