// The chat template that the options choose.
#pragma once

#include <string>

#include "engine/model.h"
#include "text/chat_template.h"

namespace tandem::capi {

// `chosen` is a built-in name, a template, or "" for the model's own. Throws Error(usage) if there is none.
ChatTemplate chosen_template(const Model& model, const std::string& chosen);

}  // namespace tandem::capi
