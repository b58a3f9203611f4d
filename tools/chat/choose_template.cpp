#include "tools/chat/choose_template.h"

#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "text/builtin_templates.h"
#include "tools/chat/files.h"

namespace tandem::tools {
namespace {

// `text` is a built-in name, a file, or the template itself.
ChatTemplate given_template(const std::string& text) {
  if (const BuiltinTemplate* builtin = find_builtin_template(text)) {
    return ChatTemplate(builtin->text, "chat template " + text);
  }
  if (text.find("{{") != text.npos || text.find("{%") != text.npos)
    return ChatTemplate(text, "--chat-template");
  struct stat info {};
  if (stat(text.c_str(), &info) == 0) return ChatTemplate(read_message_file(text), text);
  std::string known;
  for (const BuiltinTemplate& t : builtin_templates())
    known += (known.empty() ? "" : ", ") + std::string(t.name);
  throw_error(ErrorCode::usage, "--chat-template: '{}' is not a file and not one of {}", printable(text),
              known);
}

}  // namespace

ChatTemplate choose_template(const Model& model, const std::string& given) {
  if (!given.empty()) return given_template(given);
  const ModelTemplate own = read_model_template(model.file());
  if (!own.text.empty()) return ChatTemplate(own.text, model.path() + ": chat template");
  log_warning("{}: no chat template, using {} (--chat-template sets another)", model.path(),
              kDefaultTemplate);
  return ChatTemplate(find_builtin_template(kDefaultTemplate)->text, "chat template chatml");
}

}  // namespace tandem::tools
