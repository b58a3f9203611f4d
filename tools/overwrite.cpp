#include "tools/overwrite.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/open_file.h"
#include "engine/session_file.h"
#include "gguf/parse.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/perplexity/base_logits.h"

namespace tandem::tools {
namespace {

bool is_regular_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

std::string start_of(const std::string& path, size_t n_bytes) {
  const int fd = open_for_reading(path, O_NONBLOCK);
  if (fd < 0) return "";
  std::string start(n_bytes, '\0');
  ssize_t n;
  do n = pread(fd, start.data(), n_bytes, 0);
  while (n < 0 && errno == EINTR);
  close(fd);
  start.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return start;
}

// By the metadata, so that any part of a split model counts as one.
FileKind kind_of_gguf(const std::string& path) {
  constexpr std::string_view kOtherArchitectures[] = {"clip",
                                                      "controlvector"};  // before general.type existed
  const MappedFile file = MappedFile::open(path, {.prefetch = false, .metadata_only = true});
  const ParsedGguf gguf = parse_gguf(file.bytes(), path);
  const auto architecture = gguf.metadata.get_or<std::string>("general.architecture", "");
  const auto type = gguf.metadata.get_or<std::string>("general.type", "");
  if (architecture == kSessionArchitecture) {
    const bool has_transcript = !gguf.metadata.get_or<std::string_view>("session.transcript", "").empty();
    return has_transcript ? FileKind::session : FileKind::prompt_cache;
  }
  const bool has_sums = std::any_of(gguf.tensors.begin(), gguf.tensors.end(),
                                    [](const TensorInfo& t) { return t.name.ends_with(kImatrixSums); });
  if (type == "imatrix" || (type.empty() && has_sums)) return FileKind::imatrix;
  if (!type.empty() && type != "model") return FileKind::other;
  const bool other =
      std::count(std::begin(kOtherArchitectures), std::end(kOtherArchitectures), architecture) > 0;
  const bool later_part = gguf.metadata.get_or<uint16_t>("split.no", 0) > 0;  // has no architecture
  return (architecture.empty() && !later_part) || other ? FileKind::other : FileKind::model;
}

// The old format starts with a number, so only reading it all shows that it is one.
bool is_old_imatrix(const std::string& path) {
  try {
    read_imatrix_sums(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

const char* name_of(FileKind kind) {
  switch (kind) {
    case FileKind::model: return "a GGUF model";
    case FileKind::imatrix: return "an importance matrix";
    case FileKind::logits: return "a file of saved logits";
    case FileKind::session: return "a saved conversation";
    case FileKind::prompt_cache: return "a prompt cache";
    case FileKind::text: return "a text file";
    case FileKind::empty:
    case FileKind::other: break;
  }
  return "an empty file";
}

}  // namespace

void refuse_to_overwrite(const std::string& input, std::span<const std::string> outputs) {
  for (const std::string& output : outputs) {
    std::error_code no_such_file;
    if (!std::filesystem::equivalent(input, output, no_such_file)) continue;
    throw_error(ErrorCode::usage, "{}: the output is the input file ({}); write to another file", output,
                input);
  }
}

void refuse_to_overwrite(const GgufFile& input, std::span<const std::string> outputs) {
  for (size_t part = 0; part < input.n_parts(); ++part) {
    refuse_to_overwrite(input.part_path(static_cast<int>(part)), outputs);
  }
}

FileKind kind_of(const std::string& path) {
  constexpr size_t kStartBytes = 4096;
  if (!is_regular_file(path)) return FileKind::other;
  std::error_code error;
  if (std::filesystem::file_size(path, error) == 0) return FileKind::empty;
  const std::string start = start_of(path, kStartBytes);
  if (start.empty()) return FileKind::other;  // it cannot be read
  try {
    if (start.starts_with("GGUF")) return kind_of_gguf(path);
  } catch (const Error&) {
    return FileKind::other;
  }
  if (start.starts_with(kBaseLogitsMagic)) return FileKind::logits;
  if (start.find('\0') == start.npos) return FileKind::text;
  return is_old_imatrix(path) ? FileKind::imatrix : FileKind::other;
}

void refuse_other_kinds(FileKind kind, std::span<const std::string> outputs) {
  for (const std::string& output : outputs) {
    if (!is_regular_file(output)) continue;
    const FileKind found = kind_of(output);
    if (found == kind || found == FileKind::empty) continue;
    throw_error(ErrorCode::usage, "{}: exists and is not {}; write to another file", printable(output, 4096),
                name_of(kind));
  }
}

void check_log_file(const std::string& path) {
  constexpr std::string_view kStart = "tandem: ";  // of every line of a log
  if (!is_regular_file(path)) return;
  const std::string start = start_of(path, kStart.size());
  if (start.empty() || start == kStart) return;
  throw_error(ErrorCode::usage, "{}: exists and is not a log of this program; log to another file",
              printable(path, 4096));
}

}  // namespace tandem::tools
