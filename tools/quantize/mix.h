// The file types of GGUF models ("Q4_K_M") and the dtype of each tensor in such a file: the same mixes as
// llama-quantize, so that files have the size and speed that people expect. Pure functions; nothing is
// thrown.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/dtype.h"

namespace tandem::tools {

// The numbers are those of general.file_type.
enum class FileType : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q8_0 = 7,
  Q5_0 = 8,
  Q5_1 = 9,
  Q2_K = 10,
  Q3_K_S = 11,
  Q3_K_M = 12,
  Q3_K_L = 13,
  Q4_K_S = 14,
  Q4_K_M = 15,
  Q5_K_S = 16,
  Q5_K_M = 17,
  Q6_K = 18,
  IQ2_XXS = 19,
  IQ2_XS = 20,
  Q2_K_S = 21,
  IQ3_XS = 22,
  IQ3_XXS = 23,
  IQ1_S = 24,
  IQ4_NL = 25,
  IQ3_S = 26,
  IQ3_M = 27,
  IQ2_S = 28,
  IQ2_M = 29,
  IQ4_XS = 30,
  IQ1_M = 31,
  BF16 = 32,
  TQ1_0 = 36,
  TQ2_0 = 37,
  MXFP4 = 38,
  NVFP4 = 39,
  Q1_0 = 40,
};

struct FileTypeInfo {
  FileType type;
  std::string_view name;
  DType base;              // dtype of tensors without a rule of their own
  std::string_view about;  // one-line description
};

std::span<const FileTypeInfo> all_file_types();
const FileTypeInfo& file_type_info(FileType type);
// Types of so few bits that they need an importance matrix to be of use.
bool wants_importance(FileType type);
// Case-insensitive. "Q3_K", "Q4_K" and "Q5_K" mean their medium mixes, "MXFP4_MOE" means MXFP4. nullopt for
// an unknown name.
std::optional<FileType> file_type_from_name(std::string_view name);

// Properties of the model that the mix depends on.
struct MixModel {
  std::string_view arch;
  int n_layer = 0, n_head = 0, n_head_kv = 0, n_expert = 0;
  bool has_imatrix = false;                // quantizing with an importance matrix
  std::optional<DType> output_dtype = {};  // of a tied output, if the user has set it
};

struct MixTensor {
  std::string_view name;
  std::array<int64_t, 4> dims;       // innermost first, unused ones are 1
  DType dtype;                       // kept if the tensor is not quantized
  std::optional<DType> forced = {};  // set by the user; such tensors do not count in the mix
};

enum class Mix { standard, pure };  // pure: the base dtype for every matrix; only row lengths can change it

// Returns whether a tensor is a matrix (or a stack of them) used in products, not a small one like a router.
bool may_quantize(const MixTensor& tensor);
bool is_quantized(DType dtype);
// Returns the nearest dtype whose blocks divide rows of this length: one with smaller blocks, finally F16.
DType fit_row(DType dtype, int64_t row);

// Returns the dtype of each tensor, in the given order: fit_row of the forced dtype or of the mix's choice.
// Tensors that may not be quantized keep theirs.
std::vector<DType> quant_mix(FileType type, const MixModel& model, std::span<const MixTensor> tensors,
                             Mix mix = Mix::standard);

}  // namespace tandem::tools
