// A family's reference model (hf_folder.h), converted as the program converts it.
#pragma once

#include <string>

#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "tools/convert/convert.h"

namespace tandem::test {

// Writes the model into the folder, and returns the path of the GGUF file.
inline std::string convert_family(const Family& family, const TempDir& folder,
                                  tools::OutType type = tools::OutType::F32) {
  family_folder(family).write(folder.path("hf"));
  tools::ConvertOptions convert;
  convert.type = type;
  convert.n_threads = 1;
  const std::string path = folder.path("model.gguf");
  write_conversion(tools::prepare_conversion(folder.path("hf"), convert), convert, path);
  return path;
}

}  // namespace tandem::test
