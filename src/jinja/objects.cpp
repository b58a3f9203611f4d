#include "jinja/objects.h"

#include <algorithm>

namespace tandem::jinja {

namespace {

std::optional<Value> method_of(Builtins methods, std::shared_ptr<Object> self, const std::string& name) {
  const Builtin* method = find_in(methods, name);
  if (!method) return std::nullopt;
  return Value(std::shared_ptr<Object>(std::make_shared<Function>(*method, Value(std::move(self)))));
}

}  // namespace

Value Function::call(Interp& in, Args& args) {
  if (!self_.is_missing()) args.positional.insert(args.positional.begin(), self_);
  return run_builtin(builtin_, in, args);
}

Extent Function::extent() const {
  Extent whole;
  whole.include(self_);
  return whole;
}

std::optional<Value> Macro::attribute(Interp&, const std::string& name) {
  if (name == "name") return stmt_.kind == StmtKind::macro ? Value(stmt_.text) : Value(None{});
  if (name == "caller") return Value(stmt_.uses_caller);
  if (name == "catch_kwargs") return Value(stmt_.uses_kwargs);
  if (name == "catch_varargs") return Value(stmt_.uses_varargs);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const Parameter& parameter : stmt_.parameters) names.emplace_back(parameter.name);
  return Value::tuple(std::move(names));
}

std::optional<Value> Namespace::attribute(Interp& in, const std::string& name) {
  in.spend(scope_.variables.size() / 16);
  const Value* value = scope_.find(name);
  return value ? std::optional<Value>(*value) : std::nullopt;
}

std::optional<Value> Loop::attribute(Interp&, const std::string& name) {
  const auto& items = items_.items();
  const int64_t n = static_cast<int64_t>(items.size()), i = static_cast<int64_t>(index_);
  if (name == "index") return Value(i + 1);
  if (name == "index0") return Value(i);
  if (name == "revindex") return Value(n - i);
  if (name == "revindex0") return Value(n - i - 1);
  if (name == "first") return Value(i == 0);
  if (name == "last") return Value(i == n - 1);
  if (name == "length") return Value(n);
  if (name == "depth") return Value(int64_t{1});  // as in Jinja2: only recursive loops are deeper
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") return i > 0 ? items[index_ - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return i + 1 < n ? items[index_ + 1] : Value::undefined("there is no next item");
  return method_of(loop_methods(), shared_from_this(), name);
}

Extent Loop::extent() const {
  return jinja::extent(items_);
}

Value Loop::changed(Interp& in, Value now) {
  if (last_changed_.is_missing()) in.keep(shared_from_this());
  if (!last_changed_.is_missing() && equal(last_changed_, now)) return Value(false);
  last_changed_ = std::move(now);
  return Value(true);
}

Extent Cycler::extent() const {
  return jinja::extent(items_);
}

Value Cycler::next() {
  const auto& items = items_.items();
  Value value = items[at_];
  at_ = (at_ + 1) % items.size();
  return value;
}

std::optional<Value> Cycler::attribute(Interp&, const std::string& name) {
  if (name == "current") return items_.items()[at_];
  return method_of(cycler_methods(), shared_from_this(), name);
}

Value Joiner::call(Interp&, Args&) {
  return std::exchange(used_, true) ? separator_ : Value("");
}

// --- Methods ---

namespace {

Value loop_cycle(Call& call) {
  const auto loop = call[0].as<Loop>();
  const auto& items = call.rest.positional;
  if (items.empty()) fail("no items for cycling given");
  return items[loop->index() % items.size()];
}

Value loop_changed(Call& call) {
  return call[0].as<Loop>()->changed(call.in, Value::tuple(std::move(call.rest.positional)));
}

Value cycler_next(Call& call) {
  return call[0].as<Cycler>()->next();
}

Value cycler_reset(Call& call) {
  call[0].as<Cycler>()->reset();
  return Value(None{});
}

constexpr Builtin kLoopMethods[] = {{"cycle", "self *", loop_cycle}, {"changed", "self *", loop_changed}};
constexpr Builtin kCyclerMethods[] = {{"next", "self", cycler_next}, {"reset", "self", cycler_reset}};

}  // namespace

Builtins loop_methods() {
  return kLoopMethods;
}

Builtins cycler_methods() {
  return kCyclerMethods;
}

}  // namespace tandem::jinja
