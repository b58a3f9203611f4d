// Parses tokens into syntax trees, by recursive descent, with the precedences and quirks of Jinja2:
// `not`, then comparisons, then + and -, then ~, then * / // %, then **, then unary minus; filters and tests
// bind tighter than any operator. Statements are in parser.cpp, expressions in parse_expr.cpp. Throws
// SyntaxError.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace tandem::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Body parse();

 private:
  class DepthGuard;  // limits the parser's own recursion

  // --- Tokens ---
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool at_name(std::string_view name) const { return is(current(), TokenKind::name, name); }
  bool at_op(std::string_view op) const { return is(current(), TokenKind::op, op); }
  static bool is(const Token& token, TokenKind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }
  bool skip_name(std::string_view name);
  bool skip_op(std::string_view op);
  std::string expect_name();
  void expect_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect(TokenKind kind);
  [[noreturn]] void unexpected(const std::string& wanted = "") const;

  // --- Statements ---
  using Ends = std::initializer_list<std::string_view>;
  Body parse_until(Ends ends);  // stops at one of `ends`
  Body parse_body(Ends ends);   // the same, after the end of the opening tag
  Body parse_last_body(std::string_view end);
  StmtPtr parse_statement();
  StmtPtr parse_for(StmtPtr stmt);
  StmtPtr parse_if(StmtPtr stmt);
  StmtPtr parse_set(StmtPtr stmt);
  StmtPtr parse_macro(StmtPtr stmt);
  StmtPtr parse_call_block(StmtPtr stmt);
  StmtPtr parse_filter_block(StmtPtr stmt);
  StmtPtr parse_with(StmtPtr stmt);
  StmtPtr parse_scope(StmtPtr stmt, const std::string& tag);
  StmtPtr parse_print(StmtPtr stmt);
  std::vector<Parameter> parse_parameters();
  void parse_callable_body(Stmt& stmt, std::string_view end);
  Target parse_target(bool with_attribute);
  Target parse_single_target(bool with_attribute);

  // --- Expressions ---
  enum class Conditions { allowed, ended };  // whether `a if b else c` is an expression here
  ExprPtr parse_expression();
  ExprPtr parse_tuple(Conditions conditions);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary();
  ExprPtr parse_signed();  // without filters
  ExprPtr parse_primary();
  ExprPtr parse_parentheses();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filters_and_tests(ExprPtr expr);
  ExprPtr parse_attribute(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  ExprPtr parse_subscript_part();
  ExprPtr parse_call(ExprPtr expr);
  ExprPtr parse_filter(ExprPtr expr);
  ExprPtr parse_test(ExprPtr expr);
  Arguments parse_arguments();
  ExprPtr make(ExprKind kind, int line) const;
  // Adds a child and updates the depth.
  void add(Expr& parent, ExprPtr child) const;
  void set_arguments(Expr& expr, Arguments arguments) const;
  void check_depth(Expr& parent, const Expr* child) const;
  ExprPtr binary(ExprKind kind, Operator op, ExprPtr left, ExprPtr right) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;
  bool saw_varargs_ = false, saw_kwargs_ = false, saw_caller_ = false;  // in the current macro
};

class Parser::DepthGuard {
 public:
  explicit DepthGuard(Parser& parser) : parser_(parser) {
    if (++parser_.depth_ > kMaxDepth) {
      --parser_.depth_;
      throw SyntaxError(parser_.current().line, "nested too deeply");
    }
  }
  DepthGuard(const DepthGuard&) = delete;
  ~DepthGuard() { --parser_.depth_; }

 private:
  Parser& parser_;
};

}  // namespace tandem::jinja
