// Expressions of Interp.
#include <algorithm>

#include "jinja/objects.h"

namespace tandem::jinja {

Value Interp::eval(const Expr& expr) {
  const DepthGuard guard(*this);
  line_ = expr.line;
  spend();
  return eval_kind(expr);
}

Value Interp::eval_kind(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::constant: return expr.value;
    case ExprKind::name: return eval_name(expr);
    case ExprKind::list: return eval_items(expr, Flavor::list);
    case ExprKind::tuple: return eval_items(expr, Flavor::tuple);
    case ExprKind::dict: return eval_dict(expr);
    case ExprKind::attribute: return attribute(eval(*expr.items[0]), expr.name);
    case ExprKind::item: return eval_item(expr);
    case ExprKind::slice: fail("a slice outside of a subscript");
    case ExprKind::call: return eval_call(expr);
    case ExprKind::filter: return eval_filter(expr);
    case ExprKind::test: return eval_test(expr);
    case ExprKind::negate: return negated(eval(*expr.items[0]));
    case ExprKind::positive: return arithmetic(Operator::add, Value(int64_t{0}), eval(*expr.items[0]));
    case ExprKind::logic_not: return Value(!truth(eval(*expr.items[0])));
    case ExprKind::logic_and: {
      Value left = eval(*expr.items[0]);
      return truth(left) ? eval(*expr.items[1]) : left;
    }
    case ExprKind::logic_or: {
      Value left = eval(*expr.items[0]);
      return truth(left) ? left : eval(*expr.items[1]);
    }
    case ExprKind::condition: return eval_condition(expr);
    case ExprKind::compare: return eval_compare(expr);
    case ExprKind::concat: return eval_concat(expr);
    case ExprKind::binary: {
      const Value left = eval(*expr.items[0]), right = eval(*expr.items[1]);
      line_ = expr.line;
      Value result = arithmetic(expr.operators[0], left, right);
      charge(result);
      return result;
    }
  }
  return Value();
}

Value Interp::eval_name(const Expr& expr) {
  for (Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    spend(scope->variables.size() / 16);
    if (const Value* value = scope->find(expr.name)) return *value;
  }
  if (const Builtin* global = find_global(expr.name)) {
    return Value(std::shared_ptr<Object>(std::make_shared<Function>(*global)));
  }
  return Value::undefined("'" + expr.name + "' is undefined");
}

Value Interp::eval_items(const Expr& expr, Flavor flavor) {
  std::vector<Value> items;
  for (const ExprPtr& item : expr.items) items.push_back(eval(*item));
  Value list = Value::list(std::move(items), flavor);
  charge(list);
  return list;
}

Value Interp::eval_dict(const Expr& expr) {
  auto dict = std::make_shared<DictData>();
  for (size_t i = 0; i + 1 < expr.items.size(); i += 2) {
    const Value key = eval(*expr.items[i]);
    dict->set(key, eval(*expr.items[i + 1]));
  }
  Value value(std::shared_ptr<const DictData>(std::move(dict)));
  charge(value);
  return value;
}

Value Interp::eval_condition(const Expr& expr) {
  if (truth(eval(*expr.items[1]))) return eval(*expr.items[0]);
  if (expr.items[2]) return eval(*expr.items[2]);
  return Value::undefined("the inline if-expression on line " + std::to_string(expr.line) +
                          " evaluated to false and no else section was defined.");
}

namespace {

bool holds(Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::eq: return equal(a, b);
    case Operator::ne: return !equal(a, b);
    case Operator::in: return contains(b, a);
    case Operator::not_in: return !contains(b, a);
    default: break;
  }
  const char* text = op == Operator::lt ? "<" : op == Operator::le ? "<=" : op == Operator::gt ? ">" : ">=";
  const bool nan = (a.is(Kind::real) && a.real() != a.real()) || (b.is(Kind::real) && b.real() != b.real());
  const int order = compare(a, b, text);
  if (nan) return false;
  return op == Operator::lt   ? order < 0
         : op == Operator::le ? order <= 0
         : op == Operator::gt ? order > 0
                              : order >= 0;
}

}  // namespace

