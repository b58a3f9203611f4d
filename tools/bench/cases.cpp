#include "tools/bench/cases.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

constexpr size_t kMaxValues = 10000;  // in a list, and rows in total: more is surely a typing error

[[noreturn]] void refuse_range(const std::string& option, const std::string& text, const char* why) {
  throw_error(ErrorCode::usage, "{}: '{}': {}", option, printable(text), why);
}

// Parses one item: FIRST, FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR.
void append_range(const std::string& option, const std::string& text, int32_t min,
                  std::vector<int32_t>& values) {
  const size_t dash = text.find('-', 1);  // after a possible sign
  const size_t op = dash == std::string::npos ? dash : text.find_first_of("+*", dash);
  const auto number = [&](size_t begin, size_t end, int64_t least) {
    return parse_integer(option, text.substr(begin, end == std::string::npos ? end : end - begin), least);
  };
  const int64_t first = number(0, dash, min);
  const int64_t last = dash == std::string::npos ? first : number(dash + 1, op, min);
  const int64_t step = op == std::string::npos ? 1 : number(op + 1, std::string::npos, 1);
  const bool multiplies = op != std::string::npos && text[op] == '*';
  if (last < first) refuse_range(option, text, "the last value is smaller than the first");
  if (multiplies && (step == 1 || first == 0)) refuse_range(option, text, "this range is endless");
  for (int64_t value = first; value <= last; value = multiplies ? value * step : value + step) {
    if (values.size() >= kMaxValues) refuse_range(option, text, "too many values");
    values.push_back(static_cast<int32_t>(value));
  }
}

// Appends the tests for one combination of the other parameters.
void append_tests(const BenchLists& lists, BenchCase c, std::vector<BenchCase>& cases) {
  const auto add = [&](int32_t n_prompt, int32_t n_gen) {
    if (n_prompt == 0 && n_gen == 0) return;
    if (cases.size() >= kMaxValues) {
      throw_error(ErrorCode::usage, "the lists multiply out to more than {} tests", kMaxValues);
    }
    c.n_prompt = n_prompt;
    c.n_gen = n_gen;
    cases.push_back(c);
  };
  for (const int32_t n : lists.n_prompt) add(n, 0);
  for (const int32_t n : lists.n_gen) add(0, n);
  for (const auto& [n_prompt, n_gen] : lists.prompt_gen) add(n_prompt, n_gen);
}

// Every case of `all` with each of the values.
template <class T>
std::vector<BenchCase> times(const std::vector<BenchCase>& all, const std::vector<T>& values,
                             T BenchCase::*member) {
  std::vector<BenchCase> product;
  if (all.size() * values.size() > kMaxValues) {
    throw_error(ErrorCode::usage, "the lists multiply out to more than {} tests", kMaxValues);
  }
  for (const BenchCase& c : all) {
    for (const auto& value : values) {
      product.push_back(c);
      product.back().*member = value;
    }
  }
  return product;
}

}  // namespace

std::string test_name(const BenchCase& c) {
  std::string name;
  if (c.n_prompt > 0) name = "pp" + std::to_string(c.n_prompt);
  if (c.n_gen > 0) name += (name.empty() ? "tg" : "+tg") + std::to_string(c.n_gen);
  if (c.n_depth > 0) name += " @ d" + std::to_string(c.n_depth);
  return name;
}

std::vector<BenchCase> make_cases(const BenchLists& lists) {
  // The model is the outermost loop, because loading takes longest.
  std::vector<BenchCase> combinations(1);
  combinations = times(combinations, lists.model, &BenchCase::model);
  combinations = times(combinations, lists.mmap, &BenchCase::mmap);
  combinations = times(combinations, lists.type_k, &BenchCase::type_k);
  combinations = times(combinations, lists.type_v, &BenchCase::type_v);
  combinations = times(combinations, lists.n_batch, &BenchCase::n_batch);
  combinations = times(combinations, lists.n_ubatch, &BenchCase::n_ubatch);
  combinations = times(combinations, lists.n_threads, &BenchCase::n_threads);
  combinations = times(combinations, lists.isa, &BenchCase::isa);
  combinations = times(combinations, lists.n_gpu_layers, &BenchCase::n_gpu_layers);
  combinations = times(combinations, lists.no_kv_offload, &BenchCase::no_kv_offload);
  combinations = times(combinations, lists.n_depth, &BenchCase::n_depth);
  std::vector<BenchCase> cases;
  for (const BenchCase& c : combinations) append_tests(lists, c, cases);
  if (cases.empty()) {
    throw_error(ErrorCode::usage, "nothing to measure: -p and -n are both 0, and -pg is not given");
  }
  return cases;
}

std::vector<int32_t> parse_ranges(const std::string& option, const std::string& text, int32_t min) {
  std::vector<int32_t> values;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    append_range(option, text.substr(begin, end - begin), min, values);
    begin = end + 1;
  }
  return values;
}

double bytes_read_per_token(const BenchCase& c, size_t weights, size_t kv) {
  double n_bytes = 0;
  int64_t n_past = c.n_depth;
  const auto step = [&](int64_t n) {
    n_past += n;
    n_bytes += static_cast<double>(weights) + static_cast<double>(kv) * static_cast<double>(n_past);
  };
  for (int64_t left = c.n_prompt; left > 0; left -= c.step_size()) step(std::min(left, c.step_size()));
  for (int32_t i = 0; i < c.n_gen; ++i) step(1);
  return n_bytes / static_cast<double>(c.n_tokens());
}

}  // namespace tandem::tools
