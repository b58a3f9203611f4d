// Statements of Interp. Expressions are in eval.cpp.
#include "jinja/interp.h"

#include <algorithm>

#include "jinja/objects.h"

namespace tandem::jinja {

Value* Scope::find(std::string_view name) {
  const auto found =
      std::find_if(variables.begin(), variables.end(), [name](const auto& v) { return v.first == name; });
  return found == variables.end() ? nullptr : &found->second;
}

void Scope::set(std::string_view name, Value value) {
  if (Value* old = find(name))
    *old = std::move(value);
  else
    variables.emplace_back(name, std::move(value));
}

Interp::~Interp() {
  for (const auto& object : kept_) object->drop();
}

void Interp::keep(std::shared_ptr<Object> object) {
  charge_bytes(512);
  kept_.push_back(std::move(object));
}

void Interp::spend(size_t n) {
  n_operations_ += n;
  if (n_operations_ > limits_.n_operations)
    fail("the template runs for more than {} operations", limits_.n_operations);
}

void Interp::spend_on(const Value& value) {
  constexpr size_t kBytesAtOnce = 16;  // a slow walk over characters takes as long as other operations
  spend(extent(value).weight + (value.is_string() ? value.text().size() / kBytesAtOnce : 0));
}

void Interp::charge_bytes(size_t n) {
  n_bytes_ += n;
  if (n_bytes_ > limits_.n_bytes) fail("the template makes more than {} bytes of values", limits_.n_bytes);
}

void Interp::charge(const Value& made) {
  if (made.is_string())
    charge_bytes(made.text().size());
  else if (made.is_list())
    charge_bytes(made.items().size() * sizeof(Value));
  else if (made.is_dict())
    charge_bytes(made.dict()->entries().size() * 4 * sizeof(Value));
}

Text Interp::run(const Body& body, std::vector<std::pair<std::string, Value>> variables) {
  for (auto& [name, value] : variables) scope_->set(name, std::move(value));
  Text rendered;
  out_ = &rendered;
  run_body(body);
  return rendered;
}

void Interp::print(const Text& text) {
  spend(text.size() / 1024);
  if (text.size() > limits_.n_output_bytes - std::min(out_->size(), limits_.n_output_bytes)) {
    fail("the output is longer than {} bytes", limits_.n_output_bytes);
  }
  out_->append(text);
}

Interp::Flow Interp::run_body(const Body& body) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = run_stmt(*stmt);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Interp::Flow Interp::run_stmt(const Stmt& stmt) {
  const DepthGuard guard(*this);
  line_ = stmt.line;
  spend();
  switch (stmt.kind) {
    case StmtKind::data: print(Text(stmt.text)); break;
    case StmtKind::print: {
      const Value value = eval(*stmt.expressions[0]);
      spend(extent(value).weight);
      print(value.is_string() ? value.text() : to_text(value));
      break;
    }
    case StmtKind::for_loop: return run_for(stmt);
    case StmtKind::condition: return run_condition(stmt);
    case StmtKind::set: assign(stmt.targets[0], eval(*stmt.expressions[0])); break;
    case StmtKind::set_block: run_set_block(stmt); break;
    case StmtKind::macro: {
      const auto macro = std::make_shared<Macro>(stmt, scope_);
      keep(macro);
      scope_->set(stmt.text, Value(std::shared_ptr<Object>(macro)));
      break;
    }
    case StmtKind::call_block: run_call_block(stmt); break;
    case StmtKind::filter_block: {
      const Value text(capture(stmt.bodies[0]));
      const Value* outer = std::exchange(block_text_, &text);
      const Value filtered = eval(*stmt.expressions[0]);
      block_text_ = outer;
      print(to_text(filtered));
      break;
    }
    case StmtKind::with: return run_with(stmt);
    case StmtKind::scope: {
      const InnerScope inner(*this);
      return run_body(stmt.bodies[0]);
    }
    case StmtKind::break_loop: return Flow::break_loop;
    case StmtKind::continue_loop: return Flow::continue_loop;
  }
  return Flow::next;
}

// Renders the body in a scope of its own and returns its output.
Text Interp::capture(const Body& body) {
  const InnerScope inner(*this);
  Text text;
  Text* const outer = std::exchange(out_, &text);
  try {
    run_body(body);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  charge_bytes(text.size());
  return text;
}

void Interp::run_set_block(const Stmt& stmt) {
  Value value(capture(stmt.bodies[0]));
  if (stmt.expressions[0]) {
    const Value text = value;
    const Value* outer = std::exchange(block_text_, &text);
    value = eval(*stmt.expressions[0]);
    block_text_ = outer;
  }
  assign(stmt.targets[0], value);
}

Interp::Flow Interp::run_condition(const Stmt& stmt) {
  for (size_t i = 0; i < stmt.bodies.size(); ++i) {
    if (truth(eval(*stmt.expressions[i]))) return run_body(stmt.bodies[i]);
  }
  return run_body(stmt.otherwise);
}

Interp::Flow Interp::run_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const ExprPtr& expr : stmt.expressions) values.push_back(eval(*expr));
  const InnerScope inner(*this);
  for (size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], values[i]);
  return run_body(stmt.bodies[0]);
}

