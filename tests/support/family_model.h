// A family's reference model (hf_folder.h), converted as the program converts it.
#pragma once

#include <string>

#include "engine/session.h"
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

// For comparing logits of the family of that name: several micro-batches, and a cache that rounds nothing.
inline EngineOptions family_options(const Family& family, const std::string& name) {
  EngineOptions o;
  o.context.n_ctx = family.n_ctx();
  o.context.n_ubatch = 24;
  o.context.k_dtype = o.context.v_dtype = DType::F32;
  o.context.latent_form = form_of(name);
  o.context.n_deferred = family.n_deferred();
  return o;
}

}  // namespace tandem::test
