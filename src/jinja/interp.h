// Interp: renders one template once. Input is values by name, output is text with its marks.
//
// Sandboxed: templates reach no files, no clock other than the given time, and only listed attributes.
// Operations, recursion, memory and output are limited, so every run ends. One Interp is one render on one
// thread; the parsed template must outlive it. Throws Failure; line() then returns the line.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/ast.h"
#include "jinja/value.h"

namespace tandem::jinja {

struct Limits {
  size_t n_operations = 50'000'000;          // operations: statements, expressions, elements they visit
  size_t n_bytes = size_t{256} << 20;         // of all values that are made
  size_t n_output_bytes = size_t{32} << 20;  // of the render
  int n_depth = 1000;                        // nesting of macros, statements and expressions
};

// Variables by name. Names that a scope does not have are looked up in its parent.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  Value* find(std::string_view name);
  void set(std::string_view name, Value value);
};

class Interp {
 public:
  Interp(const Limits& limits, const std::tm& now) : limits_(limits), now_(now) {}
  Interp(const Interp&) = delete;
  ~Interp();

  Text run(const Body& body, std::vector<std::pair<std::string, Value>> variables);
  int line() const { return line_; }

  // --- For functions, filters and tests ---
  const std::tm& now() const { return now_; }
  void spend(size_t n = 1);
  void spend_on(const Value& value);  // a walk over all its elements, or the characters of a text
  void charge(const Value& made);
  void charge_bytes(size_t n);
  Value attribute(const Value& value, const std::string& name);
  Value item(const Value& value, const Value& key);
  Value call(const Value& callee, Args args);
  Value filter(const std::string& name, Args args);  // args.positional[0] is the operand
  bool test(const std::string& name, Args args);
  Value call_macro(const Stmt& macro, const std::shared_ptr<Scope>& closure, Args& args);
  // Keeps an object that may end up referring to itself, to break the cycle when the render ends.
  void keep(std::shared_ptr<Object> object);

 private:
  class DepthGuard;
  class InnerScope;  // a scope within the current one
  enum class Flow { next, break_loop, continue_loop };

  Flow run_body(const Body& body);
  Flow run_stmt(const Stmt& stmt);
  Flow run_for(const Stmt& stmt);
  Flow run_condition(const Stmt& stmt);
  Flow run_with(const Stmt& stmt);
  void run_set_block(const Stmt& stmt);
  void run_call_block(const Stmt& stmt);
  void bind_parameters(const Stmt& macro, Args& args);
  std::vector<Value> loop_items(const Stmt& stmt);
  Text capture(const Body& body);
  void print(const Text& text);
  void assign(const Target& target, const Value& value);
  void unpack(const Target& target, const Value& value);

  Value eval(const Expr& expr);
  Value eval_kind(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_items(const Expr& expr, Flavor flavor);
  Value eval_dict(const Expr& expr);
  Value eval_item(const Expr& expr);
  Value eval_slice(const Value& value, const Expr& slice);
  Value eval_call(const Expr& expr);
  Value eval_filter(const Expr& expr);
  Value eval_test(const Expr& expr);
  Value eval_condition(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Args eval_arguments(const Arguments& arguments);

  const Limits limits_;
  const std::tm now_;
  size_t n_operations_ = 0, n_bytes_ = 0;
  int depth_ = 0, line_ = 0;
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  Text* out_ = nullptr;
  const Value* block_text_ = nullptr;  // the operand of a filter that has none of its own
  std::vector<std::shared_ptr<Object>> kept_;
};

class Interp::DepthGuard {
 public:
  explicit DepthGuard(Interp& in) : in_(in) {
    if (in_.depth_ >= in_.limits_.n_depth) fail("recursion deeper than {}", in_.limits_.n_depth);
    ++in_.depth_;
  }
  DepthGuard(const DepthGuard&) = delete;
  ~DepthGuard() { --in_.depth_; }

 private:
  Interp& in_;
};

class Interp::InnerScope {
 public:
  InnerScope(Interp& in, std::shared_ptr<Scope> parent) : in_(in), outer_(in.scope_) {
    in_.scope_ = std::make_shared<Scope>(Scope{std::move(parent), {}});
  }
  explicit InnerScope(Interp& in) : InnerScope(in, in.scope_) {}
  InnerScope(const InnerScope&) = delete;
  ~InnerScope() { in_.scope_ = std::move(outer_); }

 private:
  Interp& in_;
  std::shared_ptr<Scope> outer_;
};

// Python's operators.
Value arithmetic(Operator op, const Value& a, const Value& b);
Value negated(const Value& value);
// value[start:stop:step]; each bound may be None.
Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);

}  // namespace tandem::jinja