// Returns the elements to loop over: those that pass the `if` of the `for`.
std::vector<Value> Interp::loop_items(const Stmt& stmt) {
  std::vector<Value> items = iterate(eval(*stmt.expressions[0]));
  spend(items.size());
  charge_bytes(items.size() * sizeof(Value));
  if (!stmt.expressions[1]) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    const InnerScope inner(*this);
    assign(stmt.targets[0], item);
    if (truth(eval(*stmt.expressions[1]))) kept.push_back(std::move(item));
  }
  return kept;
}

Interp::Flow Interp::run_for(const Stmt& stmt) {
  const Value items = Value::list(loop_items(stmt));
  if (items.items().empty()) {
    const InnerScope inner(*this);
    return run_body(stmt.otherwise);
  }
  const auto loop = std::make_shared<Loop>(items);
  for (size_t i = 0; i < items.items().size(); ++i) {
    spend();
    loop->set_index(i);
    const InnerScope inner(*this);
    scope_->variables.reserve(4);
    scope_->set("loop", Value(std::shared_ptr<Object>(loop)));
    assign(stmt.targets[0], items.items()[i]);
    if (run_body(stmt.bodies[0]) == Flow::break_loop) break;
  }
  return Flow::next;
}

void Interp::run_call_block(const Stmt& stmt) {
  const auto caller = std::make_shared<Macro>(stmt, scope_);
  keep(caller);
  const Expr& call_expr = *stmt.expressions[0];
  const Value callee = eval(*call_expr.items[0]);
  Args args = eval_arguments(call_expr.arguments);
  args.keyword.emplace_back("caller", Value(std::shared_ptr<Object>(caller)));
  print(to_text(call(callee, std::move(args))));
}

namespace {

std::string macro_name(const Stmt& macro) {
  return macro.kind == StmtKind::macro ? "'" + macro.text + "'" : "None";
}

// Removes the argument of that name and returns it; Missing if there is none.
Value take_keyword(Args& args, std::string_view name) {
  const auto found = std::find_if(args.keyword.begin(), args.keyword.end(),
                                  [name](const auto& a) { return a.first == name; });
  Value value;
  if (found == args.keyword.end()) return value;
  value = std::move(found->second);
  args.keyword.erase(found);
  return value;
}

}  // namespace

void Interp::bind_parameters(const Stmt& macro, Args& args) {
  const std::string name = macro_name(macro);
  const size_t n_parameters = macro.parameters.size();
  bool has_caller = false;
  for (size_t i = 0; i < n_parameters; ++i) {
    const Parameter& parameter = macro.parameters[i];
    has_caller |= parameter.name == "caller";
    Value value = i < args.positional.size() ? args.positional[i] : take_keyword(args, parameter.name);
    if (value.is_missing()) {
      value = parameter.initial ? eval(*parameter.initial)
                                : Value::undefined("parameter '" + parameter.name + "' was not provided");
    }
    scope_->set(parameter.name, std::move(value));
  }
  if (macro.uses_caller && !has_caller) {
    Value caller = take_keyword(args, "caller");
    scope_->set("caller", caller.is_missing() ? Value::undefined("No caller defined") : std::move(caller));
  }
  if (macro.uses_kwargs) {
    auto kwargs = std::make_shared<DictData>();
    for (auto& [key, value] : args.keyword) kwargs->set(Value(key), std::move(value));
    scope_->set("kwargs", Value(std::shared_ptr<const DictData>(std::move(kwargs))));
  } else if (!args.keyword.empty()) {
    fail("macro {} takes no keyword argument '{}'", name, args.keyword[0].first);
  }
  const size_t n_given = args.positional.size();
  if (macro.uses_varargs) {
    const auto first = args.positional.begin() + std::min(n_given, n_parameters);
    scope_->set("varargs", Value::tuple({first, args.positional.end()}));
  } else if (n_given > n_parameters) {
    fail("macro {} takes at most {} argument(s)", name, n_parameters);
  }
}

Value Interp::call_macro(const Stmt& macro, const std::shared_ptr<Scope>& closure, Args& args) {
  const DepthGuard guard(*this);
  const int call_line = line_;
  const InnerScope inner(*this, closure);
  bind_parameters(macro, args);
  Value result(capture(macro.bodies[0]));
  line_ = call_line;
  return result;
}

void Interp::assign(const Target& target, const Value& value) {
  if (target.is_tuple) return unpack(target, value);
  if (target.attribute.empty()) {
    spend(scope_->variables.size() / 16);
    return scope_->set(target.name, value);
  }
  Value* found = nullptr;
  for (Scope* scope = scope_.get(); scope && !found; scope = scope->parent.get())
    found = scope->find(target.name);
  const auto space = found ? found->as<Namespace>() : nullptr;
  if (!space) fail("cannot assign attribute on non-namespace object");
  spend(1 + space->size() / 16);
  space->set(target.attribute, value);
}

void Interp::unpack(const Target& target, const Value& value) {
  if (!is_iterable(value)) fail("cannot unpack non-iterable {} object", type_name(value));
  const std::vector<Value> parts = iterate(value);
  if (parts.size() > target.parts.size()) {
    fail("too many values to unpack (expected {})", target.parts.size());
  }
  if (parts.size() < target.parts.size()) {
    fail("not enough values to unpack (expected {}, got {})", target.parts.size(), parts.size());
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i]);
}

}  // namespace tandem::jinja
