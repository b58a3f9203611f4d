// The file types of GGUF models ("Q4_K_M") and the dtype that each tensor of such a file has: the mixes that
// llama-quantize makes without an importance matrix, so that files of ours have the sizes and the speed
// people expect. Pure functions of their arguments; nothing is thrown.
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
};

struct MixTensor {
  std::string_view name;
  std::array<int64_t, 4> dims;  // innermost first, unused ones are 1
  DType dtype;                  // what it is kept as when it is not quantized
};

enum class Mix { standard, pure };  // pure: the base dtype for every matrix, with no rule but the row length

// The dtype of each tensor, in the order given. Norms, biases, routers and other small or one-dimensional
// tensors keep theirs. A row that is no multiple of a block falls back to a dtype with smaller blocks, at the
// last to F16.
std::vector<DType> quant_mix(FileType type, const MixModel& model, std::span<const MixTensor> tensors,
                             Mix mix = Mix::standard);

}  // namespace tandem::tools
