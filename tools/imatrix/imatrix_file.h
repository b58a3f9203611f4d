// Importance matrices: for every weight matrix the mean square of each column of its inputs, measured on
// sample text. Reads both formats of llama.cpp: GGUF (general.type "imatrix", tensors NAME.in_sum2 [n_mat,
// n_columns] and NAME.counts [n_mat, 1], both F32) and the older binary .dat; writes GGUF.
//
// Owns its data. Throws Error(bad_file) for anything wrong inside the file, including negative and non-finite
// numbers, and Error(io) when it cannot be read or written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

// Ends the name of every tensor of sums in GGUF.
inline constexpr std::string_view kImatrixSums = ".in_sum2";

// The contents of a file: sums over tokens, to which more can be added.
struct ImportanceSums {
  struct Entry {
    std::vector<float> sums;     // [n_mat, n_columns] of squares
    std::vector<double> counts;  // [n_mat] tokens; 0 for an expert that no token reached
  };

  std::string path;
  std::vector<std::string> datasets;
  uint32_t n_chunks = 0;                              // of text, 0: unknown
  uint32_t chunk_size = 0;                            // tokens, 0: unknown
  std::map<std::string, Entry, std::less<>> entries;  // by the name of the weight tensor

  // Adds the sums of `other`. Throws Error(bad_file) if a matrix has another shape there.
  void merge(const ImportanceSums& other);
};

// A .dat file counts chunks, not tokens; they are taken to have `chunk_size` tokens.
ImportanceSums read_imatrix_sums(const std::string& path, uint32_t chunk_size = 1);
void write_imatrix(const ImportanceSums& sums, const std::string& path);

// Means, for the quantizers.
struct ImportanceMatrix {
  std::string path;
  std::string dataset;    // empty: unknown
  uint32_t n_chunks = 0;  // of text, 0: unknown
  // By the name of the weight tensor: [n_mat, n_columns], n_mat 1 or the number of experts. Experts that the
  // text never reached have ones.
  std::map<std::string, std::vector<float>, std::less<>> entries;

  const std::vector<float>* find(std::string_view name) const;  // nullptr when absent
};

ImportanceMatrix read_imatrix(const std::string& path);

}  // namespace tandem::tools
