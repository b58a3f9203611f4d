// Completes what a file says about special tokens: roles known from a token's text, the tokens that end a
// generation, and types and white-space rules that files get wrong or cannot express.
#pragma once

#include <string_view>
#include <vector>

#include "text/string_index.h"
#include "text/vocab_data.h"

namespace tandem {

// Fills the missing roles of data.special from well-known token texts ("<|eot_id|>", "<|fim_prefix|>", ...)
// and makes those tokens control tokens.
void find_special_roles(VocabData& data, const StringIndex& index);

// Returns the ids of the tokens that end a generation, ascending, found by role and by well-known text. Makes
// them control tokens.
std::vector<int32_t> find_end_of_generation(VocabData& data, const StringIndex& index);

// The special tokens of the Phi-3 family strip the white space after them. The format has no field for this,
// so the model's name decides.
void apply_strip_rules(VocabData& data, std::string_view model_name);

}  // namespace tandem
