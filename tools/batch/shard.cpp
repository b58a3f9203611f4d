#include "tools/batch/shard.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

constexpr int32_t kMaxShards = 99999;
constexpr std::string_view kOf = "-of-";

std::optional<int64_t> number_in(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return number;
}

int64_t slurm_number(const char* name) {
  const char* text = std::getenv(name);
  const std::optional<int64_t> number = text != nullptr ? number_in(text) : std::nullopt;
  if (!number) {
    throw_error(ErrorCode::usage, "this is a task of a Slurm job array, but {} is {}; give --shard I/N or --shard off",
                name, text != nullptr ? "'" + printable(text) + "'" : "not set");
  }
  return *number;
}

// "-00003-of-00008", as the parts of a split model.
std::string suffix_of(const Shard& shard) {
  return format("-{:05}-of-{:05}", shard.number, shard.count);
}

std::optional<Shard> shard_of_suffix(std::string_view suffix) {
  const size_t of = suffix.find(kOf);
  if (!suffix.starts_with('-') || of == suffix.npos) return {};
  const auto number = number_in(suffix.substr(1, of - 1)), count = number_in(suffix.substr(of + kOf.size()));
  if (!number || !count || *count > kMaxShards || *number < 1 || *number > *count) return {};
  const Shard shard{*number, *count};
  return suffix == suffix_of(shard) ? std::optional(shard) : std::nullopt;
}

bool is_regular_or_new(const std::string& path) {
  return !file_exists(path) || std::filesystem::is_regular_file(path);
}

}  // namespace

std::string Shard::text() const {
  return format("{}/{}", number, count);
}

Shard parse_shard(const std::string& option, const std::string& text) {
  if (text == "off") return {};
  const size_t slash = text.find('/');
  if (slash == text.npos) {
    throw_error(ErrorCode::usage, "{}: found '{}', needed a shard and their number such as 3/8, or off", option,
                printable(text));
  }
  const int64_t count = parse_integer(option, text.substr(slash + 1), 1, kMaxShards);
  return {parse_integer(option, text.substr(0, slash), 1, count), count};
}

Shard slurm_shard(const std::string& output) {
  if (std::getenv("SLURM_ARRAY_TASK_ID") == nullptr) return {};
  const int64_t id = slurm_number("SLURM_ARRAY_TASK_ID"), count = slurm_number("SLURM_ARRAY_TASK_COUNT");
  const int64_t min = slurm_number("SLURM_ARRAY_TASK_MIN"), max = slurm_number("SLURM_ARRAY_TASK_MAX");
  if (count < 1 || count > kMaxShards || min < 0 || min > 1 || max - min + 1 != count || id < min || id > max) {
    throw_error(ErrorCode::usage,
                "the tasks of this Slurm job array are not numbered 1-N (found {} tasks from {} to {}); give --shard I/N "
                "or --shard off",
                count, min, max);
  }
  const Shard shard{id - min + 1, count};
  if (output == "-") return shard;
  for (const ShardFile& other : shard_files(output)) {
    if (other.shard.count == count) continue;
    throw_error(ErrorCode::usage,
                "{} is one of {} shards, but this Slurm job array has {} tasks; give --shard I/{} to answer some of "
                "those shards again, or remove them",
                printable(other.path, 4096), other.shard.count, count, other.shard.count);
  }
  return shard;
}

std::string shard_path(const std::string& output, const Shard& shard) {
  if (shard.is_whole() || output == "-" || !is_regular_or_new(output)) return output;
  const std::filesystem::path path(output);
  return (path.parent_path() / (path.stem().string() + suffix_of(shard) + path.extension().string())).string();
}

std::vector<ShardFile> shard_files(const std::string& output) {
  const std::filesystem::path path(output);
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  const std::string stem = path.stem().string(), extension = path.extension().string();
  std::vector<ShardFile> found;
  for (const std::string& file : files_in(folder)) {
    const std::string name = std::filesystem::path(file).filename().string();
    if (name.size() < stem.size() + extension.size() || !name.starts_with(stem) || !name.ends_with(extension)) continue;
    const size_t n_suffix = name.size() - stem.size() - extension.size();
    if (const auto shard = shard_of_suffix(std::string_view(name).substr(stem.size(), n_suffix))) {
      found.push_back({file, *shard});
    }
  }
  std::ranges::sort(found, {}, [](const ShardFile& file) { return file.shard.number; });
  return found;
}

}  // namespace tandem::tools
