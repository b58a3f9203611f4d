// The syntax tree of a template: statements and expressions. Immutable once parsed, owned by the Template.
// Trees are at most kMaxDepth deep, so recursion over them, and their destruction, is bounded.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace tandem::jinja {

inline constexpr int kMaxDepth = 200;

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  constant,   // value
  name,       // name
  list,       // items
  tuple,      // items
  dict,       // items: key, value, key, value, ...
  attribute,  // items[0].name
  item,       // items[0][items[1]]
  slice,      // items[0..2], any may be null; only as items[1] of an item
  call,       // items[0](arguments)
  filter,     // items[0]|name(arguments); items[0] is null for the text of a block
  test,       // items[0] is name(arguments)
  negate,     // -items[0]
  positive,   // +items[0]
  logic_not,  // not items[0]
  logic_and,
  logic_or,
  condition,  // items[0] if items[1] else items[2], which may be null
  compare,    // items[0] operators[0] items[1] operators[1] ...
  concat,     // items joined with ~
  binary,     // items[0] operators[0] items[1]
};

enum class Operator { eq, ne, lt, le, gt, ge, in, not_in, add, sub, mul, div, floor_div, mod, pow };

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr more_positional, more_keyword;  // *x and **x; may be null
};

struct Expr {
  ExprKind kind;
  int line;
  std::string name = {};
  Value value = {};
  std::vector<ExprPtr> items = {};
  std::vector<Operator> operators = {};
  Arguments arguments = {};
  int depth = 1;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

// The target of an assignment: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;      // of the namespace `name`; empty: the name itself
  std::vector<Target> parts;  // of a tuple, which has no name
  bool is_tuple = false;
};

struct Parameter {
  std::string name;
  ExprPtr initial;  // default value, or null
};

enum class StmtKind {
  data,          // text
  print,         // expressions[0]
  for_loop,      // target in expressions[0] if expressions[1] (may be null): body, otherwise
  condition,     // branch i: expressions[i], bodies[i]; then otherwise
  set,           // target = expressions[0]
  set_block,     // target = body, through expressions[0] (a chain of filters; may be null)
  macro,         // text(parameters): body
  call_block,    // {% call(parameters) expressions[0] %} body; expressions[0] is a call
  filter_block,  // body through expressions[0], a chain of filters
  with,          // targets[i] = expressions[i]: body
  scope,         // body in a scope of its own: block, generation, autoescape
  break_loop,
  continue_loop,
};

struct Stmt {
  StmtKind kind;
  int line;
  std::string text = {};
  std::vector<ExprPtr> expressions = {};
  std::vector<Target> targets = {};
  std::vector<Parameter> parameters = {};
  std::vector<Body> bodies = {};
  Body otherwise = {};
  // Macros and call blocks: whether the body uses these.
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

}  // namespace tandem::jinja
