// Architecture: one family of models. It reads its hyperparameters, binds its weights and builds its graph
// out of coarse ops; nothing above it knows any family by name. One file a family, registered in
// architectures.cpp.
#pragma once

#include <memory>

#include "graph/builder.h"
#include "kv/cache.h"
#include "model/hparams.h"
#include "model/weights.h"

namespace tandem {

class Architecture {
 public:
  virtual ~Architecture() = default;
  const Hparams& hparams() const { return hparams_; }
  // What layer `layer` caches for a token.
  virtual KvShape kv_shape(int layer) const = 0;
  // The forward pass for one shape class. Thread-safe; the graph refers to the bound weights.
  virtual Graph build(const ShapeClass& shape) const = 0;

 protected:
  Hparams hparams_;
};

// What an architecture is made from. Both outlive it.
struct ModelSource {
  const GgufFile& file;
  WeightBinder& weights;
  RopeOverrides rope;
};

// Picks by general.architecture. Throws Error(bad_file), naming the known ones when it is not among them.
std::unique_ptr<Architecture> load_architecture(const ModelSource& source);

// One in each family's file.
std::unique_ptr<Architecture> load_llama(const ModelSource& source);
std::unique_ptr<Architecture> load_mistral3(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen2(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen2moe(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen3(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen3moe(const ModelSource& source);
std::unique_ptr<Architecture> load_gemma2(const ModelSource& source);
std::unique_ptr<Architecture> load_gemma3(const ModelSource& source);
std::unique_ptr<Architecture> load_phi3(const ModelSource& source);
std::unique_ptr<Architecture> load_granite(const ModelSource& source);
std::unique_ptr<Architecture> load_smollm3(const ModelSource& source);
std::unique_ptr<Architecture> load_olmo2(const ModelSource& source);
std::unique_ptr<Architecture> load_gpt_oss(const ModelSource& source);

}  // namespace tandem
