// JSON Schema -> grammar: a GBNF grammar whose texts are all JSON that the schema accepts.
//
// By design the grammar does not produce every such JSON: properties come in the order of the schema; an
// object with `properties` has no others unless additionalProperties allows them (and an array with
// prefixItems ends there unless items allows more); numbers have at most 16 digits and a two-digit exponent;
// white space is short. Keywords without a grammar (`not`, `if`, `contains`, overlapping `oneOf`, ...) are
// rejected by name.
//
// Supported: type (also a list), nullable, properties, required, additionalProperties, items, prefixItems,
// minItems, maxItems, enum, const, anyOf, oneOf (if its branches exclude each other), allOf, $ref within the
// document, minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum, exclusiveMaximum.
#pragma once

#include <string>
#include <string_view>

#include "sample/grammar/syntax.h"

namespace tandem {

// Throws Error: "NAME: #/path/in/the/schema: message" for an unsupported schema, "NAME: not JSON: ..." for
// text that is not JSON. A schema whose JSON would never end is rejected when its grammar is compiled.
std::string json_schema_to_gbnf(std::string_view schema,
                                const GrammarSource& source = {"schema", ErrorCode::bad_file});

}  // namespace tandem
