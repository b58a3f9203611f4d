// Where the lines of a chat come from: a LineEditor, in this process or in the helper outside of the sandbox.
//
// The helper edits the line, keeps the history and completes paths, because a confined program can do none of these. So it
// knows itself what the user typed, and opens and writes exactly the files that commands in typed lines name: a program
// taken over by a model cannot ask for others.
#pragma once

#include <memory>
#include <string>

#include "sandbox/file_helper.h"
#include "tools/chat/line_editor.h"

namespace tandem::tools {

class TypedLines {
 public:
  virtual ~TypedLines() = default;
  // As LineEditor::read().
  virtual LineEditor::Line read(const std::string& initial) = 0;
};

// In this process.
std::unique_ptr<TypedLines> typed_here(LineEditorOptions options);

// In the helper, which was started with helper_for_typing(); owns its side of the conversation until it is destroyed, when
// the terminal is as it was before. Throws what LineEditor throws.
std::unique_ptr<TypedLines> typed_outside(std::shared_ptr<sandbox::FileHelper> helper, bool color,
                                          bool simple);

// What the helper does besides writing files.
sandbox::HelperWork helper_for_typing();

}  // namespace tandem::tools
