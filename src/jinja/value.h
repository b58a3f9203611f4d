// Value: a value of the template language: Python's None, bool, int, float, str, list, tuple, dict, and
// objects.
//
// Cheap to copy: large data is shared and immutable, except for the state of a few objects. Containers track
// their nesting and the cost of a walk (weight), and fail beyond kMaxNesting and kMaxWeight, so recursion
// over them, and their destruction, is bounded; each reference to a list counts as a list. Not synchronized:
// a value belongs to one render. Throws Failure with Python's messages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/text.h"

namespace tandem::jinja {

class Interp;
class Value;
struct ListData;
class DictData;
class Object;

inline constexpr size_t kMaxNesting = 100;
inline constexpr size_t kMaxWeight = size_t{4} << 20;
inline constexpr size_t kMaxPieces = size_t{1} << 20;  // elements that one text may be split into

// Size of a value.
struct Extent {
  size_t nesting = 0, weight = 1;
  void include(const Value& inner);  // fails beyond the limits
};

struct Missing {};  // an argument that was not given
struct None {};
// The result of looking up an unknown name or attribute. Prints as nothing; using it fails with `message`.
struct Undefined {
  std::shared_ptr<const std::string> message;
};

// In the order of Value's alternatives.
enum class Kind { missing, undefined, none, boolean, integer, real, string, list, dict, object };

// Kinds of sequences. A generator is the result of a lazy filter: read once, no length, no subscripts.
enum class Flavor { list, tuple, range, generator, view };

class Value {
 public:
  Value() : data_(Missing{}) {}
  Value(None none) : data_(none) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool truth) : data_(truth) {}
  Value(int64_t number) : data_(number) {}
  Value(double number) : data_(number) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(std::string_view text) : Value(Text(text)) {}
  Value(const std::string& text) : Value(Text(text)) {}
  Value(const char* text) : Value(Text(text)) {}
  Value(std::shared_ptr<const ListData> list) : data_(std::move(list)) {}
  Value(std::shared_ptr<const DictData> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  static Value list(std::vector<Value> items, Flavor flavor = Flavor::list);
  static Value tuple(std::vector<Value> items) { return list(std::move(items), Flavor::tuple); }
  static Value undefined(std::string message);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind_asked) const { return kind() == kind_asked; }
  bool is_missing() const { return is(Kind::missing); }
  bool is_undefined() const { return is(Kind::undefined); }
  bool is_none() const { return is(Kind::none); }
  bool is_string() const { return is(Kind::string); }
  bool is_dict() const { return is(Kind::dict); }
  bool is_list() const { return is(Kind::list); }  // any flavor
  bool is_list(Flavor flavor) const;
  bool is_number() const { return is(Kind::integer) || is(Kind::real) || is(Kind::boolean); }
  bool is_integral() const { return is(Kind::integer) || is(Kind::boolean); }

  // The value must be of that kind; otherwise std::bad_variant_access, a bug.
  bool boolean() const { return std::get<bool>(data_); }
  double real() const { return std::get<double>(data_); }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& string() const { return text().bytes(); }
  const ListData& list_data() const { return *std::get<std::shared_ptr<const ListData>>(data_); }
  const std::vector<Value>& items() const;
  const std::shared_ptr<const DictData>& dict() const {
    return std::get<std::shared_ptr<const DictData>>(data_);
  }
  const std::shared_ptr<Object>& object() const { return std::get<std::shared_ptr<Object>>(data_); }
  const std::string& undefined_message() const { return *std::get<Undefined>(data_).message; }

  int64_t integral() const { return is(Kind::boolean) ? boolean() : std::get<int64_t>(data_); }
  double number() const { return is(Kind::real) ? real() : static_cast<double>(integral()); }
  template <class T>
  std::shared_ptr<T> as() const {  // null if it is not a T
    return is(Kind::object) ? std::dynamic_pointer_cast<T>(object()) : nullptr;
  }
  // Identity of shared data; null for other kinds.
  const void* address() const;

 private:
  std::variant<Missing, Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const ListData>, std::shared_ptr<const DictData>, std::shared_ptr<Object>>
      data_;
};

struct ListData {
  std::vector<Value> items;
  Flavor flavor = Flavor::list;
  Extent extent = {1, 1};
  mutable size_t n_read = 0;  // generators
  std::string view_name;      // views: "dict_keys"
};

// Keys are hashable values: strings, numbers, None, tuples of them. Keeps insertion order.
class DictData {
 public:
  using Entry = std::pair<Value, Value>;

  void set(const Value& key, Value value);
  const Value* find(const Value& key) const;
  const Value* find_text(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  const Extent& extent() const { return extent_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;
  Extent extent_ = {1, 1};
};

// The arguments of a call.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

// Base of functions, macros, namespaces, loops.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;  // as in Python's errors
  virtual std::optional<Value> attribute(Interp&, const std::string&) { return std::nullopt; }
  virtual bool callable() const { return false; }
  virtual Value call(Interp&, Args&);
  virtual Extent extent() const { return {}; }
  virtual void drop() {}  // releases references that could form a cycle
};

bool truth(const Value& value);
std::string type_name(const Value& value);
// Fails for an undefined value.
void require_defined(const Value& value);
Text to_text(const Value& value);  // str()
Text repr(const Value& value);
std::string float_text(double number);  // as Python prints it
bool equal(const Value& a, const Value& b);
// Returns a negative number, zero or a positive number. `op` appears in the error: "<".
int compare(const Value& a, const Value& b, const char* op);
// Returns a string that is equal for dictionary keys that Python considers equal.
std::string hash_key(const Value& value);
bool hashable(const Value& value);
// Returns the elements of any iterable; consumes a generator.
std::vector<Value> iterate(const Value& value);
bool is_iterable(const Value& value);
size_t length(const Value& value);
bool contains(const Value& container, const Value& item);
Extent extent(const Value& value);

}  // namespace tandem::jinja
