// Model: a model file opened for running: metadata, vocabulary, weights in place in the mapping,
// architecture. Immutable after loading; sessions and threads may share it. It must outlive the sessions made
// from it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/disk_reader.h"
#include "engine/options.h"
#include "gguf/file.h"
#include "model/stage.h"
#include "text/vocab.h"

namespace tandem {

class Model {
 public:
  // Throws Error(bad_file | io | out_of_memory | usage) naming file and tensor, key or offset.
  static std::unique_ptr<Model> load(const ModelOptions& options);
  static std::unique_ptr<Model> load(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const GgufFile& file() const { return file_; }
  const Hparams& hparams() const { return architecture_->hparams(); }
  const Architecture& architecture() const { return *architecture_; }
  const Vocab& vocab() const { return *vocab_; }
  const std::deque<Weight>& weights() const { return stage_ ? stage_->weights() : weights_->weights(); }

  // Makes of this model the stage with these layers, before any session: only what they need is read from now on. Reads that
  // much of the file ahead. Throws as Stage does.
  void keep_layers(LayerRange layers);
  // The layers that are kept; none: all.
  const Stage* stage() const { return stage_; }

  // True if the system may drop weights from memory and read them again: mapped and not locked.
  bool may_leave_on_disk() const { return file_.is_mapped() && !is_locked_; }
  // The files that hold the weights, for reading them past their mapping.
  std::vector<DiskFile> disk_files() const;

  int64_t n_params() const;       // elements of all weights in the file
  size_t n_weight_bytes() const;  // their bytes
  // "llama 1.1B Q4_K_M": architecture, number of weights and file type, for people.
  std::string description() const;
  // Bytes of weights that one decoded token reads: all matrices that its graph multiplies by, and one row of
  // the embedding table.
  size_t bytes_read_per_token() const;

 private:
  explicit Model(GgufFile file) : file_(std::move(file)), weights_(std::make_unique<WeightBinder>(file_)) {}

  GgufFile file_;
  bool is_locked_ = false;
  std::unique_ptr<WeightBinder> weights_;
  std::unique_ptr<Architecture> architecture_;
  const Stage* stage_ = nullptr;  // is architecture_
  std::shared_ptr<const Vocab> vocab_;
};

}  // namespace tandem
