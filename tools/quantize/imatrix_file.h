// Importance matrices: for every weight matrix the mean square of each column of its inputs, measured on
// sample text. Reads both formats of llama.cpp: GGUF (general.type "imatrix", tensors NAME.in_sum2 and
// NAME.counts) and the older binary .dat.
//
// Owns its numbers; immutable. Throws Error(bad_file) for anything wrong inside the file, a negative or
// non-finite number included, and Error(io) when it cannot be read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

struct ImportanceMatrix {
  std::string path;
  std::string dataset;    // empty: not known
  uint32_t n_chunks = 0;  // of text, 0: not known
  // By the name of the weight tensor: [n_mat, n_columns], n_mat 1 or the number of experts. An expert that
  // the text never reached has ones.
  std::map<std::string, std::vector<float>, std::less<>> entries;

  const std::vector<float>* find(std::string_view name) const;  // nullptr when absent
};

ImportanceMatrix read_imatrix(const std::string& path);

}  // namespace tandem::tools
