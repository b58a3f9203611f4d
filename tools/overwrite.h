// What an output may replace: never an input, and only an empty file or one of the kind that is written.
// Everything that writes a file named by the user checks it here, before any work.
//
// All functions throw Error(usage) that names the file, and leave it as it is.
#pragma once

#include <span>
#include <string>

#include "gguf/file.h"

namespace tandem::tools {

// Refuses to write an output over its input, under any name or link: a failure would leave neither file.
void refuse_to_overwrite(const std::string& input, std::span<const std::string> outputs);
void refuse_to_overwrite(const GgufFile& input, std::span<const std::string> outputs);  // checks every part

enum class FileKind {
  empty,
  model,         // GGUF, whole or a part of one
  imatrix,       // GGUF or llama.cpp's older .dat
  logits,        // perplexity --kl-divergence-base
  session,       // chat --session
  prompt_cache,  // run --prompt-cache
  text,
  other,  // also damaged files and what is not a regular file
};

// Reads the start of a file; of GGUF its metadata. Throws nothing.
FileKind kind_of(const std::string& path);

// Refuses to replace a file of another kind. Leaves what is not a regular file to OutputFile, which refuses it.
void refuse_other_kinds(FileKind kind, std::span<const std::string> outputs);

// Refuses to append a log to a file that holds something else, such as a model: it must be new, empty, a log of
// this program, or no regular file.
void check_log_file(const std::string& path);

}  // namespace tandem::tools
