#include "jinja/parser.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tandem::jinja {

namespace {

std::string described(const Token& token) {
  switch (token.kind) {
    case TokenKind::data: return "text";
    case TokenKind::block_begin: return "'{%'";
    case TokenKind::block_end: return "'%}'";
    case TokenKind::print_begin: return "'{{'";
    case TokenKind::print_end: return "'}}'";
    case TokenKind::literal: return printable(repr(token.value).bytes(), 40);
    case TokenKind::eof: return "the end of the template";
    default: return "'" + printable(token.text, 40) + "'";
  }
}

}  // namespace

void Parser::unexpected(const std::string& wanted) const {
  const std::string found = "unexpected " + described(current());
  throw SyntaxError(current().line, wanted.empty() ? found : found + ", expected " + wanted);
}

bool Parser::skip_name(std::string_view name) {
  const bool found = at_name(name);
  if (found) take();
  return found;
}

bool Parser::skip_op(std::string_view op) {
  const bool found = at_op(op);
  if (found) take();
  return found;
}

std::string Parser::expect_name() {
  if (current().kind != TokenKind::name) unexpected("a name");
  return take().text;
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) unexpected("'" + std::string(name) + "'");
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected("'" + std::string(op) + "'");
}

void Parser::expect(TokenKind kind) {
  if (current().kind != kind) unexpected(described({kind, 0, "", {}}));
  take();
}

Body Parser::parse() {
  Body body = parse_until({});
  if (current().kind != TokenKind::eof) throw SyntaxError(current().line, "unexpected end of a block");
  return body;
}

Body Parser::parse_until(Ends ends) {
  const DepthGuard guard(*this);
  Body body;
  while (true) {
    const int line = current().line;
    switch (current().kind) {
      case TokenKind::eof: {
        if (ends.size() == 0) return body;
        unexpected("'{% " + std::string(*(ends.end() - 1)) + " %}'");
      }
      case TokenKind::data:
        body.push_back(std::make_unique<Stmt>(Stmt{StmtKind::data, line, take().text}));
        break;
      case TokenKind::print_begin: {
        take();
        auto stmt = std::make_unique<Stmt>(Stmt{StmtKind::print, line});
        stmt->expressions.push_back(parse_tuple(Conditions::allowed));
        expect(TokenKind::print_end);
        body.push_back(std::move(stmt));
        break;
      }
      default: {
        expect(TokenKind::block_begin);
        if (std::any_of(ends.begin(), ends.end(), [this](auto end) { return at_name(end); })) return body;
        body.push_back(parse_statement());
        expect(TokenKind::block_end);
      }
    }
  }
}

Body Parser::parse_body(Ends ends) {
  skip_op(":");
  expect(TokenKind::block_end);
  return parse_until(ends);
}

Body Parser::parse_last_body(std::string_view end) {
  Body body = parse_body({end});
  expect_name(end);
  return body;
}

StmtPtr Parser::parse_statement() {
  const int line = current().line;
  if (current().kind != TokenKind::name) unexpected("the name of a tag");
  const std::string tag = take().text;
  const auto make_stmt = [line](StmtKind kind) { return std::make_unique<Stmt>(Stmt{kind, line}); };
  if (tag == "for") return parse_for(make_stmt(StmtKind::for_loop));
  if (tag == "if") return parse_if(make_stmt(StmtKind::condition));
  if (tag == "set") return parse_set(make_stmt(StmtKind::set));
  if (tag == "macro") return parse_macro(make_stmt(StmtKind::macro));
  if (tag == "call") return parse_call_block(make_stmt(StmtKind::call_block));
  if (tag == "filter") return parse_filter_block(make_stmt(StmtKind::filter_block));
  if (tag == "with") return parse_with(make_stmt(StmtKind::with));
  if (tag == "print") return parse_print(make_stmt(StmtKind::scope));
  if (tag == "generation" || tag == "block" || tag == "autoescape") {
    return parse_scope(make_stmt(StmtKind::scope), tag);
  }
  if (tag == "break" || tag == "continue") {
    if (loop_depth_ == 0) throw SyntaxError(line, "'" + tag + "' outside of a loop");
    return make_stmt(tag == "break" ? StmtKind::break_loop : StmtKind::continue_loop);
  }
  if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") {
    throw SyntaxError(line, "'" + tag + "' reads other templates, which chat templates may not do");
  }
  throw SyntaxError(line, "Encountered unknown tag '" + printable(tag, 40) + "'.");
}

StmtPtr Parser::parse_for(StmtPtr stmt) {
  if (at_name("loop"))
    throw SyntaxError(stmt->line, "Can't assign to special loop variable in for-loop target");
  stmt->targets.push_back(parse_target(false));
  expect_name("in");
  stmt->expressions.push_back(parse_tuple(Conditions::ended));
  stmt->expressions.push_back(skip_name("if") ? parse_expression() : nullptr);
  if (at_name("recursive")) throw SyntaxError(stmt->line, "recursive loops are not supported");
  ++loop_depth_;
  stmt->bodies.push_back(parse_body({"endfor", "else"}));
  --loop_depth_;
  if (take().text == "else") stmt->otherwise = parse_last_body("endfor");
  return stmt;
}

StmtPtr Parser::parse_if(StmtPtr stmt) {
  while (true) {
    stmt->expressions.push_back(parse_tuple(Conditions::ended));
    stmt->bodies.push_back(parse_body({"elif", "else", "endif"}));
    const std::string end = take().text;
    if (end == "else") stmt->otherwise = parse_last_body("endif");
    if (end != "elif") return stmt;
  }
}

