#include <algorithm>
#include <optional>

#include "jinja/parser.h"

namespace tandem::jinja {

ExprPtr Parser::make(ExprKind kind, int line) const {
  return std::make_unique<Expr>(Expr{kind, line});
}

void Parser::check_depth(Expr& parent, const Expr* child) const {
  if (!child) return;
  parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kMaxDepth) throw SyntaxError(parent.line, "an expression has too many terms");
}

void Parser::add(Expr& parent, ExprPtr child) const {
  check_depth(parent, child.get());
  parent.items.push_back(std::move(child));
}

void Parser::set_arguments(Expr& expr, Arguments arguments) const {
  for (const ExprPtr& argument : arguments.positional) check_depth(expr, argument.get());
  for (const auto& argument : arguments.keyword) check_depth(expr, argument.second.get());
  check_depth(expr, arguments.more_positional.get());
  check_depth(expr, arguments.more_keyword.get());
  expr.arguments = std::move(arguments);
}

ExprPtr Parser::binary(ExprKind kind, Operator op, ExprPtr left, ExprPtr right) const {
  ExprPtr expr = make(kind, left->line);
  expr->operators.push_back(op);
  add(*expr, std::move(left));
  add(*expr, std::move(right));
  return expr;
}

ExprPtr Parser::parse_expression() {
  const DepthGuard guard(*this);
  ExprPtr expr = parse_or();
  while (at_name("if")) {
    ExprPtr condition = make(ExprKind::condition, take().line);
    add(*condition, std::move(expr));
    add(*condition, parse_or());
    add(*condition, skip_name("else") ? parse_expression() : nullptr);
    expr = std::move(condition);
  }
  return expr;
}

// One expression, or a tuple: several separated by commas.
ExprPtr Parser::parse_tuple(Conditions conditions) {
  const DepthGuard guard(*this);
  const auto parse_one = [&] { return conditions == Conditions::allowed ? parse_expression() : parse_or(); };
  const int line = current().line;
  ExprPtr first = parse_one();
  if (!at_op(",")) return first;
  ExprPtr tuple = make(ExprKind::tuple, line);
  add(*tuple, std::move(first));
  while (skip_op(",")) {
    const TokenKind kind = current().kind;
    if (kind == TokenKind::print_end || kind == TokenKind::block_end || at_op(")") || at_name("recursive"))
      break;
    add(*tuple, parse_one());
  }
  return tuple;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (skip_name("or")) left = binary(ExprKind::logic_or, {}, std::move(left), parse_and());
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (skip_name("and")) left = binary(ExprKind::logic_and, {}, std::move(left), parse_not());
  return left;
}

ExprPtr Parser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const DepthGuard guard(*this);
  ExprPtr expr = make(ExprKind::logic_not, take().line);
  add(*expr, parse_not());
  return expr;
}

namespace {

std::optional<Operator> comparison(const Token& token) {
  static constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"==", Operator::eq}, {"!=", Operator::ne}, {"<", Operator::lt},
      {"<=", Operator::le}, {">", Operator::gt},  {">=", Operator::ge}};
  if (token.kind == TokenKind::name && token.text == "in") return Operator::in;
  if (token.kind != TokenKind::op) return std::nullopt;
  for (const auto& [text, op] : kOperators) {
    if (token.text == text) return op;
  }
  return std::nullopt;
}

}  // namespace

ExprPtr Parser::parse_compare() {
  ExprPtr first = parse_sum();
  ExprPtr expr;
  while (true) {
    std::optional<Operator> op = comparison(current());
    if (!op && at_name("not") && is(ahead(), TokenKind::name, "in")) {
      take();
      op = Operator::not_in;
    }
    if (!op) return expr ? std::move(expr) : std::move(first);
    take();
    if (!expr) {
      expr = make(ExprKind::compare, first->line);
      add(*expr, std::move(first));
    }
    expr->operators.push_back(*op);
    add(*expr, parse_sum());
  }
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_op("+") || at_op("-")) {
    const Operator op = take().text == "+" ? Operator::add : Operator::sub;
    left = binary(ExprKind::binary, op, std::move(left), parse_concat());
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  ExprPtr first = parse_product();
  if (!at_op("~")) return first;
  ExprPtr expr = make(ExprKind::concat, first->line);
  add(*expr, std::move(first));
  while (skip_op("~")) add(*expr, parse_product());
  return expr;
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const std::string text = take().text;
    const Operator op = text == "*"    ? Operator::mul
                        : text == "/"  ? Operator::div
                        : text == "//" ? Operator::floor_div
                                       : Operator::mod;
    left = binary(ExprKind::binary, op, std::move(left), parse_power());
  }
  return left;
}

ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary();
  while (skip_op("**")) left = binary(ExprKind::binary, Operator::pow, std::move(left), parse_unary());
  return left;
}

