// Which chat template a conversation is rendered with.
#pragma once

#include <string>

#include "engine/model.h"
#include "text/chat_template.h"

namespace tandem::tools {

// --chat-template's: a name from our table, a file, or the template itself; when empty the model's own, and
// ChatML, with a warning, where it has none. Throws Error(usage | io | bad_file).
ChatTemplate choose_template(const Model& model, const std::string& given);

}  // namespace tandem::tools
