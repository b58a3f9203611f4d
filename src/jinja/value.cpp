#include "jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace tandem::jinja {

void Extent::include(const Value& inner) {
  const Extent other = extent(inner);
  nesting = std::max(nesting, other.nesting + 1);
  weight += other.weight;
  if (nesting > kMaxNesting) fail("values nest deeper than {}", kMaxNesting);
  if (weight > kMaxWeight) fail("a value has more than {} elements", kMaxWeight);
}

Extent extent(const Value& value) {
  switch (value.kind()) {
    case Kind::string: return {0, 1 + value.text().size() / 1024};
    case Kind::list: return value.list_data().extent;
    case Kind::dict: return value.dict()->extent();
    case Kind::object: return value.object()->extent();
    default: return {};
  }
}

Value Value::list(std::vector<Value> items, Flavor flavor) {
  auto data = std::make_shared<ListData>();
  for (const Value& item : items) data->extent.include(item);
  data->items = std::move(items);
  data->flavor = flavor;
  return Value(std::shared_ptr<const ListData>(std::move(data)));
}

Value Value::undefined(std::string message) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(message))});
}

bool Value::is_list(Flavor flavor) const {
  return is(Kind::list) && list_data().flavor == flavor;
}

const std::vector<Value>& Value::items() const {
  return list_data().items;
}

const void* Value::address() const {
  switch (kind()) {
    case Kind::string: return &text();
    case Kind::list: return &list_data();
    case Kind::dict: return dict().get();
    case Kind::object: return object().get();
    default: return nullptr;
  }
}

void DictData::set(const Value& key, Value value) {
  extent_.include(key);
  extent_.include(value);
  const auto [found, added] = index_.try_emplace(hash_key(key), entries_.size());
  if (added)
    entries_.emplace_back(key, std::move(value));
  else
    entries_[found->second].second = std::move(value);
}

