#include "tools/split/split.h"

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"
#include "tools/options/types.h"
#include "tools/overwrite.h"

namespace tandem::tools {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;  // copied between two checks for Ctrl-C

SplitWriter make_writer(const GgufFile& file, const SplitLimits& limits, const std::string& path) {
  SplitWriter writer(path, file.alignment());
  writer.metadata() = file.metadata();
  for (const TensorInfo& tensor : file.tensors()) {
    writer.add_tensor(tensor.name, tensor.dtype, std::span(tensor.dims).first(tensor.n_dims));
  }
  writer.split(limits);
  return writer;
}

}  // namespace

uint64_t parse_split_size(const std::string& option, const std::string& text) {
  const char unit = text.empty() ? '\0' : text.back();
  if (unit != 'M' && unit != 'G') {
    throw_error(ErrorCode::usage, "{}: found \"{}\", needed a number with M or G, such as 4G", option,
                printable(text));
  }
  constexpr uint64_t kMega = 1'000'000;
  const int64_t n = parse_integer(option, text.substr(0, text.size() - 1), 1, 1'000'000'000);
  return static_cast<uint64_t>(n) * (unit == 'G' ? 1000 * kMega : kMega);
}

std::vector<SplitPart> list_parts(const GgufFile& file, const SplitLimits& limits, const std::string& path) {
  const SplitWriter writer = make_writer(file, limits, path);
  std::vector<SplitPart> parts;
  for (const std::string& name : writer.paths()) {
    const auto part = static_cast<uint32_t>(parts.size());
    parts.push_back({name, writer.n_tensors_of_part(part), writer.n_bytes_of_part(part)});
  }
  return parts;
}

void write_parts(const GgufFile& file, const SplitLimits& limits, const std::string& path,
                 const CopyProgress& progress) {
  SplitWriter writer = make_writer(file, limits, path);
  refuse_to_overwrite(file, writer.paths());
  refuse_other_kinds(FileKind::model, writer.paths());
  uint64_t n_bytes_done = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    writer.begin_tensor(tensor.name);
    for (size_t at = 0; at < tensor.n_bytes; at += kPieceBytes) {
      if (interrupted()) throw_error(ErrorCode::interrupted, "interrupted: the output is not written");
      const size_t n = std::min<size_t>(kPieceBytes, tensor.n_bytes - at);
      writer.append({tensor.data + at, n});
      n_bytes_done += n;
      if (progress) progress(tensor, n_bytes_done, false);
    }
    if (progress) progress(tensor, n_bytes_done, true);
  }
  writer.finish();
}

}  // namespace tandem::tools