ExprPtr Parser::parse_unary() {
  return parse_filters_and_tests(parse_signed());
}

ExprPtr Parser::parse_signed() {
  if (!at_op("-") && !at_op("+")) return parse_postfix(parse_primary());
  const DepthGuard guard(*this);
  const Token sign = take();
  ExprPtr expr = make(sign.text == "-" ? ExprKind::negate : ExprKind::positive, sign.line);
  add(*expr, parse_signed());
  return parse_postfix(std::move(expr));
}

ExprPtr Parser::parse_primary() {
  const int line = current().line;
  if (at_op("(")) return parse_parentheses();
  if (at_op("[")) return parse_list();
  if (at_op("{")) return parse_dict();
  ExprPtr expr = make(ExprKind::constant, line);
  if (current().kind == TokenKind::literal) {
    expr->value = take().value;
    if (!expr->value.is_string()) return expr;
    Text text = expr->value.text();
    while (current().kind == TokenKind::literal && current().value.is_string())
      text.append(take().value.text());
    expr->value = Value(std::move(text));
    return expr;
  }
  if (current().kind != TokenKind::name) unexpected();
  std::string name = take().text;
  if (name == "true" || name == "True") {
    expr->value = Value(true);
  } else if (name == "false" || name == "False") {
    expr->value = Value(false);
  } else if (name == "none" || name == "None") {
    expr->value = Value(None{});
  } else {
    saw_varargs_ |= name == "varargs";
    saw_kwargs_ |= name == "kwargs";
    saw_caller_ |= name == "caller";
    expr->kind = ExprKind::name;
    expr->name = std::move(name);
  }
  return expr;
}

ExprPtr Parser::parse_parentheses() {
  const int line = take().line;
  if (skip_op(")")) return make(ExprKind::tuple, line);
  ExprPtr expr = parse_tuple(Conditions::allowed);
  expect_op(")");
  return expr;
}

ExprPtr Parser::parse_list() {
  ExprPtr list = make(ExprKind::list, take().line);
  while (!at_op("]")) {
    if (!list->items.empty()) expect_op(",");
    if (at_op("]")) break;
    add(*list, parse_expression());
  }
  take();
  return list;
}

ExprPtr Parser::parse_dict() {
  ExprPtr dict = make(ExprKind::dict, take().line);
  while (!at_op("}")) {
    if (!dict->items.empty()) expect_op(",");
    if (at_op("}")) break;
    add(*dict, parse_expression());
    expect_op(":");
    add(*dict, parse_expression());
  }
  take();
  return dict;
}

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  while (true) {
    if (at_op("."))
      expr = parse_attribute(std::move(expr));
    else if (at_op("["))
      expr = parse_subscript(std::move(expr));
    else if (at_op("("))
      expr = parse_call(std::move(expr));
    else
      return expr;
  }
}

ExprPtr Parser::parse_filters_and_tests(ExprPtr expr) {
  while (true) {
    if (skip_op("|"))
      expr = parse_filter(std::move(expr));
    else if (at_name("is"))
      expr = parse_test(std::move(expr));
    else if (at_op("("))
      expr = parse_call(std::move(expr));
    else
      return expr;
  }
}

ExprPtr Parser::parse_attribute(ExprPtr expr) {
  const int line = take().line;
  if (current().kind == TokenKind::name) {
    ExprPtr attribute = make(ExprKind::attribute, line);
    attribute->name = take().text;
    add(*attribute, std::move(expr));
    return attribute;
  }
  if (current().kind != TokenKind::literal || !current().value.is(Kind::integer))
    unexpected("a name or number");
  ExprPtr item = make(ExprKind::item, line);
  add(*item, std::move(expr));
  add(*item, parse_primary());
  return item;
}

