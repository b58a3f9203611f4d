// Numbers between bounds, written as choices of digits: recursion on the digits still to be compared.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "sample/json_schema/common.h"

namespace tandem::schema {
namespace {

// Doubles distinguish decimal numbers of 15 digits, so a number written on one side of a bound is read back
// on that side.
constexpr int kExactDigits = 15;
constexpr double kLargestBound = 1e15;
constexpr int kMaxFractionDigits = 10;

std::string digit_class(int low, int high) {
  return low == high ? format("\"{}\"", low) : format("[{}-{}]", low, high);
}
std::string digits(uint64_t min, uint64_t max) {
  return max == 0 ? "\"\"" : "[0-9]" + times(min, max);
}

// Digit strings of the same length from `low` to `high`.
std::string digits_between(std::string_view low, std::string_view high) {
  const size_t n = low.size();
  if (n == 0) return "\"\"";
  if (low.find_first_not_of('0') == low.npos && high.find_first_not_of('9') == high.npos) return digits(n, n);
  const int first = low[0] - '0', last = high[0] - '0';
  if (first == last) return digit_class(first, first) + " " + digits_between(low.substr(1), high.substr(1));
  const std::string zeros(n - 1, '0'), nines(n - 1, '9');
  const bool whole_first = low.substr(1) == zeros, whole_last = high.substr(1) == nines;
  std::vector<std::string> alternatives;
  if (!whole_first)
    alternatives.push_back(digit_class(first, first) + " " + digits_between(low.substr(1), nines));
  const int from = whole_first ? first : first + 1, to = whole_last ? last : last - 1;
  if (from <= to) alternatives.push_back(digit_class(from, to) + " " + digits(n - 1, n - 1));
  if (!whole_last)
    alternatives.push_back(digit_class(last, last) + " " + digits_between(zeros, high.substr(1)));
  return choice(alternatives);
}

// Integers from `low` to `high`, 0 <= low <= high.
std::string natural_between(uint64_t low, uint64_t high) {
  std::vector<std::string> alternatives;
  const std::string last = std::to_string(high);
  for (std::string from = std::to_string(low); from.size() <= last.size();) {
    const std::string to = from.size() == last.size() ? last : std::string(from.size(), '9');
    alternatives.push_back(digits_between(from, to));
    from = "1" + std::string(from.size(), '0');
  }
  return choice(alternatives);
}

constexpr uint64_t kLargestNatural = 9999999999999999;  // 16 digits

void check_bounds(const std::optional<Bound>& low, const std::optional<Bound>& high, const Place& place) {
  for (const auto& bound : {low, high}) {
    if (bound && !(std::abs(bound->value) <= kLargestBound))
      place.fail("a bound beyond 1e15 is not supported");
  }
  if (low && high && low->value > high->value) place.fail("no number is between the bounds");
}

// ---- Fractions ----

// A bound for the remaining digits: their text, without trailing zeros. nullopt: unbounded.
struct FractionBound {
  std::string_view digits;
  bool exclusive;
  int next() const { return digits.empty() ? 0 : digits[0] - '0'; }
  FractionBound rest() const { return {digits.empty() ? digits : digits.substr(1), exclusive}; }
};
using MaybeBound = std::optional<FractionBound>;

bool may_end(const MaybeBound& low, const MaybeBound& high) {
  return (!low || (low->digits.empty() && !low->exclusive)) &&
         (!high || !high->digits.empty() || !high->exclusive);
}

// One to n more digits with which the number is between the bounds; nullopt if there are none.
std::optional<std::string> fraction_between(MaybeBound low, const MaybeBound& high, int n) {
  if (low && low->digits.empty() && !low->exclusive) low.reset();
  if (n == 0) return std::nullopt;
  if (!low && !high) return digits(1, static_cast<uint64_t>(n));
  std::vector<std::string> alternatives;
  const auto add = [&](int digit, const MaybeBound& next_low, const MaybeBound& next_high) {
    const auto more = fraction_between(next_low, next_high, n - 1);
    const bool end = may_end(next_low, next_high);
    if (!more && !end) return;
    alternatives.push_back(digit_class(digit, digit) +
                           (more ? " " + (end ? "( " + *more + " )?" : *more) : ""));
  };
  const int first = low ? low->next() : -1, last = high ? high->next() : 10;
  if (first == last) {
    add(first, low->rest(), high->rest());
  } else if (first < last) {
    if (low) add(first, low->rest(), std::nullopt);
    if (first + 1 <= last - 1) {
      const std::string more = n > 1 ? " " + digits(0, static_cast<uint64_t>(n - 1)) : "";
      alternatives.push_back(digit_class(first + 1, last - 1) + more);
    }
    if (high) add(last, std::nullopt, high->rest());
  }
  if (alternatives.empty()) return std::nullopt;
  return choice(alternatives);
}

// ---- Decimals, never negative ----

struct Decimal {
  uint64_t whole = 0;
  std::string fraction;  // digits, without trailing zeros
  bool exclusive = false;
};

Decimal decimal(double value, bool exclusive) {
  // The shortest text that reads back as the same number: as the schema's author wrote it.
  int precision = 1;
  std::string text;
  do {
    text = format("{:.{}e}", value, precision - 1);
  } while (std::strtod(text.c_str(), nullptr) != value && ++precision <= 17);
  const int exponent = std::atoi(text.c_str() + text.find('e') + 1);
  std::string all =
      text.substr(0, 1) + (precision > 1 ? text.substr(2, static_cast<size_t>(precision) - 1) : "");
  Decimal d;
  d.exclusive = exclusive;
  if (exponent < 0) {
    d.fraction = std::string(static_cast<size_t>(-exponent) - 1, '0') + all;
  } else {
    const auto n_whole = static_cast<size_t>(exponent) + 1;
    if (all.size() < n_whole) all += std::string(n_whole - all.size(), '0');
    d.whole = std::strtoull(all.substr(0, n_whole).c_str(), nullptr, 10);
    d.fraction = all.substr(n_whole);
  }
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  return d;
}

class DecimalRange {
 public:
  // Appends the decimals from low to high to `alternatives`, each after `sign`.
  DecimalRange(std::string sign, int n_fraction, std::vector<std::string>& alternatives)
      : sign_(std::move(sign)), n_fraction_(n_fraction), out_(alternatives) {}

