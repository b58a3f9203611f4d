// Quantizes a GGUF model to another file type: prepare_quantize chooses each tensor's dtype, write_quantized
// converts tensor by tensor, a few megabytes of rows at a time.
//
// Threads: n_threads share the rows of a tensor; call from one thread. Memory: a batch of rows in and out,
// whatever the size of the model. The output gets its name only when it is complete. Throws Error(bad_file)
// with the tensor for weights that are NaN, infinite, too large for F16, or already quantized without
// allow_requantize; Error(io) when writing fails; Error(interrupted) after Ctrl-C; Error(usage) for
// contradictory options.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/regex.h"
#include "gguf/file.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/quantize/mix.h"

namespace tandem::tools {

struct DTypeRule {
  std::string pattern;  // as the user wrote it
  Regex regex;          // searched in tensor names
  DType dtype;
};

struct QuantizeOptions {
  std::optional<FileType> type;  // nullopt: every tensor keeps its dtype (COPY)
  Mix mix = Mix::standard;
  std::optional<DType> output_dtype, token_embd_dtype;
  std::vector<DTypeRule> rules;  // the first match wins
  bool leave_output = false;      // output.weight keeps its dtype
  bool allow_requantize = false;
  bool keep_split = false;  // as many parts as the input has, with the same tensors
  int n_threads = 1;
};

struct QuantizedTensor {
  const TensorInfo* source;
  DType dtype;
  uint64_t n_bytes;                      // in dtype
  const std::vector<float>* importance;  // [n_expert or 1, dims[0]], or nullptr
  std::string scale;  // name of a tensor behind it: what each matrix is divided by before it is quantized, [n_expert or 1]; or empty
};

struct QuantizeJob {
  std::vector<QuantizedTensor> tensors;  // in file order
  uint64_t n_bytes_in = 0, n_bytes_out = 0;
  int64_t n_weights = 0;
  size_t n_fallback = 0;  // tensors whose rows the type's blocks do not divide
};

// `imatrix` may be nullptr. The result refers to file and imatrix.
QuantizeJob prepare_quantize(const GgufFile& file, const QuantizeOptions& options,
                             const ImportanceMatrix* imatrix);

struct QuantizeProgress {
  size_t index;  // of the tensor in the job
  bool tensor_done;
  int64_t n_weights_done;  // of all tensors
};

// Returns the files that write_quantized makes: `path`, or one per part.
std::vector<std::string> output_paths(const GgufFile& file, const QuantizeOptions& options,
                                      const std::string& path);
// Refuses to overwrite the input, by whatever path. Calls `progress`, if set, after every batch.
void write_quantized(const GgufFile& file, const QuantizeJob& job, const QuantizeOptions& options,
                     const ImportanceMatrix* imatrix, const std::string& path,
                     const std::function<void(QuantizeProgress)>& progress = {});

}  // namespace tandem::tools
