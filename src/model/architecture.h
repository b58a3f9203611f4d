// Architecture: one family of models. It reads the hyperparameters, binds the weights and builds the graph of
// coarse ops; nothing above it names a family. One file per family, registered in architectures.cpp.
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
  // The shape of what layer `layer` caches per token.
  virtual KvShape kv_shape(int layer) const = 0;
  // Builds the forward pass for one shape class. Thread-safe; the graph refers to the bound weights.
  virtual Graph build(const ShapeClass& shape) const = 0;

 protected:
  Hparams hparams_;
};

// Inputs of an architecture. Both references must outlive it.
struct ModelSource {
  const GgufFile& file;
  WeightBinder& weights;
  RopeOverrides rope;
  ModelPart part = ModelPart::main;
};

// Picks the family by general.architecture. Throws Error(bad_file) with the known ones if it is unknown, and Error(usage) if it
// has no such part.
std::unique_ptr<Architecture> load_architecture(const ModelSource& source);

}  // namespace tandem
