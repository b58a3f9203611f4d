// The tokens of a whole conversation, for programs that keep the messages themselves. Conversation keeps them
// and computes only what is new.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "engine/model.h"
#include "text/chat_template.h"

namespace tandem {

// `messages`: an array of objects such as {"role": "user", "content": "Hello"}. Text of messages never becomes
// a control token. Throws what the template throws.
std::vector<int32_t> chat_prompt(const Model& model, const ChatTemplate& chat_template,
                                 const nlohmann::ordered_json& messages);

}  // namespace tandem