StmtPtr Parser::parse_set(StmtPtr stmt) {
  stmt->targets.push_back(parse_target(true));
  if (skip_op("=")) {
    stmt->expressions.push_back(parse_tuple(Conditions::allowed));
    return stmt;
  }
  stmt->kind = StmtKind::set_block;
  ExprPtr filters;
  while (skip_op("|")) filters = parse_filter(std::move(filters));
  stmt->expressions.push_back(std::move(filters));
  stmt->bodies.push_back(parse_last_body("endset"));
  return stmt;
}

std::vector<Parameter> Parser::parse_parameters() {
  std::vector<Parameter> parameters;
  expect_op("(");
  while (!at_op(")")) {
    if (!parameters.empty()) expect_op(",");
    Parameter parameter{expect_name(), nullptr};
    if (skip_op("="))
      parameter.initial = parse_expression();
    else if (!parameters.empty() && parameters.back().initial)
      throw SyntaxError(current().line, "non-default argument follows default argument");
    parameters.push_back(std::move(parameter));
  }
  expect_op(")");
  return parameters;
}

// Parses a body that runs later: break and continue cannot leave a loop outside it, and the special names it
// uses decide its implicit parameters.
void Parser::parse_callable_body(Stmt& stmt, std::string_view end) {
  const int loops_outside = std::exchange(loop_depth_, 0);
  const bool varargs = std::exchange(saw_varargs_, false);
  const bool kwargs = std::exchange(saw_kwargs_, false);
  const bool caller = std::exchange(saw_caller_, false);
  stmt.bodies.push_back(parse_last_body(end));
  stmt.uses_varargs = saw_varargs_;
  stmt.uses_kwargs = saw_kwargs_;
  stmt.uses_caller = saw_caller_;
  saw_varargs_ |= varargs;
  saw_kwargs_ |= kwargs;
  saw_caller_ |= caller;
  loop_depth_ = loops_outside;
}

StmtPtr Parser::parse_macro(StmtPtr stmt) {
  stmt->text = expect_name();
  stmt->parameters = parse_parameters();
  parse_callable_body(*stmt, "endmacro");
  return stmt;
}

StmtPtr Parser::parse_call_block(StmtPtr stmt) {
  if (at_op("(")) stmt->parameters = parse_parameters();
  stmt->expressions.push_back(parse_expression());
  if (stmt->expressions[0]->kind != ExprKind::call) throw SyntaxError(stmt->line, "expected call");
  parse_callable_body(*stmt, "endcall");
  return stmt;
}

StmtPtr Parser::parse_filter_block(StmtPtr stmt) {
  ExprPtr filters = parse_filter(nullptr);
  while (skip_op("|")) filters = parse_filter(std::move(filters));
  stmt->expressions.push_back(std::move(filters));
  stmt->bodies.push_back(parse_last_body("endfilter"));
  return stmt;
}

StmtPtr Parser::parse_with(StmtPtr stmt) {
  while (current().kind != TokenKind::block_end) {
    if (!stmt->targets.empty()) expect_op(",");
    stmt->targets.push_back(parse_single_target(false));
    expect_op("=");
    stmt->expressions.push_back(parse_expression());
  }
  stmt->bodies.push_back(parse_last_body("endwith"));
  return stmt;
}

StmtPtr Parser::parse_scope(StmtPtr stmt, const std::string& tag) {
  if (tag == "block") stmt->text = expect_name();
  if (tag == "block") skip_name("scoped");
  if (tag == "autoescape" && truth(parse_expression()->value)) {
    throw SyntaxError(stmt->line, "automatic escaping is not supported");
  }
  stmt->bodies.push_back(parse_last_body("end" + tag));
  if (tag == "block") skip_name(stmt->text);
  return stmt;
}

// {% print a, b %}: one statement per expression, wrapped in a scope.
StmtPtr Parser::parse_print(StmtPtr stmt) {
  Body body;
  while (current().kind != TokenKind::block_end) {
    if (!body.empty()) expect_op(",");
    body.push_back(std::make_unique<Stmt>(Stmt{StmtKind::print, stmt->line}));
    body.back()->expressions.push_back(parse_expression());
  }
  stmt->bodies.push_back(std::move(body));
  return stmt;
}

Target Parser::parse_single_target(bool with_attribute) {
  Target target;
  if (skip_op("(")) {
    target = parse_target(with_attribute);
    expect_op(")");
    return target;
  }
  const int line = current().line;
  target.name = expect_name();
  static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), target.name) != std::end(kConstants)) {
    throw SyntaxError(line, "can't assign to '" + target.name + "'");
  }
  if (with_attribute && skip_op(".")) target.attribute = expect_name();
  return target;
}

Target Parser::parse_target(bool with_attribute) {
  const DepthGuard guard(*this);
  Target first = parse_single_target(with_attribute);
  if (!at_op(",")) return first;
  Target tuple;
  tuple.is_tuple = true;
  tuple.parts.push_back(std::move(first));
  while (skip_op(",")) {
    if (at_name("in") || at_op("=") || at_op(")") || current().kind == TokenKind::block_end) break;
    tuple.parts.push_back(parse_single_target(with_attribute));
  }
  return tuple;
}

}  // namespace tandem::jinja
