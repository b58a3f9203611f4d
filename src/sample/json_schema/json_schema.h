// JSON Schema -> grammar: a GBNF grammar all of whose texts are JSON that the schema accepts.
//
// It need not be every such JSON, and this is by choice: properties come in the order of the schema; an
// object with `properties` has no others unless additionalProperties allows them (and an array with
// prefixItems ends there unless items says more); numbers have at most 16 digits and an exponent of two;
// white space is short. What a schema says and no grammar is made for (`not`, `if`, `contains`, overlapping
// `oneOf`, ...) is refused by name.
//
// Understood: type (also a list), nullable, properties, required, additionalProperties, items, prefixItems,
// minItems, maxItems, enum, const, anyOf, oneOf (of branches that exclude each other), allOf, $ref within the
// document, minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum, exclusiveMaximum.
#pragma once

#include <string>
#include <string_view>

#include "sample/grammar/syntax.h"

namespace tandem {

// Throws Error: "NAME: #/path/in/the/schema: message" for a schema that is refused, and "NAME: not JSON: ..."
// for text that is none. A schema whose JSON would never end is refused when its grammar is compiled.
std::string json_schema_to_gbnf(std::string_view schema,
                                const GrammarSource& source = {"schema", ErrorCode::bad_file});

}  // namespace tandem
