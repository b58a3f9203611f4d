// Python's operators, on numbers and, where Python has them, on strings and sequences.
#include <algorithm>
#include <cmath>

#include "jinja/builtins.h"
#include "jinja/interp.h"

namespace tandem::jinja {

namespace {

const char* symbol(Operator op) {
  switch (op) {
    case Operator::add: return "+";
    case Operator::sub: return "-";
    case Operator::mul: return "*";
    case Operator::div: return "/";
    case Operator::floor_div: return "//";
    case Operator::mod: return "%";
    default: return "** or pow()";
  }
}

[[noreturn]] void too_large() {
  fail("an integer does not fit in 64 bits");
}

[[noreturn]] void unsupported(Operator op, const Value& a, const Value& b) {
  if (op == Operator::add && a.is_string()) {
    fail("can only concatenate str (not \"{}\") to str", type_name(b));
  }
  fail("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), type_name(a), type_name(b));
}

// Rounds towards minus infinity, as Python does; b is not 0.
int64_t floor_divided(int64_t a, int64_t b) {
  if (b == -1) {
    if (a == INT64_MIN) too_large();
    return -a;
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t modulo(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(result, base, &result)) too_large();
    exponent /= 2;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) too_large();
  }
  return result;
}

Value integers(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::add:
      if (__builtin_add_overflow(a, b, &result)) too_large();
      return Value(result);
    case Operator::sub:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return Value(result);
    case Operator::mul:
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      return Value(result);
    case Operator::div:
      if (b == 0) fail("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Operator::floor_div:
      if (b == 0) fail("integer division or modulo by zero");
      return Value(floor_divided(a, b));
    case Operator::mod:
      if (b == 0) fail("integer modulo by zero");
      return Value(modulo(a, b));
    default: break;
  }
  if (b >= 0) return Value(power(a, b));
  if (a == 0) fail("0.0 cannot be raised to a negative power");
  return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
}

double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value reals(Operator op, double a, double b) {
  if (b == 0 && op == Operator::div) fail("float division by zero");
  if (b == 0 && (op == Operator::floor_div || op == Operator::mod)) fail("float floor division by zero");
  switch (op) {
    case Operator::add: return Value(a + b);
    case Operator::sub: return Value(a - b);
    case Operator::mul: return Value(a * b);
    case Operator::div: return Value(a / b);
    case Operator::floor_div: return Value(std::floor((a - float_modulo(a, b)) / b + 0.5));
    case Operator::mod: return Value(float_modulo(a, b));
    default: break;
  }
  if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
  const double result = std::pow(a, b);
  if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) fail("the result is a complex number");
  if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) fail("Numerical result out of range");
  return Value(result);
}

Value repeated(const Value& value, int64_t n) {
  const size_t times = static_cast<size_t>(std::max<int64_t>(n, 0));
  if (value.is_string()) {
    if (!value.text().empty() && times > kMaxTextBytes / value.text().size()) {
      fail("a text grows past {} bytes", kMaxTextBytes);
    }
    Text text;
    for (size_t i = 0; i < times && !value.text().empty(); ++i) text.append(value.text());
    return Value(std::move(text));
  }
  const auto& items = value.items();
  if (!items.empty() && times > kMaxPieces / items.size()) fail("a list grows past {} elements", kMaxPieces);
  std::vector<Value> all;
  for (size_t i = 0; i < times && !items.empty(); ++i) all.insert(all.end(), items.begin(), items.end());
  return Value::list(std::move(all), value.list_data().flavor);
}

bool repeatable(const Value& value) {
  return value.is_string() || value.is_list(Flavor::list) || value.is_list(Flavor::tuple);
}

Value joined(const Value& a, const Value& b) {
  if (a.is_string()) {
    Text text = a.text();
    text.append(b.text());
    return Value(std::move(text));
  }
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return Value::list(std::move(items), a.list_data().flavor);
}

bool joinable(const Value& a, const Value& b) {
  if (a.is_string() || b.is_string()) return a.is_string() && b.is_string();
  return (a.is_list(Flavor::list) && b.is_list(Flavor::list)) ||
         (a.is_list(Flavor::tuple) && b.is_list(Flavor::tuple));
}

}  // namespace