ExprPtr Parser::parse_subscript(ExprPtr expr) {
  const int line = take().line;
  std::vector<ExprPtr> parts;
  while (!at_op("]")) {
    if (!parts.empty()) expect_op(",");
    parts.push_back(parse_subscript_part());
  }
  take();
  ExprPtr item = make(ExprKind::item, line);
  add(*item, std::move(expr));
  if (parts.size() == 1) {
    add(*item, std::move(parts[0]));
    return item;
  }
  ExprPtr tuple = make(ExprKind::tuple, line);
  for (ExprPtr& part : parts) {
    if (part->kind == ExprKind::slice) throw SyntaxError(line, "a slice cannot be one of several subscripts");
    add(*tuple, std::move(part));
  }
  add(*item, std::move(tuple));
  return item;
}

ExprPtr Parser::parse_subscript_part() {
  const int line = current().line;
  ExprPtr first = at_op(":") ? nullptr : parse_expression();
  if (!skip_op(":")) return first;
  const auto parse_bound = [this] {
    return at_op(":") || at_op("]") || at_op(",") ? nullptr : parse_expression();
  };
  ExprPtr slice = make(ExprKind::slice, line);
  add(*slice, std::move(first));
  add(*slice, parse_bound());
  add(*slice, skip_op(":") ? parse_bound() : nullptr);
  return slice;
}

ExprPtr Parser::parse_call(ExprPtr expr) {
  ExprPtr call = make(ExprKind::call, current().line);
  add(*call, std::move(expr));
  set_arguments(*call, parse_arguments());
  return call;
}

Arguments Parser::parse_arguments() {
  const int line = current().line;
  expect_op("(");
  Arguments arguments;
  const auto require = [line](bool good) {
    if (!good) throw SyntaxError(line, "invalid syntax for function call expression");
  };
  for (bool first = true; !at_op(")"); first = false) {
    if (!first) {
      expect_op(",");
      if (at_op(")")) break;
    }
    if (skip_op("*")) {
      require(!arguments.more_positional && !arguments.more_keyword);
      arguments.more_positional = parse_expression();
    } else if (skip_op("**")) {
      require(!arguments.more_keyword);
      arguments.more_keyword = parse_expression();
    } else if (current().kind == TokenKind::name && is(ahead(), TokenKind::op, "=")) {
      require(!arguments.more_keyword);
      std::string name = take().text;
      take();
      arguments.keyword.emplace_back(std::move(name), parse_expression());
    } else {
      require(!arguments.more_positional && !arguments.more_keyword && arguments.keyword.empty());
      arguments.positional.push_back(parse_expression());
    }
  }
  take();
  return arguments;
}

// After the "|".
ExprPtr Parser::parse_filter(ExprPtr expr) {
  ExprPtr filter = make(ExprKind::filter, current().line);
  filter->name = expect_name();
  add(*filter, std::move(expr));
  if (at_op("(")) set_arguments(*filter, parse_arguments());
  return filter;
}

ExprPtr Parser::parse_test(ExprPtr expr) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExprPtr test = make(ExprKind::test, line);
  test->name = expect_name();
  add(*test, std::move(expr));
  const TokenKind kind = current().kind;
  if (at_op("(")) {
    set_arguments(*test, parse_arguments());
  } else if (kind == TokenKind::literal || at_op("[") || at_op("{") ||
             (kind == TokenKind::name && !at_name("else") && !at_name("or") && !at_name("and"))) {
    if (at_name("is")) throw SyntaxError(line, "You cannot chain multiple tests with is");
    const DepthGuard guard(*this);
    Arguments arguments;
    arguments.positional.push_back(parse_postfix(parse_primary()));
    set_arguments(*test, std::move(arguments));
  }
  if (!negated) return test;
  ExprPtr negation = make(ExprKind::logic_not, line);
  add(*negation, std::move(test));
  return negation;
}

}  // namespace tandem::jinja