  void add(const Decimal& low, const std::optional<Decimal>& high) {
    const MaybeBound low_bound = FractionBound{low.fraction, low.exclusive};
    const MaybeBound high_bound = high ? MaybeBound({high->fraction, high->exclusive}) : std::nullopt;
    if (high && low.whole == high->whole) return at(low.whole, low_bound, high_bound);
    at(low.whole, low_bound, std::nullopt);
    const uint64_t first = low.whole + 1, last = high ? high->whole - 1 : kLargestNatural;
    if (first <= last) {
      out_.push_back(sign_ + natural_between(first, last) + " ( \".\" " +
                     digits(1, static_cast<uint64_t>(n_fraction_)) + " )?");
    }
    if (high) at(high->whole, std::nullopt, high_bound);
  }

 private:
  void at(uint64_t whole, const MaybeBound& low, const MaybeBound& high) {
    const auto fraction = fraction_between(low, high, n_fraction_);
    const std::string text = sign_ + literal(std::to_string(whole));
    if (may_end(low, high)) out_.push_back(text);
    if (fraction) out_.push_back(text + " \".\" " + *fraction);
  }

  std::string sign_;
  int n_fraction_;
  std::vector<std::string>& out_;
};

// Returns the number of digits after the point with which bound and number stay exact.
int fraction_digits(const std::optional<Bound>& low, const std::optional<Bound>& high, const Place& place) {
  int n = kMaxFractionDigits;
  for (const auto& bound : {low, high}) {
    if (!bound) continue;
    const Decimal d = decimal(std::abs(bound->value), false);
    const int n_whole = static_cast<int>(std::to_string(d.whole).size());
    const int n_left = std::max(1, kExactDigits - n_whole);
    if (static_cast<int>(d.fraction.size()) > n_left)
      place.fail("a bound of more than 15 digits is not supported");
    n = std::min(n, n_left);
  }
  for (const auto& bound : {low, high}) {
    if (bound) n = std::max(n, static_cast<int>(decimal(std::abs(bound->value), false).fraction.size()));
  }
  return n;
}

}  // namespace

std::string integer_between(const std::optional<Bound>& low, const std::optional<Bound>& high,
                            const Place& place) {
  check_bounds(low, high, place);
  constexpr auto kLargest = static_cast<int64_t>(kLargestNatural);
  int64_t first = -kLargest, last = kLargest;
  if (low)
    first =
        static_cast<int64_t>(std::ceil(low->value)) + (low->exclusive && std::ceil(low->value) == low->value);
  if (high)
    last = static_cast<int64_t>(std::floor(high->value)) -
           (high->exclusive && std::floor(high->value) == high->value);
  if (first > last) place.fail("no integer is between the bounds");
  std::vector<std::string> alternatives;
  if (first < 0) {
    const auto from = static_cast<uint64_t>(last < 0 ? -last : 1), to = static_cast<uint64_t>(-first);
    alternatives.push_back("\"-\" " + natural_between(from, to));
  }
  if (last >= 0) {
    alternatives.push_back(
        natural_between(static_cast<uint64_t>(std::max<int64_t>(first, 0)), static_cast<uint64_t>(last)));
  }
  return choice(alternatives);
}

std::string number_between(const std::optional<Bound>& low, const std::optional<Bound>& high,
                           const Place& place) {
  check_bounds(low, high, place);
  const int n_fraction = fraction_digits(low, high, place);
  std::vector<std::string> alternatives;
  if (!low || low->value < 0) {  // negative: magnitudes with the bounds swapped
    const Decimal from =
        high && high->value < 0 ? decimal(-high->value, high->exclusive) : Decimal{0, "", true};
    std::optional<Decimal> to;
    if (low) to = decimal(-low->value, low->exclusive);
    DecimalRange("\"-\" ", n_fraction, alternatives).add(from, to);
  }
  if (!high || high->value >= 0) {
    const Decimal from = low && low->value >= 0 ? decimal(std::abs(low->value), low->exclusive) : Decimal{};
    std::optional<Decimal> to;
    if (high) to = decimal(std::abs(high->value), high->exclusive);
    DecimalRange("", n_fraction, alternatives).add(from, to);
  }
  if (alternatives.empty()) place.fail("no number is between the bounds");
  return choice(alternatives);
}

}  // namespace tandem::schema
