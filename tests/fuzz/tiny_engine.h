// A tiny model and a CPU to run it on, for the targets that need them. The model is the same in every process, so that a
// session saved in one can be loaded in another.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "engine/model.h"
#include "support/gguf_bytes.h"
#include "support/tiny_model.h"

namespace tandem::fuzz {

class TinyEngine {
 public:
  TinyEngine() {
    test::TinyShape shape{
        .n_embd = 64, .n_head = 2, .n_head_kv = 1, .n_ff = 32};  // heads of 32, for quantized caches
    test::TinyModel tiny = test::tiny_llama(shape);
    test::add_chat_template(tiny);
    tiny.write(directory_.path("tiny.gguf"));
    model_ = Model::load(directory_.path("tiny.gguf"));
  }

  const Model& model() const { return *model_; }
  std::vector<Device*> devices() const { return {host_.get()}; }
  // A context of 64 tokens for each of some sequences.
  static EngineOptions options(int64_t n_sequences) {
    EngineOptions options;
    options.context.n_ctx = 64 * n_sequences;
    options.context.n_ctx_sequence = 64;
    options.context.n_sequences = n_sequences;
    options.context.n_ubatch = 32;
    return options;
  }

 private:
  test::TempDir directory_;
  std::unique_ptr<Device> host_ =
      cpu::make_cpu_device({.n_threads = 1, .n_threads_batch = 1, .isa = cpu::Isa::scalar});
  std::unique_ptr<Model> model_;
};

}  // namespace tandem::fuzz
