// Flattens schemas: follows references, folds in allOf, rejects unsupported keywords. Internal to
// json_schema.
#pragma once

#include <set>

#include "sample/json_schema/common.h"

namespace tandem::schema {

// Returns the types of JSON values that a plain schema allows: null, boolean, object, array, number, integer,
// string. Without `type`, those that its other keywords apply to.
std::vector<std::string> types_of(const Json& plain, const Place& place);

// `root` must outlive it. One thread.
class SchemaResolver {
 public:
  explicit SchemaResolver(const Json& root) : root_(root) {}

  // Returns an object without $ref, allOf, nullable and annotations, with supported keywords only; false
  // becomes an empty enum. Not recursive: nested schemas stay as they are. Throws Error.
  Json flatten(const Json& schema, const Place& place);
  // Returns a schema that both plain schemas require. Throws Error if it cannot be expressed.
  Json merge(const Json& a, const Json& b, const Place& place);
  // Returns whether no JSON generated for one of the plain schemas satisfies the other, as far as can be
  // decided.
  bool exclude_each_other(const Json& a, const Json& b, const Place& place);

 private:
  Json flatten(const Json& schema, const Place& place, int depth);
  const Json& referred(const Json& reference, const Place& place) const;
  void merge_properties(Json& into, const Json& a, const Json& b, const Place& place);
  void merge_keyword(Json& into, const std::string& key, const Json& value, const Place& place);
  bool excludes(const Json& made, const Json& other, const Place& place, int depth);
  bool values_differ(const Json& a, const Json& b, const Place& place, int depth);

  const Json& root_;
  size_t n_expansions_ = 0;  // guards against schemas that expand without end
};

// Returns the names that a plain object schema requires.
std::set<std::string> required_of(const Json& plain, const Place& place);
// Returns whether a value has a type.
bool is_of_type(const Json& value, const std::string& type);

}  // namespace tandem::schema
