// A Hugging Face folder into a GGUF file: config.json says which architecture it is, the checkpoint's tensors
// are planned (plan_conversion) and then stream through in batches of rows (write_conversion).
//
// Memory: a few megabytes of rows, whatever the size of the model. The file appears under its name only when
// it is complete. Threads: call from one; the work is shared by n_threads. Throws Error(bad_file) naming
// file, tensor or key for folders that are no model this program knows, Error(io) when reading or writing
// fails, Error(interrupted) after Ctrl-C, Error(usage) when the output is one of the inputs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gguf/metadata.h"
#include "tools/convert/checkpoint.h"
#include "tools/convert/tensor_plan.h"

namespace tandem::tools {

struct ConvertOptions {
  OutType type = OutType::automatic;
  bool vocab_only = false;
  std::string name;        // general.name; the folder's if empty
  std::string pre;         // the pre-tokenizer; recognized if empty
  uint64_t max_bytes = 0;  // of a part's tensors; 0: one file
  int n_threads = 1;
};

struct Conversion {
  std::string folder;
  std::unique_ptr<Checkpoint> checkpoint;  // none for a vocabulary alone
  Metadata metadata;
  std::vector<TensorPlan> tensors;  // in the order of the file

  uint64_t n_bytes() const;
};

Conversion plan_conversion(const std::string& folder, const ConvertOptions& options);

struct ConvertProgress {
  size_t index;  // of the tensor in the plan
  bool tensor_done;
  uint64_t n_bytes_done;  // of all tensors
};

// Returns the files written. `progress` may be empty; it is called after every batch.
std::vector<std::string> write_conversion(const Conversion& conversion, const ConvertOptions& options,
                                          const std::string& path,
                                          const std::function<void(ConvertProgress)>& progress = {});

}  // namespace tandem::tools