Value Interp::eval_compare(const Expr& expr) {
  Value left = eval(*expr.items[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = eval(*expr.items[i + 1]);
    line_ = expr.line;
    spend(std::min(extent(left).weight, extent(right).weight));
    const bool membership = expr.operators[i] == Operator::in || expr.operators[i] == Operator::not_in;
    if (membership) spend_on(right);
    if (!holds(expr.operators[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interp::eval_concat(const Expr& expr) {
  Text text;
  for (const ExprPtr& item : expr.items) {
    const Value value = eval(*item);
    spend_on(value);
    if (value.is_string())
      text.append(value.text());
    else
      text.append(to_text(value));
  }
  Value result(std::move(text));
  charge(result);
  return result;
}

Args Interp::eval_arguments(const Arguments& arguments) {
  Args args;
  for (const ExprPtr& expr : arguments.positional) args.positional.push_back(eval(*expr));
  for (const auto& [name, expr] : arguments.keyword) args.keyword.emplace_back(name, eval(*expr));
  if (arguments.more_positional) {
    std::vector<Value> more = iterate(eval(*arguments.more_positional));
    spend(more.size());
    args.positional.insert(args.positional.end(), more.begin(), more.end());
  }
  if (arguments.more_keyword) {
    const Value more = eval(*arguments.more_keyword);
    if (!more.is_dict()) fail("argument after ** must be a mapping, not {}", type_name(more));
    spend(more.dict()->entries().size());
    for (const auto& [key, value] : more.dict()->entries()) {
      if (!key.is_string()) fail("keywords must be strings");
      args.keyword.emplace_back(key.string(), value);
    }
  }
  return args;
}

Value Interp::call(const Value& callee, Args args) {
  const DepthGuard guard(*this);
  require_defined(callee);
  if (!callee.is(Kind::object)) fail("'{}' object is not callable", type_name(callee));
  Value result = callee.object()->call(*this, args);
  charge(result);
  return result;
}

Value Interp::eval_call(const Expr& expr) {
  const Value callee = eval(*expr.items[0]);
  require_defined(callee);
  Args args = eval_arguments(expr.arguments);
  line_ = expr.line;
  return call(callee, std::move(args));
}

Value Interp::filter(const std::string& name, Args args) {
  const Builtin* builtin = find_filter(name);
  if (!builtin) fail("No filter named '{}'.", name);
  const DepthGuard guard(*this);
  Value result = run_builtin(*builtin, *this, args);
  charge(result);
  return result;
}

bool Interp::test(const std::string& name, Args args) {
  const Builtin* builtin = find_test(name);
  if (!builtin) fail("No test named '{}'.", name);
  return truth(run_builtin(*builtin, *this, args));
}

Value Interp::eval_filter(const Expr& expr) {
  Value subject = expr.items[0] ? eval(*expr.items[0]) : *block_text_;
  Args args = eval_arguments(expr.arguments);
  args.positional.insert(args.positional.begin(), std::move(subject));
  line_ = expr.line;
  return filter(expr.name, std::move(args));
}

Value Interp::eval_test(const Expr& expr) {
  Value subject = eval(*expr.items[0]);
  Args args = eval_arguments(expr.arguments);
  args.positional.insert(args.positional.begin(), std::move(subject));
  line_ = expr.line;
  return Value(test(expr.name, std::move(args)));
}

Value Interp::eval_item(const Expr& expr) {
  const Value value = eval(*expr.items[0]);
  const Expr& key = *expr.items[1];
  if (key.kind == ExprKind::slice) return eval_slice(value, key);
  const Value at = eval(key);
  line_ = expr.line;
  return item(value, at);
}

Value Interp::eval_slice(const Value& value, const Expr& bounds) {
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) parts[i] = bounds.items[i] ? eval(*bounds.items[i]) : Value(None{});
  line_ = bounds.line;
  if (!value.is_string() && !value.is_list() && !value.is_undefined()) {
    fail("'{}' object is not subscriptable", type_name(value));
  }
  Value result = slice(value, parts[0], parts[1], parts[2]);
  spend_on(value.is_string() ? value : result);
  charge(result);
  return result;
}

namespace {

// Returns the type as Jinja2's error messages name it.
std::string described_type(const Value& value) {
  if (value.is_none()) return "None";
  if (value.is(Kind::object)) return "jinja2 " + type_name(value) + " object";
  return type_name(value) + " object";
}

Value no_attribute(const Value& value, const std::string& name) {
  return Value::undefined("'" + described_type(value) + "' has no attribute '" + name + "'");
}

// Finds an element; null if there is none.
const Value* find_item(const Value& value, const Value& key) {
  if (value.is_dict()) return hashable(key) ? value.dict()->find(key) : nullptr;
  if (!value.is_list() || value.is_list(Flavor::generator) || value.is_list(Flavor::view)) return nullptr;
  if (!key.is_integral()) return nullptr;
  const auto& items = value.items();
  const int64_t n = static_cast<int64_t>(items.size());
  const int64_t at = key.integral() < 0 ? key.integral() + n : key.integral();
  return at >= 0 && at < n ? &items[at] : nullptr;
}

// Returns an attribute that the Python object would have; nullopt if there is none.
std::optional<Value> own_attribute(Interp& in, const Value& value, const std::string& name) {
  if (value.is(Kind::object)) return value.object()->attribute(in, name);
  if (value.is_list(Flavor::tuple) && value.list_data().view_name == "group" && value.items().size() == 2) {
    if (name == "grouper") return value.items()[0];
    if (name == "list") return value.items()[1];
  }
  if (is_mutating(value, name)) {
    return Value::undefined("access to attribute '" + name + "' of '" + type_name(value) +
                            "' object is unsafe.");
  }
  const Builtin* method = find_method(value, name);
  if (!method) return std::nullopt;
  return Value(std::shared_ptr<Object>(std::make_shared<Function>(*method, value)));
}

}  // namespace

Value Interp::attribute(const Value& value, const std::string& name) {
  require_defined(value);
  if (auto own = own_attribute(*this, value, name)) return *own;
  if (value.is_dict()) {
    if (const Value* found = value.dict()->find_text(name)) return *found;
  }
  return no_attribute(value, name);
}

Value Interp::item(const Value& value, const Value& key) {
  require_defined(value);
  if (const Value* found = find_item(value, key)) return *found;
  if (value.is_string() && key.is_integral()) {
    const Value one =
        slice(value, key, key.integral() == -1 ? Value(None{}) : Value(key.integral() + 1), Value(None{}));
    if (!one.text().empty()) return one;
  }
  if (key.is_string()) {
    if (auto own = own_attribute(*this, value, key.string())) return *own;
    return no_attribute(value, key.string());
  }
  return Value::undefined("'" + described_type(value) + "' has no element " + repr(key).bytes());
}

}  // namespace tandem::jinja
