// The file types of GGUF models ("Q4_K_M") and the dtype that each tensor of such a file has: the mixes that
// llama-quantize makes, so that files of ours have the sizes and the speed people expect. Pure functions of
// their arguments; nothing is thrown.
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
  IQ4_NL = 25,
  IQ4_XS = 30,
  BF16 = 32,
  MXFP4 = 38,
};

struct FileTypeInfo {
  FileType type;
  std::string_view name;
  DType base;              // the dtype of a tensor with no rule of its own
  std::string_view about;  // one line for people
};

std::span<const FileTypeInfo> all_file_types();
const FileTypeInfo& file_type_info(FileType type);
// Case-insensitive; "Q3_K", "Q4_K" and "Q5_K" mean their medium mixes, "MXFP4_MOE" is MXFP4. nullopt when
// unknown.
std::optional<FileType> file_type_from_name(std::string_view name);

// What the mix depends on beyond the tensors.
struct MixModel {
  std::string_view arch;
  int n_layer = 0, n_head = 0, n_head_kv = 0, n_expert = 0;
  bool has_imatrix = false;                // an importance matrix steers the quantizers
  std::optional<DType> output_dtype = {};  // of a tied output, where the user has named one
};

struct MixTensor {
  std::string_view name;
  std::array<int64_t, 4> dims;       // innermost first, unused ones are 1
  DType dtype;                       // what it is kept as when it is not quantized
  std::optional<DType> forced = {};  // chosen by the user; the mix then spends nothing on it
};

enum class Mix { standard, pure };  // pure: the base dtype for every matrix, with no rule but the row length

// Matrices and stacks of matrices that take part in matrix products; not the small ones that steer them.
bool may_quantize(const MixTensor& tensor);
// The nearest dtype whose blocks fit into rows of this length: one with smaller blocks, at the last F16.
DType fit_row(DType dtype, int64_t row);

// The dtype of each tensor, in the order given: fit_row of what was forced or of what the mix says. Those
// that may not be quantized keep theirs.
std::vector<DType> quant_mix(FileType type, const MixModel& model, std::span<const MixTensor> tensors,
                             Mix mix = Mix::standard);

}  // namespace tandem::tools
