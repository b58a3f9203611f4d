// What special tokens mean, where the file does not say: roles that are known by a token's text, the tokens
// that end a generation, and the types and white-space rules that files get wrong or cannot express.
#pragma once

#include <string_view>
#include <vector>

#include "text/string_index.h"
#include "text/vocab_data.h"

namespace tandem {

// Fills the roles that data.special leaves open by well-known token texts ("<|eot_id|>", "<|fim_prefix|>",
// ...) and makes those tokens control tokens.
void find_special_roles(VocabData& data, const StringIndex& index);

// Ids of the tokens that end a generation, ascending, by role and by well-known text; makes them control
// tokens.
std::vector<int32_t> find_end_of_generation(VocabData& data, const StringIndex& index);

// The Phi-3 family swallows the white space behind its special tokens; the format has no field for that, only
// the model's name tells.
void apply_strip_rules(VocabData& data, std::string_view model_name);

}  // namespace tandem
