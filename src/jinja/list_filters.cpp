// Filters of sequences and mappings.
#include <algorithm>
#include <unordered_set>

#include "jinja/builtins.h"
#include "jinja/interp.h"

namespace tandem::jinja {
namespace {

// Gets the element at a path from a value: "name", "name.inner.0", or a number.
class Getter {
 public:
  Getter(Interp& in, const Value& path, Value otherwise = {}) : in_(in), otherwise_(std::move(otherwise)) {
    if (path.is_missing() || path.is_none()) return;
    if (!path.is_string()) {
      parts_.push_back(path);
      return;
    }
    const std::string& text = path.string();
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find('.', at), text.size());
      const std::string part = text.substr(at, end - at);
      const bool number = !part.empty() && part.size() < 10 &&
                          std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
      parts_.push_back(number ? Value(static_cast<int64_t>(std::stoll(part))) : Value(part));
      at = end + 1;
    }
  }

  Value operator()(Value value) const {
    for (const Value& part : parts_) {
      in_.spend();
      value = in_.item(value, part);
      if (value.is_undefined() && !otherwise_.is_missing() && !otherwise_.is_none()) value = otherwise_;
    }
    return value;
  }

 private:
  Interp& in_;
  std::vector<Value> parts_;
  Value otherwise_;
};

// Returns the key to compare by: strings ignore case unless case_sensitive.
Value sort_key(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(lower(value.text())) : value;
}

using Keyed = std::pair<Value, Value>;  // key, value

// Stable, as in Python: with `reverse` too, equal items keep their order.
void sort_by_key(Interp& in, std::vector<Keyed>& items, bool reverse) {
  std::stable_sort(items.begin(), items.end(), [&in, reverse](const Keyed& a, const Keyed& b) {
    in.spend(std::min(extent(a.first).weight, extent(b.first).weight));
    return compare(a.first, b.first, "<") * (reverse ? -1 : 1) < 0;
  });
}

Value values_of(std::vector<Keyed> items) {
  std::vector<Value> values;
  for (Keyed& item : items) values.push_back(std::move(item.second));
  return Value::list(std::move(values));
}

Value sort(Call& call) {
  const bool case_sensitive = call.flag(2);
  std::vector<Getter> getters;
  if (call.given(3) && call[3].is_string()) {
    const std::string& names = call[3].string();
    for (size_t at = 0; at <= names.size();) {
      const size_t end = std::min(names.find(',', at), names.size());
      getters.emplace_back(call.in, Value(names.substr(at, end - at)));
      at = end + 1;
    }
  } else {
    getters.emplace_back(call.in, call[3]);
  }
  std::vector<Keyed> items;
  for (const Value& value : iterate(call[0])) {
    std::vector<Value> keys;
    for (const Getter& getter : getters) keys.push_back(sort_key(getter(value), case_sensitive));
    items.emplace_back(Value::list(std::move(keys)), value);
  }
  sort_by_key(call.in, items, call.flag(1));
  return values_of(std::move(items));
}

Value dictsort(Call& call) {
  require_defined(call[0]);
  if (!call[0].is_dict()) fail("'{} object' has no attribute 'items'", type_name(call[0]));
  const std::string by = call.text_or(2, "key").bytes();
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  std::vector<Keyed> items;
  for (const auto& [key, value] : call[0].dict()->entries()) {
    items.emplace_back(sort_key(by == "key" ? key : value, call.flag(1)), Value::tuple({key, value}));
  }
  sort_by_key(call.in, items, call.flag(3));
  return values_of(std::move(items));
}

Value groupby(Call& call) {
  const Getter getter(call.in, call[1], call[2]);
  const bool case_sensitive = call.flag(3);
  std::vector<Keyed> items;
  for (const Value& value : iterate(call[0]))
    items.emplace_back(sort_key(getter(value), case_sensitive), value);
  sort_by_key(call.in, items, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < items.size();) {
    std::vector<Value> members;
    const Value key = items[i].first;
    for (; i < items.size() && equal(items[i].first, key); ++i) members.push_back(items[i].second);
    auto group = std::make_shared<ListData>();
    group->items = {case_sensitive ? key : getter(members[0]), Value::list(members)};
    for (const Value& part : group->items) group->extent.include(part);
    group->flavor = Flavor::tuple;
    group->view_name = "group";
    groups.emplace_back(std::shared_ptr<const ListData>(std::move(group)));
  }
  return Value::list(std::move(groups));
}

