// Splits a template into tokens: literal text, and the names, literals and operators inside {% %} and {{ }}.
// Handles comments, raw blocks and white space control (the signs in {%- -%} {%+ +%}; trim_blocks and
// lstrip_blocks are on, as chat templates expect). Throws SyntaxError.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace tandem::jinja {

class SyntaxError : public std::runtime_error {
 public:
  SyntaxError(int line, const std::string& message) : std::runtime_error(message), line_(line) {}
  int line() const { return line_; }

 private:
  int line_;
};

enum class TokenKind { data, block_begin, block_end, print_begin, print_end, name, literal, op, eof };

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // data, name, op
  Value value;       // literal: str, int or float
};

// The last token is eof.
std::vector<Token> tokenize_template(std::string_view source);

}  // namespace tandem::jinja
