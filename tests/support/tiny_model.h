// A tiny model with random weights, as data that a test can change before writing the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gguf/dtype.h"
#include "gguf/file.h"
#include "gguf/metadata.h"

namespace tandem::test {

struct TinyTensor {
  DType dtype = DType::F32;
  std::vector<int64_t> dims;    // innermost first
  std::vector<std::byte> data;  // rows of the dtype
};

struct TinyModel {
  Metadata metadata{"tiny"};
  std::map<std::string, TinyTensor> tensors;

  // Adds or replaces a tensor of random values (norms near 1), quantized to the dtype.
  void add(const std::string& name, DType dtype, std::vector<int64_t> dims, uint64_t seed);
  void write(const std::string& path) const;
};

struct TinyShape {
  int64_t n_embd = 64, n_layer = 2, n_head = 4, n_head_kv = 2, n_ff = 96, n_vocab = 300;
  int64_t n_expert = 0, n_expert_used = 0;
  bool tied = false;
  DType dtype = DType::F32;  // of the matrices
};

// Reads a file into a TinyModel. The metadata refers to the file's memory, which must outlive it.
TinyModel read_model(const GgufFile& file);

// Architecture llama with a SentencePiece vocabulary: <unk> <s> </s>, 256 byte tokens, then letters.
TinyModel tiny_llama(const TinyShape& shape = {}, uint64_t seed = 1);

// Adds a chat template with each turn between <s> and </s>, both control tokens.
void add_chat_template(TinyModel& model);

}  // namespace tandem::test