Value arithmetic(Operator op, const Value& a, const Value& b) {
  require_defined(a);
  if (!(op == Operator::mod && a.is_string()))
    require_defined(b);  // "%s" prints an undefined value as nothing
  if (a.is_integral() && b.is_integral()) return integers(op, a.integral(), b.integral());
  if (a.is_number() && b.is_number()) return reals(op, a.number(), b.number());
  if (op == Operator::add && joinable(a, b)) return joined(a, b);
  if (op == Operator::mul && repeatable(a) && b.is_integral()) return repeated(a, b.integral());
  if (op == Operator::mul && a.is_integral() && repeatable(b)) return repeated(b, a.integral());
  if (op == Operator::mod && a.is_string()) {
    return Value(percent_format(a.text(), b.is_list(Flavor::tuple) ? Args{b.items(), {}} : Args{{b}, {}}));
  }
  unsupported(op, a, b);
}

Value negated(const Value& value) {
  require_defined(value);
  if (value.is(Kind::real)) return Value(-value.real());
  if (!value.is_integral()) fail("bad operand type for unary -: '{}'", type_name(value));
  return arithmetic(Operator::sub, Value(int64_t{0}), value);
}

namespace {

struct Bounds {
  int64_t start, stop, step;
};

// The indices that a slice of n elements selects.
Bounds slice_bounds(const Value& start, const Value& stop, const Value& step, int64_t n) {
  const auto integer = [](const Value& v, int64_t otherwise) {
    if (v.is_none()) return otherwise;
    if (!v.is_integral()) fail("slice indices must be integers or None or have an __index__ method");
    return v.integral();
  };
  Bounds bounds{0, 0, integer(step, 1)};
  if (bounds.step == 0) fail("slice step cannot be zero");
  const bool forward = bounds.step > 0;
  const int64_t low = forward ? 0 : -1, high = forward ? n : n - 1;
  const auto clamp = [&](int64_t at) {
    return std::clamp(at < 0 ? std::max(at, -n - 1) + n : at, low, high);
  };
  bounds.start = start.is_none() ? (forward ? low : high) : clamp(integer(start, 0));
  bounds.stop = stop.is_none() ? (forward ? high : low) : clamp(integer(stop, 0));
  bounds.step = std::clamp(bounds.step, -n - 1, n + 1);
  return bounds;
}

Value slice_text(const Text& text, const Value& start, const Value& stop, const Value& step) {
  const Bounds bounds = slice_bounds(start, stop, step, static_cast<int64_t>(count_chars(text.view())));
  if (bounds.step == 1) {
    const size_t begin = char_offset(text.view(), static_cast<size_t>(bounds.start));
    const size_t n_chars = static_cast<size_t>(std::max<int64_t>(bounds.stop - bounds.start, 0));
    return Value(text.substr(begin, char_offset(text.view().substr(begin), n_chars)));
  }
  std::vector<size_t> offsets;  // of each character, then of the end
  for (size_t at = 0; at < text.size(); at += char_bytes(text.view(), at)) offsets.push_back(at);
  offsets.push_back(text.size());
  Text out;
  for (int64_t i = bounds.start; bounds.step > 0 ? i < bounds.stop : i > bounds.stop; i += bounds.step) {
    const size_t at = static_cast<size_t>(i);
    out.append(text, offsets[at], offsets[at + 1] - offsets[at]);
  }
  return Value(std::move(out));
}

}  // namespace

Value slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  require_defined(value);
  if (value.is_string()) return slice_text(value.text(), start, stop, step);
  if (value.is_list(Flavor::generator)) fail("'generator' object is not subscriptable");
  const auto& items = value.items();
  const Bounds bounds = slice_bounds(start, stop, step, static_cast<int64_t>(items.size()));
  std::vector<Value> taken;
  for (int64_t i = bounds.start; bounds.step > 0 ? i < bounds.stop : i > bounds.stop; i += bounds.step) {
    taken.push_back(items[i]);
  }
  return Value::list(std::move(taken), value.list_data().flavor);
}

}  // namespace tandem::jinja