const Value* DictData::find(const Value& key) const {
  const auto found = index_.find(hash_key(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const Value* DictData::find_text(std::string_view key) const {
  const auto found = index_.find("s" + std::string(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

Value Object::call(Interp&, Args&) {
  fail("'{}' object is not callable", type_name());
}

bool hashable(const Value& value) {
  if (value.is_dict()) return false;
  if (!value.is_list()) return true;
  return value.is_list(Flavor::tuple) && std::all_of(value.items().begin(), value.items().end(), hashable);
}

std::string hash_key(const Value& value) {
  switch (value.kind()) {
    case Kind::none: return "n";
    case Kind::undefined: return "u";
    case Kind::boolean:
    case Kind::integer: return "i" + std::to_string(value.integral());
    case Kind::real: {
      const double number = value.real();
      const bool integral = std::trunc(number) == number && std::fabs(number) < 9e18;
      return integral ? "i" + std::to_string(static_cast<int64_t>(number)) : "f" + float_text(number);
    }
    case Kind::string: return "s" + value.string();
    case Kind::object: {
      const void* address = value.address();
      return "o" + std::string(reinterpret_cast<const char*>(&address), sizeof address);
    }
    default: break;
  }
  if (!value.is_list(Flavor::tuple)) fail("unhashable type: '{}'", type_name(value));
  std::string key = "t";
  for (const Value& item : value.items()) {
    const std::string part = hash_key(item);
    key += std::to_string(part.size()) + ":" + part;
    if (key.size() > kMaxTextBytes) fail("a dictionary key is too large");
  }
  return key;
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean: return value.boolean();
    case Kind::integer: return value.integral() != 0;
    case Kind::real: return value.real() != 0;
    case Kind::string: return !value.text().empty();
    case Kind::list: return value.is_list(Flavor::generator) || !value.items().empty();
    case Kind::dict: return !value.dict()->entries().empty();
    case Kind::object: return true;
  }
  return false;
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined: return "Undefined";
    case Kind::none: return "NoneType";
    case Kind::boolean: return "bool";
    case Kind::integer: return "int";
    case Kind::real: return "float";
    case Kind::string: return "str";
    case Kind::dict: return "dict";
    case Kind::object: return value.object()->type_name();
    case Kind::list: break;
  }
  switch (value.list_data().flavor) {
    case Flavor::list: return "list";
    case Flavor::tuple: return "tuple";
    case Flavor::range: return "range";
    case Flavor::generator: return "generator";
    case Flavor::view: break;
  }
  return value.list_data().view_name;
}

void require_defined(const Value& value) {
  if (value.is_undefined()) fail("{}", value.undefined_message());
}

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char shortest[64];
  const auto end =
      std::to_chars(shortest, shortest + sizeof shortest, number, std::chars_format::scientific).ptr;
  const std::string_view scientific(shortest, static_cast<size_t>(end - shortest));
  const int exponent = std::atoi(std::string(scientific.substr(scientific.find('e') + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(scientific);
  const auto fixed_end =
      std::to_chars(shortest, shortest + sizeof shortest, number, std::chars_format::fixed).ptr;
  std::string fixed(shortest, static_cast<size_t>(fixed_end - shortest));
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

namespace {

Text repr_string(const Text& text) {
  const std::string_view bytes = text.view();
  const bool doubled = bytes.find('\'') != bytes.npos && bytes.find('"') == bytes.npos;
  const char quote = doubled ? '"' : '\'';
  Text out(std::string(1, quote));
  for (size_t at = 0, n = 0; at < bytes.size(); at += n) {
    n = char_bytes(bytes, at);
    const uint32_t code = char_code(bytes, at);
    char escaped[16] = "";
    if (code == '\n' || code == '\t' || code == '\r')
      snprintf(escaped, sizeof escaped, "\\%c", code == '\n' ? 'n' : code == '\t' ? 't' : 'r');
    else if (code == '\\' || code == static_cast<uint32_t>(quote))
      snprintf(escaped, sizeof escaped, "\\%c", static_cast<char>(code));
    else if (!is_printable(code))
      snprintf(escaped, sizeof escaped,
               code < 0x100     ? "\\x%02x"
               : code < 0x10000 ? "\\u%04x"
                                : "\\U%08x",
               code);
    if (escaped[0])
      out.append(escaped, text.origin_at(at));
    else
      out.append(text, at, n);
  }
  out.append(std::string(1, quote));
  return out;
}

Text repr_items(const std::vector<Value>& items, const char* open, const char* close) {
  Text out(open);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ");
    out.append(repr(items[i]));
  }
  out.append(close);
  return out;
}

Text repr_list(const ListData& list) {
  switch (list.flavor) {
    case Flavor::list: return repr_items(list.items, "[", "]");
    case Flavor::tuple: return repr_items(list.items, "(", list.items.size() == 1 ? ",)" : ")");
    case Flavor::generator: return "<generator object>";
    case Flavor::view: return repr_items(list.items, (list.view_name + "([").c_str(), "])");
    case Flavor::range: break;
  }
  const int64_t first = list.items.empty() ? 0 : list.items[0].integral();
  const int64_t step = list.items.size() < 2 ? 1 : list.items[1].integral() - first;
  const int64_t end = list.items.empty() ? 0 : list.items.back().integral() + step;
  std::string out = "range(" + std::to_string(first) + ", " + std::to_string(end);
  return Text(out + (step == 1 ? ")" : ", " + std::to_string(step) + ")"));
}

Text repr_dict(const DictData& dict) {
  Text out("{");
  for (const auto& [key, value] : dict.entries()) {
    if (out.size() > 1) out.append(", ");
    out.append(repr(key));
    out.append(": ");
    out.append(repr(value));
  }
  out.append("}");
  return out;
}

}  // namespace

Text repr(const Value& value) {
  switch (value.kind()) {
    case Kind::string: return repr_string(value.text());
    case Kind::undefined: return "Undefined";
    default: return to_text(value);
  }
}

Text to_text(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined: return "";
    case Kind::none: return "None";
    case Kind::boolean: return value.boolean() ? "True" : "False";
    case Kind::integer: return Text(std::to_string(value.integral()));
    case Kind::real: return Text(float_text(value.real()));
    case Kind::string: return value.text();
    case Kind::list: return repr_list(value.list_data());
    case Kind::dict: return repr_dict(*value.dict());
    case Kind::object: break;
  }
  return Text("<" + value.object()->type_name() + ">");
}

namespace {

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
}

bool equal_dicts(const DictData& a, const DictData& b) {
  if (a.entries().size() != b.entries().size()) return false;
  return std::all_of(a.entries().begin(), a.entries().end(), [&b](const DictData::Entry& entry) {
    const Value* other = b.find(entry.first);
    return other && equal(entry.second, *other);
  });
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integral() == b.integral();
    return a.number() == b.number();
  }
  if (a.kind() != b.kind()) return false;
  if (a.address() && a.address() == b.address()) return true;
  switch (a.kind()) {
    case Kind::string: return a.string() == b.string();
    case Kind::dict: return equal_dicts(*a.dict(), *b.dict());
    case Kind::list:
      return a.list_data().flavor == b.list_data().flavor && !a.is_list(Flavor::generator) &&
             equal_items(a.items(), b.items());
    case Kind::object: return false;
    default: return true;  // None, Undefined
  }
}

int compare(const Value& a, const Value& b, const char* op) {
  require_defined(a);
  require_defined(b);
  if (a.is_integral() && b.is_integral())
    return a.integral() < b.integral() ? -1 : a.integral() > b.integral();
  if (a.is_number() && b.is_number()) return a.number() < b.number() ? -1 : a.number() > b.number();
  if (a.is_string() && b.is_string()) return a.string().compare(b.string());
  const bool sequences = a.is_list() && b.is_list() && a.list_data().flavor == b.list_data().flavor &&
                         (a.is_list(Flavor::list) || a.is_list(Flavor::tuple));
  if (!sequences) {
    fail("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b));
  }
  const auto &left = a.items(), &right = b.items();
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (!equal(left[i], right[i])) return compare(left[i], right[i], op);
  }
  return left.size() < right.size() ? -1 : left.size() > right.size();
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is_list() || value.is_dict();
}

std::vector<Value> iterate(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::undefined: break;
    case Kind::string: {
      const Text& text = value.text();
      if (text.size() > kMaxPieces) fail("a text of {} bytes is too long to iterate over", text.size());
      for (size_t at = 0, n = 0; at < text.size(); at += n) {
        n = char_bytes(text.view(), at);
        items.emplace_back(text.substr(at, n));
      }
      break;
    }
    case Kind::dict:
      for (const auto& entry : value.dict()->entries()) items.push_back(entry.first);
      break;
    case Kind::list: {
      const ListData& list = value.list_data();
      items.assign(list.items.begin() + list.n_read, list.items.end());
      if (list.flavor == Flavor::generator) list.n_read = list.items.size();
      break;
    }
    default: fail("'{}' object is not iterable", type_name(value));
  }
  return items;
}

size_t length(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined: return 0;
    case Kind::string: return count_chars(value.string());
    case Kind::dict: return value.dict()->entries().size();
    case Kind::list:
      if (!value.is_list(Flavor::generator)) return value.items().size();
      break;
    default: break;
  }
  fail("object of type '{}' has no len()", type_name(value));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    require_defined(item);
    if (!item.is_string()) {
      fail("'in <string>' requires string as left operand, not {}", type_name(item));
    }
    return find_text(container.string(), item.string()) != std::string::npos;
  }
  if (container.is_dict()) return container.dict()->find(item) != nullptr;
  if (!is_iterable(container)) fail("argument of type '{}' is not iterable", type_name(container));
  if (container.is_list() && !container.is_list(Flavor::generator)) {
    const auto& items = container.items();
    return std::any_of(items.begin(), items.end(), [&item](const Value& v) { return equal(v, item); });
  }
  const std::vector<Value> items = iterate(container);
  return std::any_of(items.begin(), items.end(), [&item](const Value& v) { return equal(v, item); });
}

}  // namespace tandem::jinja