Value unique(Call& call) {
  const Getter getter(call.in, call[2]);
  std::unordered_set<std::string> seen;
  std::vector<Value> kept;
  for (const Value& value : iterate(call[0])) {
    if (seen.insert(hash_key(sort_key(getter(value), call.flag(1)))).second) kept.push_back(value);
  }
  return Value::list(std::move(kept), Flavor::generator);
}

template <int Sign>  // -1: minimum
Value extreme(Call& call) {
  const Getter getter(call.in, call[2]);
  const std::vector<Value> items = iterate(call[0]);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const Value* best = &items[0];
  Value best_key = sort_key(getter(items[0]), call.flag(1));
  for (const Value& item : items) {
    Value key = sort_key(getter(item), call.flag(1));
    if (compare(key, best_key, Sign < 0 ? "<" : ">") * Sign <= 0) continue;
    best = &item;
    best_key = std::move(key);
  }
  return *best;
}

Value sum(Call& call) {
  const Getter getter(call.in, call[1]);
  Value total = call[2].is_missing() ? Value(int64_t{0}) : call[2];
  if (total.is_string()) fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : iterate(call[0])) {
    total = arithmetic(Operator::add, total, getter(item));
    call.in.spend(extent(total).weight);
    call.in.charge(total);
  }
  return total;
}

Value join(Call& call) {
  const Getter getter(call.in, call[2]);
  const Text separator = call[1].is_missing() ? Text() : to_text(call[1]);
  Text out;
  bool first = true;
  for (const Value& item : iterate(call[0])) {
    if (!first) out.append(separator);
    first = false;
    out.append(to_text(getter(item)));
  }
  return Value(std::move(out));
}

