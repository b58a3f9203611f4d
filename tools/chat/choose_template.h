// Chooses the chat template of a conversation.
#pragma once

#include <string>

#include "engine/model.h"
#include "text/chat_template.h"

namespace tandem::tools {

// `given` is the value of --chat-template: a built-in name, a file, or the template itself. If it is empty,
// returns the model's own template, or ChatML with a warning. Throws Error(usage | io | bad_file).
ChatTemplate choose_template(const Model& model, const std::string& given);

}  // namespace tandem::tools
