// Predefined global functions, and the methods of lists and dictionaries.
#include <algorithm>
#include <ctime>

#include "jinja/objects.h"

namespace tandem::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;

Value make_range(Call& call) {
  const bool bounded = call.given(1);
  const int64_t start = bounded ? call.integer(0) : 0;
  const int64_t stop = bounded ? call.integer(1) : call.integer(0);
  const int64_t step = call.integer_or(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  const double n = (static_cast<double>(stop) - static_cast<double>(start)) / static_cast<double>(step);
  if (n > static_cast<double>(kMaxRange)) {
    fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", static_cast<int>(kMaxRange));
  }
  std::vector<Value> items;
  int64_t i = start;
  while (step > 0 ? i < stop : i > stop) {
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(items), Flavor::range);
}

// Builds the result of dict() and namespace() from a mapping or pairs, and keyword arguments.
std::shared_ptr<DictData> dict_from(Call& call) {
  auto dict = std::make_shared<DictData>();
  if (call.rest.positional.size() > 1) fail("{}() takes at most 1 argument", call.name);
  if (!call.rest.positional.empty()) {
    const Value& from = call.rest.positional[0];
    if (from.is_dict()) {
      for (const auto& [key, value] : from.dict()->entries()) dict->set(key, value);
    } else {
      for (const Value& pair : iterate(from)) {
        const std::vector<Value> parts = iterate(pair);
        if (parts.size() != 2)
          fail("dictionary update sequence element has length {}; 2 is required", parts.size());
        dict->set(parts[0], parts[1]);
      }
    }
  }
  for (auto& [name, value] : call.rest.keyword) dict->set(Value(name), std::move(value));
  return dict;
}

Value make_dict(Call& call) {
  return Value(std::shared_ptr<const DictData>(dict_from(call)));
}

Value make_namespace(Call& call) {
  const auto space = std::make_shared<Namespace>();
  call.in.keep(space);
  const std::shared_ptr<const DictData> initial = dict_from(call);
  for (const auto& [key, value] : initial->entries()) {
    if (!key.is_string()) fail("a namespace needs str keys, not '{}'", type_name(key));
    space->set(key.string(), value);
  }
  return Value(std::shared_ptr<Object>(space));
}

Value make_cycler(Call& call) {
  if (call.rest.positional.empty()) fail("at least one item has to be provided");
  const Value items = Value::list(std::move(call.rest.positional));
  return Value(std::shared_ptr<Object>(std::make_shared<Cycler>(items)));
}

Value make_joiner(Call& call) {
  return Value(std::shared_ptr<Object>(std::make_shared<Joiner>(Value(call.text_or(0, ", ")))));
}

Value raise_exception(Call& call) {
  throw Failure(to_text(call[0]).bytes());
}

// Reduces the pattern for the C library to conversions with short results that need no time zone.
std::string safe_pattern(const std::string& pattern) {
  static constexpr std::string_view kKnown = "aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%";
  std::string safe;
  for (size_t at = 0; at < pattern.size(); ++at) {
    safe += pattern[at];
    if (pattern[at] != '%') continue;
    size_t conversion = at + 1;
    while (conversion < pattern.size() && (pattern[conversion] == '-' || pattern[conversion] == '_'))
      ++conversion;
    const char c = conversion < pattern.size() ? pattern[conversion] : '\0';
    if (c == 'f' || c == 'z' || c == 'Z') {
      safe.pop_back();
      if (c == 'f') safe += "000000";
    } else if (c != '\0' && kKnown.find(c) != kKnown.npos) {
      safe += pattern.substr(at + 1, conversion - at);
    } else {
      fail("strftime_now() does not support the format '{}'", pattern.substr(at, 8));
    }
    at = conversion;
  }
  return safe;
}

Value strftime_now(Call& call) {
  const std::string& pattern = call.text(0).bytes();
  if (pattern.size() > 1000) fail("strftime_now() takes a pattern of at most 1000 bytes");
  const std::string safe = safe_pattern(pattern);
  std::vector<char> out(safe.size() * 64 + 64);
  const size_t n = std::strftime(out.data(), out.size(), safe.c_str(), &call.in.now());
  return Value(Text(std::string_view(out.data(), n)));
}

Value view(std::vector<Value> items, const char* name) {
  auto data = std::make_shared<ListData>();
  for (const Value& item : items) data->extent.include(item);
  data->items = std::move(items);
  data->flavor = Flavor::view;
  data->view_name = name;
  return Value(std::shared_ptr<const ListData>(std::move(data)));
}

Value dict_get(Call& call) {
  const Value* found = call[0].dict()->find(call[1]);
  return found ? *found : call[2].is_missing() ? Value(None{}) : call[2];
}

Value dict_items(Call& call) {
  std::vector<Value> items;
  for (const auto& [key, value] : call[0].dict()->entries()) items.push_back(Value::tuple({key, value}));
  return view(std::move(items), "dict_items");
}

Value dict_keys(Call& call) {
  return view(iterate(call[0]), "dict_keys");
}

Value dict_values(Call& call) {
  std::vector<Value> items;
  for (const auto& entry : call[0].dict()->entries()) items.push_back(entry.second);
  return view(std::move(items), "dict_values");
}

Value copy(Call& call) {
  return call[0];
}

Value list_index(Call& call) {
  const auto& items = call[0].items();
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], call[1])) return Value(static_cast<int64_t>(i));
  }
  fail("{} is not in list", repr(call[1]).bytes());
}

Value list_count(Call& call) {
  const auto& items = call[0].items();
  return Value(static_cast<int64_t>(
      std::count_if(items.begin(), items.end(), [&call](const Value& v) { return equal(v, call[1]); })));
}

constexpr Builtin kGlobals[] = {
    {"range", "start stop? step?", make_range},
    {"dict", "*", make_dict},
    {"namespace", "*", make_namespace},
    {"cycler", "*", make_cycler},
    {"joiner", "sep?", make_joiner},
    {"raise_exception", "message", raise_exception},
    {"strftime_now", "format", strftime_now},
};
constexpr Builtin kDictMethods[] = {
    {"get", "self key default?", dict_get}, {"items", "self", dict_items}, {"keys", "self", dict_keys},
    {"values", "self", dict_values},        {"copy", "self", copy},
};
constexpr Builtin kListMethods[] = {
    {"index", "self value", list_index}, {"count", "self value", list_count}, {"copy", "self", copy}};

}  // namespace

Builtins global_functions() {
  return kGlobals;
}

Builtins dict_methods() {
  return kDictMethods;
}

Builtins list_methods() {
  return kListMethods;
}

}  // namespace tandem::jinja
