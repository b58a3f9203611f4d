// Which files of a repository make up a model, and which of its models is meant.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

struct RepoFile {
  std::string path;  // in the repository, with slashes
  uint64_t n_bytes = 0;
  std::string object_id;  // hash of the content (digest.h)
};

// A GGUF file, or all parts of a split one.
struct RepoModel {
  std::string quant;            // "Q4_K_M", "UD-Q4_K_XL"; "" if the name says none
  std::vector<RepoFile> files;  // the parts in order
  size_t n_parts = 1;           // as the name says; more than there are files: incomplete

  bool complete() const { return files.size() == n_parts; }
  uint64_t n_bytes() const;
  const std::string& path() const { return files.front().path; }  // of the first part
};

// All models among the files, ordered by name. Leaves out projectors (mmproj), importance matrices and other files that
// go with a model.
std::vector<RepoModel> models_in(const std::vector<RepoFile>& files);

// The quantization that a file's path names, in upper case: at the end of its name, or as its folder.
std::string quant_of(std::string_view path);

struct Choice {
  const RepoModel* model = nullptr;
  std::string why;  // one line for the user, if the choice was not the obvious one; or empty
};

// The model with this quantization (case does not matter); without one Q4_K_M, or the nearest to it. `file` names a file
// instead. Throws Error(usage) that lists what there is, Error(io) if there is no model or a part is missing; both start
// with `repo`.
Choice choose_model(const std::vector<RepoModel>& models, const std::string& repo, const std::string& quant,
                    const std::string& file);

}  // namespace tandem::tools