Value first(Call& call) {
  if (call[0].is_list(Flavor::generator)) {
    const ListData& list = call[0].list_data();
    if (list.n_read < list.items.size()) return list.items[list.n_read++];
    return Value::undefined("No first item, sequence was empty.");
  }
  const std::vector<Value> items = iterate(call[0]);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(Call& call) {
  if (call[0].is_list(Flavor::generator)) fail("'generator' object is not reversible");
  const std::vector<Value> items = iterate(call[0]);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value reverse(Call& call) {
  const Value none(None{});
  if (call[0].is_string()) return slice(call[0], none, none, Value(int64_t{-1}));
  if (!is_iterable(call[0])) fail("argument must be iterable");
  std::vector<Value> items = iterate(call[0]);
  std::reverse(items.begin(), items.end());
  return Value::list(std::move(items), Flavor::generator);
}

Value batch(Call& call) {
  const int64_t n = call.integer(1);
  if (n < 1) fail("batch() takes a size of at least 1");
  std::vector<Value> batches, current;
  for (const Value& item : iterate(call[0])) {
    if (current.size() == static_cast<size_t>(n)) batches.push_back(Value::list(std::exchange(current, {})));
    current.push_back(item);
  }
  if (!current.empty()) {
    if (call.given(2)) {
      if (n > static_cast<int64_t>(kMaxPieces)) fail("batch() takes a size of at most {}", kMaxPieces);
      current.resize(n, call[2]);
    }
    batches.push_back(Value::list(std::move(current)));
  }
  return Value::list(std::move(batches), Flavor::generator);
}

Value slices(Call& call) {
  const std::vector<Value> items = iterate(call[0]);
  const int64_t n = call.integer(1);
  if (n < 1 || n > static_cast<int64_t>(kMaxPieces)) fail("slice() takes a number from 1 to {}", kMaxPieces);
  const size_t n_slices = static_cast<size_t>(n), each = items.size() / n_slices,
               extra = items.size() % n_slices;
  std::vector<Value> all;
  size_t at = 0;
  for (size_t i = 0; i < n_slices; ++i) {
    const size_t n_items = each + (i < extra);
    std::vector<Value> part(items.begin() + at, items.begin() + (at + n_items));
    at += n_items;
    if (call.given(2) && i >= extra) part.push_back(call[2]);
    all.push_back(Value::list(std::move(part)));
  }
  return Value::list(std::move(all), Flavor::generator);
}

Value items_of(Call& call) {
  if (call[0].is_undefined()) return Value::list({}, Flavor::generator);
  if (!call[0].is_dict()) fail("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : call[0].dict()->entries()) items.push_back(Value::tuple({key, value}));
  return Value::list(std::move(items), Flavor::generator);
}

Value count(Call& call) {
  return Value(static_cast<int64_t>(length(call[0])));
}

Value to_list(Call& call) {
  return Value::list(iterate(call[0]));
}

Value attr(Call& call) {
  // Attributes only, not elements of that name.
  const Value& value = call[0];
  require_defined(value);
  const bool is_element = value.is_dict() && !find_method(value, call.text(1).view());
  if (is_element) return Value::undefined("'dict object' has no attribute '" + call.text(1).bytes() + "'");
  return call.in.attribute(value, call.text(1).bytes());
}

constexpr Builtin kListFilters[] = {
    {"length", "value", count},
    {"count", "value", count},
    {"list", "value", to_list},
    {"items", "value", items_of},
    {"first", "value", first},
    {"last", "value", last},
    {"reverse", "value", reverse},
    {"sort", "value reverse? case_sensitive? attribute?", sort},
    {"dictsort", "value case_sensitive? by? reverse?", dictsort},
    {"groupby", "value attribute default? case_sensitive?", groupby},
    {"unique", "value case_sensitive? attribute?", unique},
    {"min", "value case_sensitive? attribute?", extreme<-1>},
    {"max", "value case_sensitive? attribute?", extreme<1>},
    {"sum", "value attribute? start?", sum},
    {"join", "value d? attribute?", join},
    {"batch", "value linecount fill_with?", batch},
    {"slice", "value slices fill_with?", slices},
    {"attr", "value name", attr},
};

// --- Filters that apply other filters or tests ---

// Builds the arguments of the inner filter or test: `value`, then the arguments after its name.
Args applied(const Call& call, size_t n_taken, const Value& value) {
  Args args{{value}, call.rest.keyword};
  const auto& given = call.rest.positional;
  args.positional.insert(args.positional.end(), given.begin() + (std::min(n_taken, given.size())),
                         given.end());
  return args;
}

const std::string& name_argument(const Call& call, size_t i) {
  const Value& name = call.rest.positional[i];
  if (!name.is_string()) fail("{}() takes the name of a filter or test", call.name);
  return name.string();
}

Value map(Call& call) {
  std::vector<Value> out;
  if (call.rest.positional.empty()) {
    Value path, otherwise;
    for (const auto& [name, value] : call.rest.keyword) {
      if (name != "attribute" && name != "default") fail("Unexpected keyword argument '{}'", name);
      (name == "attribute" ? path : otherwise) = value;
    }
    if (path.is_missing()) fail("map requires a filter argument");
    const Getter getter(call.in, path, otherwise);
    for (const Value& value : iterate(call[0])) out.push_back(getter(value));
  } else {
    const std::string& name = name_argument(call, 0);
    for (const Value& value : iterate(call[0])) out.push_back(call.in.filter(name, applied(call, 1, value)));
  }
  return Value::list(std::move(out), Flavor::generator);
}

// Keeps values for which a test (default: truth) of the value, or of its attribute, returns `Wanted`.
template <bool Wanted, bool OfAttribute>
Value select(Call& call) {
  const auto& given = call.rest.positional;
  if (OfAttribute && given.empty()) fail("missing parameter for attribute name");
  const size_t n_taken = OfAttribute ? 1 : 0;
  const Getter getter(call.in, OfAttribute ? given[0] : Value());
  std::vector<Value> kept;
  for (const Value& value : iterate(call[0])) {
    const Value subject = getter(value);
    const bool holds = given.size() > n_taken
                           ? call.in.test(name_argument(call, n_taken), applied(call, n_taken + 1, subject))
                           : truth(subject);
    if (holds == Wanted) kept.push_back(value);
  }
  return Value::list(std::move(kept), Flavor::generator);
}

constexpr Builtin kMappingFilters[] = {
    {"map", "value *", map},
    {"select", "value *", select<true, false>},
    {"reject", "value *", select<false, false>},
    {"selectattr", "value *", select<true, true>},
    {"rejectattr", "value *", select<false, true>},
};

}  // namespace

Builtins list_filters() {
  return kListFilters;
}

Builtins mapping_filters() {
  return kMappingFilters;
}

}  // namespace tandem::jinja
