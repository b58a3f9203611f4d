#include "capi/chat_template.h"

#include "base/error.h"
#include "text/builtin_templates.h"

namespace tandem::capi {

ChatTemplate chosen_template(const Model& model, const std::string& chosen) {
  if (chosen.empty()) {
    const ModelTemplate own = read_model_template(model.file());
    if (!own.text.empty()) return ChatTemplate(own.text, model.path() + ": chat template");
    throw_error(ErrorCode::usage, "{}: no chat template; chat_template=chatml is a common one", model.path());
  }
  if (const BuiltinTemplate* builtin = find_builtin_template(chosen)) {
    return ChatTemplate(builtin->text, "chat template " + chosen);
  }
  if (chosen.find("{{") != chosen.npos || chosen.find("{%") != chosen.npos)
    return ChatTemplate(chosen, "chat_template");
  std::string known;
  for (const BuiltinTemplate& t : builtin_templates())
    known += (known.empty() ? "" : ", ") + std::string(t.name);
  throw_error(ErrorCode::usage, "chat_template: '{}' is not a Jinja template and none of {}",
              printable(chosen), known);
}

}  // namespace tandem::capi
