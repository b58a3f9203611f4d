#include "tools/convert/checkpoint.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "tools/convert/json.h"

namespace tandem::tools {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// Multimodal models store their text model under a prefix, whose place has changed over time.
std::string without_prefix(const std::string& name) {
  for (const std::string_view prefix : {"model.language_model.", "language_model.model."}) {
    if (name.starts_with(prefix)) return "model." + name.substr(prefix.size());
  }
  constexpr std::string_view kOuter = "language_model.";
  return name.starts_with(kOuter) ? name.substr(kOuter.size()) : name;
}

std::vector<std::string> safetensors_in(const std::string& folder) {
  std::vector<std::string> paths;
  for (const std::string& path : files_in(folder)) {
    if (path.ends_with(".safetensors")) paths.push_back(path);
  }
  return paths;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder) {
  const std::string index_path = folder + "/" + kIndex, single_path = folder + "/" + kSingle;
  if (file_exists(index_path)) {
    open_shards(folder, index_path);
  } else if (file_exists(single_path)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single_path));
  } else {
    for (const std::string& path : safetensors_in(folder))
      files_.push_back(std::make_unique<SafetensorsFile>(path));
  }
  if (files_.empty()) {
    throw_error(ErrorCode::bad_file, "{}: found no weights, needed {}, {} or other *.safetensors", folder,
                kSingle, kIndex);
  }
  for (const auto& file : files_) {
    for (const auto& [name, tensor] : file->tensors()) add(tensor);
  }
}

void Checkpoint::open_shards(const std::string& folder, const std::string& index_path) {
  const JsonObject index = JsonObject::read(index_path);
  const auto map = index.object("weight_map");
  if (!map) index.fail("weight_map", "nothing", "an object of tensor names and files");
  std::map<std::string, std::vector<std::string>> names_of;
  for (const auto& [name, shard] : map->json().items()) {
    if (!shard.is_string()) map->fail(name, short_json(shard), "a file name");
    const std::string file = shard.get<std::string>();
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..") {
      map->fail(name, short_json(shard), "a file name in the same folder");
    }
    names_of[file].push_back(name);
  }
  for (const auto& [shard, names] : names_of) {
    const std::string path = folder + "/" + shard;
    if (!file_exists(path)) {
      throw_error(ErrorCode::bad_file, "{}: shard {} is missing, needed for {} tensors, such as {}",
                  index_path, printable(shard), names.size(), printable(names.front()));
    }
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const std::string& name : names) {
      if (files_.back()->tensors().contains(name)) continue;
      throw_error(ErrorCode::bad_file, "{}: tensor {} is missing, but the index {} lists it here", path,
                  printable(name), index_path);
    }
  }
}

void Checkpoint::add(const SourceTensor& tensor) {
  const auto [it, added] = tensors_.emplace(without_prefix(tensor.name), &tensor);
  if (added) return;
  throw_error(ErrorCode::bad_file, "{}: tensor {} is also in {}, needed each tensor once",
              tensor.file->path(), printable(tensor.name), it->second->file->path());
}

const SourceTensor* Checkpoint::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

const SourceTensor* Checkpoint::find_stored(const std::string& name) const {
  const SourceTensor* found = find(name);
  return found ? found : find(name + "_packed");
}

}  // namespace tandem::tools
