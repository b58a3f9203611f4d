// Writes models of a given shape with random weights, to measure speed anywhere without a download.
//
// One thread and a few megabytes of memory, whatever the size of the model: tensors are made and written in
// chunks. The file gets its name only when it is complete. Throws Error(io) when writing fails, and
// Error(interrupted) after Ctrl-C.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gguf/header.h"
#include "tools/quantize/mix.h"
#include "tools/synth/shapes.h"

namespace tandem::tools {

struct SynthOptions {
  FileType type = FileType::Q4_K_M;
  Mix mix = Mix::standard;
  uint64_t seed = 1;
  double expert_skew = 0;  // of mixtures: how unequally experts are used (see expert_skew.h); 0: equally
  int max_tokens = 0;  // of the vocabulary, which then is of a kind that is made quickly; 0: as the shape's
};

struct SynthProgress {
  uint64_t n_bytes_done, n_bytes;
};

struct SynthResult {
  uint64_t n_bytes = 0;  // of tensors
  uint64_t n_parameters = 0;
  size_t n_tensors = 0;
};

// Returns what such a file has before its weights.
GgufHeader synthetic_header(const Shape& shape, const SynthOptions& options);

// The same shape, options and seed give the same bytes. Calls `progress`, if set, after every chunk.
SynthResult write_synthetic_model(const Shape& shape, const SynthOptions& options, const std::string& path,
                                  const std::function<void(SynthProgress)>& progress = {});

}  // namespace tandem::tools
