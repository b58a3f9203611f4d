// Converts a Hugging Face folder to a GGUF file: config.json names the architecture, prepare_conversion maps
// the checkpoint's tensors, and write_conversion streams them in batches of rows.
//
// Memory: a few megabytes of rows, whatever the size of the model. The output gets its name only when it is
// complete. Threads: call from one; n_threads share the work. Throws Error(bad_file) with file, tensor or key
// for unsupported or malformed folders, Error(io) when reading or writing fails, Error(interrupted) after
// Ctrl-C, and Error(usage) when the output is one of the folder's files.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gguf/metadata.h"
#include "tools/convert/checkpoint.h"
#include "tools/convert/out_type.h"

namespace tandem::tools {

struct ConvertOptions {
  OutType type = OutType::automatic;
  bool vocab_only = false;
  bool mtp = false;  // keep MTP layers also where other readers of the architecture's files may not know them
  std::string name;  // general.name; the folder's if empty
  std::string pre;   // the pre-tokenizer; recognized if empty
  uint64_t max_bytes = 0;  // of tensors per part; 0: one file
  int n_threads = 1;
};

// Returns the size as people name it, with two digits: 8030261248 weights are "8.0B", with 8 experts
// "8x8.0B".
std::string size_label(int64_t n_weights, int64_t n_expert);

struct Conversion {
  std::string folder;
  std::unique_ptr<Checkpoint> checkpoint;  // null with vocab_only
  Metadata metadata;
  std::vector<TensorMapping> tensors;  // in the order of the file

  uint64_t n_bytes() const;
};

Conversion prepare_conversion(const std::string& folder, const ConvertOptions& options);

struct ConvertProgress {
  size_t index;  // of the tensor in the mapping
  bool tensor_done;
  uint64_t n_bytes_done;  // of all tensors
};

// Returns the files written. Calls `progress`, if set, after every batch.
std::vector<std::string> write_conversion(const Conversion& conversion, const ConvertOptions& options,
                                          const std::string& path,
                                          const std::function<void(ConvertProgress)>& progress = {});

}  // namespace tandem::tools
