// Objects of the template language: functions, macros, namespaces, loops.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/builtins.h"
#include "jinja/interp.h"

namespace tandem::jinja {

// A builtin function, or a builtin method bound to a value.
class Function : public Object {
 public:
  explicit Function(const Builtin& builtin, Value self = {}) : builtin_(builtin), self_(std::move(self)) {}
  std::string type_name() const override {
    return self_.is_missing() ? "function" : "builtin_function_or_method";
  }
  bool callable() const override { return true; }
  Value call(Interp& in, Args& args) override;
  Extent extent() const override;

 private:
  const Builtin& builtin_;
  const Value self_;
};

// A macro or the body of a call block. Its scope may hold the macro itself; Interp::keep breaks the cycle.
class Macro : public Object {
 public:
  Macro(const Stmt& stmt, std::shared_ptr<Scope> scope) : stmt_(stmt), scope_(std::move(scope)) {}
  std::string type_name() const override { return "Macro"; }
  std::optional<Value> attribute(Interp& in, const std::string& name) override;
  bool callable() const override { return true; }
  Value call(Interp& in, Args& args) override { return in.call_macro(stmt_, scope_, args); }
  void drop() override { scope_.reset(); }

 private:
  const Stmt& stmt_;
  std::shared_ptr<Scope> scope_;
};

class Namespace : public Object {
 public:
  std::string type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(Interp& in, const std::string& name) override;
  void set(const std::string& name, Value value) { scope_.set(name, std::move(value)); }
  size_t size() const { return scope_.variables.size(); }
  void drop() override { scope_.variables.clear(); }

 private:
  Scope scope_;
};

// The variable `loop` inside a for.
class Loop : public Object, public std::enable_shared_from_this<Loop> {
 public:
  explicit Loop(Value items) : items_(std::move(items)) {}
  std::string type_name() const override { return "LoopContext"; }
  std::optional<Value> attribute(Interp& in, const std::string& name) override;
  Extent extent() const override;
  void drop() override { last_changed_ = Value(); }
  void set_index(size_t index) { index_ = index; }
  size_t index() const { return index_; }
  Value changed(Interp& in, Value now);

 private:
  const Value items_;
  size_t index_ = 0;
  Value last_changed_;
};

class Cycler : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(Value items) : items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(Interp& in, const std::string& name) override;
  Extent extent() const override;
  Value next();
  void reset() { at_ = 0; }

 private:
  const Value items_;
  size_t at_ = 0;
};

// Returns nothing on the first call, then its separator.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Interp& in, Args& args) override;

 private:
  const Value separator_;
  bool used_ = false;
};

}  // namespace tandem::jinja
