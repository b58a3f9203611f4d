// Interp: runs one template once. Values come in by name, text with its marks comes out.
//
// Nothing a template does reaches outside: no files, no clock but the time it is given, no attribute that is
// not listed. Steps, recursion, memory and output are limited, so every run ends. One Interp is one render on
// one thread; the parsed template must outlive it. Throws Failure; line() then says where.
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
  size_t n_steps = 50'000'000;               // expressions and statements, and elements of what they touch
  size_t n_bytes = size_t{1} << 30;          // of all values that are made
  size_t n_output_bytes = size_t{32} << 20;  // of the render
  int n_depth = 1000;                        // of expressions in statements in macros ...
};

// Names that statements have set. A child looks up what it does not have in its parent.
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
  void step(size_t n = 1);
  void charge(const Value& made);
  void charge_bytes(size_t n);
  Value attribute(const Value& value, const std::string& name);
  Value item(const Value& value, const Value& key);
  Value call(const Value& callee, Args args);
  Value filter(const std::string& name, Args args);  // args.positional[0] is what is filtered
  bool test(const std::string& name, Args args);
  Value call_macro(const Stmt& macro, const std::shared_ptr<Scope>& closure, Args& args);
  // Objects that can come to hold themselves are let go of at the end.
  void keep(std::shared_ptr<Object> object);

 private:
  class Deeper;
  class Inner;  // a scope within the current one
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
  size_t n_steps_ = 0, n_bytes_ = 0;
  int depth_ = 0, line_ = 0;
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  Text* out_ = nullptr;
  const Value* block_text_ = nullptr;  // what a filter without an operand filters
  std::vector<std::shared_ptr<Object>> kept_;
};

class Interp::Deeper {
 public:
  explicit Deeper(Interp& in) : in_(in) {
    if (in_.depth_ >= in_.limits_.n_depth) fail("recursion deeper than %d", in_.limits_.n_depth);
    ++in_.depth_;
  }
  Deeper(const Deeper&) = delete;
  ~Deeper() { --in_.depth_; }

 private:
  Interp& in_;
};

class Interp::Inner {
 public:
  Inner(Interp& in, std::shared_ptr<Scope> parent) : in_(in), outer_(in.scope_) {
    in_.scope_ = std::make_shared<Scope>(Scope{std::move(parent), {}});
  }
  explicit Inner(Interp& in) : Inner(in, in.scope_) {}
  Inner(const Inner&) = delete;
  ~Inner() { in_.scope_ = std::move(outer_); }

 private:
  Interp& in_;
  std::shared_ptr<Scope> outer_;
};

// Python's arithmetic.
Value arithmetic(Operator op, const Value& a, const Value& b);
Value negated(const Value& value);
// value[start:stop:step], where each may be None.
Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);

}  // namespace tandem::jinja
