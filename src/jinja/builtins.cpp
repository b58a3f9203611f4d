#include "jinja/builtins.h"

#include <algorithm>
#include <initializer_list>
#include <unordered_map>

#include "jinja/interp.h"

namespace tandem::jinja {

const Text& Call::text(size_t i) const {
  require_defined(values[i]);
  if (!values[i].is_string()) {
    fail("{}() takes a str, not '{}'", name, type_name(values[i]));
  }
  return values[i].text();
}

Text Call::text_or(size_t i, const char* otherwise) const {
  return given(i) ? text(i) : Text(otherwise);
}

int64_t Call::integer(size_t i) const {
  require_defined(values[i]);
  if (!values[i].is_integral()) {
    fail("{}() takes an int, not '{}'", name, type_name(values[i]));
  }
  return values[i].integral();
}

int64_t Call::integer_or(size_t i, int64_t otherwise) const {
  return given(i) ? integer(i) : otherwise;
}

namespace {

std::vector<std::string_view> split_parameters(std::string_view parameters) {
  std::vector<std::string_view> names;
  while (!parameters.empty()) {
    const size_t end = std::min(parameters.find(' '), parameters.size());
    names.push_back(parameters.substr(0, end));
    parameters.remove_prefix(std::min(end + 1, parameters.size()));
  }
  return names;
}

class Index {
 public:
  Index(std::initializer_list<Builtins> tables) {
    for (const Builtins table : tables) {
      for (const Builtin& builtin : table) index_.emplace(builtin.name, &builtin);
    }
  }
  const Builtin* find(std::string_view name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<std::string_view, const Builtin*> index_;
};

}  // namespace

Value run_builtin(const Builtin& builtin, Interp& in, Args& args) {
  const std::string function(builtin.name);
  std::vector<std::string_view> names = split_parameters(builtin.parameters);
  const bool takes_more = !names.empty() && names.back() == "*";
  if (takes_more) names.pop_back();
  Call call{in, builtin.name, std::vector<Value>(names.size()), {}};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    in.spend_on(args.positional[i]);
    if (i < names.size())
      call.values[i] = std::move(args.positional[i]);
    else if (takes_more)
      call.rest.positional.push_back(std::move(args.positional[i]));
    else
      fail("{}() takes at most {} arguments ({} given)", function, names.size(), args.positional.size());
  }
  for (auto& [keyword, value] : args.keyword) {
    const std::string& name = keyword;  // not all compilers can capture structured bindings
    const auto same = [&name](std::string_view n) {
      return (n.ends_with('?') ? n.substr(0, n.size() - 1) : n) == name;
    };
    const auto found = std::find_if(names.begin(), names.end(), same);
    if (found == names.end()) {
      if (!takes_more) fail("{}() got an unexpected keyword argument '{}'", function, name);
      call.rest.keyword.emplace_back(name, std::move(value));
      continue;
    }
    Value& place = call.values[found - names.begin()];
    if (!place.is_missing()) fail("{}() got multiple values for argument '{}'", function, name);
    place = std::move(value);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (call.values[i].is_missing() && !names[i].ends_with('?')) {
      fail("{}() missing 1 required positional argument: '{}'", function, names[i]);
    }
  }
  return builtin.run(call);
}

const Builtin* find_in(Builtins builtins, std::string_view name) {
  const auto found =
      std::find_if(builtins.begin(), builtins.end(), [name](const Builtin& b) { return b.name == name; });
  return found == builtins.end() ? nullptr : &*found;
}

const Builtin* find_filter(std::string_view name) {
  static const Index index = {text_filters(), number_filters(), list_filters(), mapping_filters()};
  return index.find(name);
}

const Builtin* find_test(std::string_view name) {
  static const Index index = {tests()};
  return index.find(name);
}

const Builtin* find_global(std::string_view name) {
  static const Index index = {global_functions()};
  return index.find(name);
}

const Builtin* find_method(const Value& self, std::string_view name) {
  if (self.is_string()) {
    static const Index index = {string_methods(), string_tests()};
    return index.find(name);
  }
  if (self.is_dict()) return find_in(dict_methods(), name);
  if (!self.is_list(Flavor::list) && !self.is_list(Flavor::tuple)) return nullptr;
  return name == "copy" && self.is_list(Flavor::tuple) ? nullptr : find_in(list_methods(), name);
}

bool is_mutating(const Value& self, std::string_view name) {
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  if (self.is_dict()) return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  return self.is_list(Flavor::list) && std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
}

}  // namespace tandem::jinja
