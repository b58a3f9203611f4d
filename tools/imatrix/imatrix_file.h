// Importance matrices: for every weight matrix the mean square of each column of its inputs, measured on
// sample text. Reads both formats of llama.cpp: GGUF (general.type "imatrix", tensors NAME.in_sum2
// [n_mat, n_columns] and NAME.counts [n_mat, 1], both F32) and the older binary .dat; writes the GGUF one.
//
// Owns its numbers. Throws Error(bad_file) for anything wrong inside the file, a negative or non-finite
// number included, and Error(io) when it cannot be read or written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

// What a file holds: sums over tokens, which can go on growing.
struct ImportanceSums {
  struct Entry {
    std::vector<float> sums;     // [n_mat, n_columns] of squares
    std::vector<double> counts;  // [n_mat] tokens; 0 for an expert that no token reached
  };

  std::string path;
  std::vector<std::string> datasets;
  uint32_t n_chunks = 0;                              // of text, 0: not known
  uint32_t chunk_size = 0;                            // tokens, 0: not known
  std::map<std::string, Entry, std::less<>> entries;  // by the name of the weight tensor

  // Adds what `other` saw. Throws Error(bad_file) when a matrix has another shape there.
  void merge(const ImportanceSums& other);
};

// A .dat counts chunks, not tokens: they are taken to be of `chunk_size`.
ImportanceSums read_imatrix_sums(const std::string& path, uint32_t chunk_size = 1);
void write_imatrix(const ImportanceSums& sums, const std::string& path);

// What quantizers want: means.
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
