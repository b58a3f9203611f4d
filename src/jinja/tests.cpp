// Tests: the names after `is`.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interp.h"

namespace tandem::jinja {
namespace {

bool divisible(const Value& value, const Value& by, int64_t rest) {
  return equal(arithmetic(Operator::mod, value, by), Value(rest));
}

// Whether there is a cased letter, and none of the other case.
bool all_cased(const Value& value, bool (*wanted)(uint32_t), bool (*other)(uint32_t)) {
  const Text text = to_text(value);
  bool any = false;
  for (size_t at = 0; at < text.size(); at += char_bytes(text.view(), at)) {
    const uint32_t code = char_code(text.view(), at);
    if (other(code)) return false;
    any |= wanted(code);
  }
  return any;
}

bool is_sequence(const Value& value) {
  const bool indexed = value.is_list() && !value.is_list(Flavor::generator) && !value.is_list(Flavor::view);
  return value.is_undefined() || value.is_string() || value.is_dict() || indexed;
}

bool is_same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  return a.address() ? a.address() == b.address() : equal(a, b);
}

bool is_callable(const Value& value) {
  return value.is_undefined() || (value.is(Kind::object) && value.object()->callable());
}

template <bool (*Test)(const Value&)>
Value unary(Call& call) {
  return Value(Test(call[0]));
}

template <bool (*Test)(const Value&, const Value&)>
Value binary(Call& call) {
  return Value(Test(call[0], call[1]));
}

template <Kind Wanted>
Value of_kind(Call& call) {
  return Value(call[0].is(Wanted));
}

template <bool Wanted>
Value is_bool(Call& call) {
  return Value(call[0].is(Kind::boolean) && call[0].boolean() == Wanted);
}

constexpr Builtin kTests[] = {
    {"odd", "value", [](Call& c) { return Value(divisible(c[0], Value(int64_t{2}), 1)); }},
    {"even", "value", [](Call& c) { return Value(divisible(c[0], Value(int64_t{2}), 0)); }},
    {"divisibleby", "value num", [](Call& c) { return Value(divisible(c[0], c[1], 0)); }},
    {"defined", "value", [](Call& c) { return Value(!c[0].is_undefined()); }},
    {"undefined", "value", of_kind<Kind::undefined>},
    {"filter", "value", [](Call& c) { return Value(c[0].is_string() && find_filter(c[0].string())); }},
    {"test", "value", [](Call& c) { return Value(c[0].is_string() && find_test(c[0].string())); }},
    {"none", "value", of_kind<Kind::none>},
    {"boolean", "value", of_kind<Kind::boolean>},
    {"true", "value", is_bool<true>},
    {"false", "value", is_bool<false>},
    {"integer", "value", of_kind<Kind::integer>},
    {"float", "value", of_kind<Kind::real>},
    {"number", "value", [](Call& c) { return Value(c[0].is_number()); }},
    {"string", "value", of_kind<Kind::string>},
    {"mapping", "value", of_kind<Kind::dict>},
    {"sequence", "value", unary<is_sequence>},
    {"iterable", "value", unary<is_iterable>},
    {"callable", "value", unary<is_callable>},
    {"escaped", "value", [](Call&) { return Value(false); }},
    {"lower", "value", [](Call& c) { return Value(all_cased(c[0], is_lower, is_upper)); }},
    {"upper", "value", [](Call& c) { return Value(all_cased(c[0], is_upper, is_lower)); }},
    {"sameas", "value other", binary<is_same>},
    {"in", "value seq", [](Call& c) { return Value(contains(c[1], c[0])); }},
    {"==", "a b", binary<equal>},
    {"eq", "a b", binary<equal>},
    {"equalto", "a b", binary<equal>},
    {"!=", "a b", [](Call& c) { return Value(!equal(c[0], c[1])); }},
    {"ne", "a b", [](Call& c) { return Value(!equal(c[0], c[1])); }},
    {">", "a b", [](Call& c) { return Value(compare(c[0], c[1], ">") > 0); }},
    {"gt", "a b", [](Call& c) { return Value(compare(c[0], c[1], ">") > 0); }},
    {"greaterthan", "a b", [](Call& c) { return Value(compare(c[0], c[1], ">") > 0); }},
    {">=", "a b", [](Call& c) { return Value(compare(c[0], c[1], ">=") >= 0); }},
    {"ge", "a b", [](Call& c) { return Value(compare(c[0], c[1], ">=") >= 0); }},
    {"<", "a b", [](Call& c) { return Value(compare(c[0], c[1], "<") < 0); }},
    {"lt", "a b", [](Call& c) { return Value(compare(c[0], c[1], "<") < 0); }},
    {"lessthan", "a b", [](Call& c) { return Value(compare(c[0], c[1], "<") < 0); }},
    {"<=", "a b", [](Call& c) { return Value(compare(c[0], c[1], "<=") <= 0); }},
    {"le", "a b", [](Call& c) { return Value(compare(c[0], c[1], "<=") <= 0); }},
};

}  // namespace

Builtins tests() {
  return kTests;
}

}  // namespace tandem::jinja
