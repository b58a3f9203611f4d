// Schemas made plain: references followed, allOf folded in, what is not supported refused. Internal to
// json_schema.
#pragma once

#include <set>

#include "sample/json_schema/parts.h"

namespace tandem::schema {

// The kinds of JSON values a plain schema allows: null, boolean, object, array, number, integer, string.
// Where it has no `type`, those that its other keywords are about.
std::vector<std::string> types_of(const Json& plain, const Place& place);

// `root` and the source outlive it. One thread.
class SchemaResolver {
 public:
  SchemaResolver(const Json& root, const GrammarSource& source) : root_(root), source_(source) {}

  // An object without $ref, allOf, nullable and annotations, only with keywords that are supported; false
  // becomes one with an empty enum. Not recursive: schemas inside stay as they are. Throws Error.
  Json flatten(const Json& schema, const Place& place);
  // What satisfies both plain schemas. Throws Error where that cannot be said.
  Json merge(const Json& a, const Json& b, const Place& place);
  // Whether no JSON that is made for one of two plain schemas satisfies the other, as far as can be seen.
  bool exclude_each_other(const Json& a, const Json& b, const Place& place);

 private:
  Json flatten(const Json& schema, const Place& place, int depth);
  const Json& referred(const Json& reference, const Place& place) const;
  void merge_properties(Json& into, const Json& a, const Json& b, const Place& place);
  void merge_keyword(Json& into, const std::string& key, const Json& value, const Place& place);
  bool excludes(const Json& made, const Json& other, const Place& place, int depth);
  bool values_differ(const Json& a, const Json& b, const Place& place, int depth);

  const Json& root_;
  const GrammarSource& source_;
  size_t n_steps_ = 0;  // against schemas that grow without end
};

// The properties a plain object schema names as required.
std::set<std::string> required_of(const Json& plain, const Place& place);
// Whether a value is of a type.
bool is_of_type(const Json& value, const std::string& type);

}  // namespace tandem::schema
