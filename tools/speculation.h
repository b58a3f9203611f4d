// Speculation for the commands that generate a text: --spec, and -md with a draft model of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/mtp_drafter.h"
#include "speculate/speculation.h"
#include "tools/options/options.h"

namespace tandem::tools {

struct SpeculationOptions {
  enum class Kind { none, ngram, model, mtp };
  std::optional<Kind> kind;             // --spec; not given: model if there is one
  std::string model;                    // -md: a file, or a name as for the model itself
  int64_t n_max = 16;                   // --draft-max
  std::optional<int64_t> n_gpu_layers;  // -ngld
  std::optional<int64_t> n_ctx;         // -cd

  Kind chosen() const { return kind.value_or(model.empty() ? Kind::none : Kind::model); }
};
void add_speculation_options(CLI::App& app, SpeculationOptions& options);

// Checks the options, downloads a draft model that is not there, and reserves room for guesses in the session that
// `engine` describes. Throws Error(usage) for a kind that does not go with the rest.
void prepare_speculation(SpeculationOptions& options, EngineOptions& engine);

// A Speculation with the draft model and session that it may need. Made before the session of the model that checks, which
// takes the memory that is left.
class TextSpeculation {
 public:
  // `engine` and `devices` are those of `model`. Throws what loading a model and Session throw, and Error(usage) for a
  // draft model with another vocabulary.
  TextSpeculation(const SpeculationOptions& options, const EngineOptions& engine,
                  const std::vector<std::unique_ptr<Device>>& devices, const Model& model);
  ~TextSpeculation();

  // Null for Kind::none.
  Speculation* get() { return speculation_.get(); }
  // `session`, of the model that checks, tells its steps to the MTP layer. It must not do any after this is gone.
  void watch(Session& session);

 private:
  std::unique_ptr<Model> draft_;
  std::unique_ptr<Session> session_;
  MtpDrafter* mtp_ = nullptr;  // owned by speculation_
  std::unique_ptr<Speculation> speculation_;
};

// "speculation: 31 of 40 guesses right, 1.6x as fast"; "" if none was checked. `seconds` of generating.
std::string speculation_text(const SpeculationStats& stats, double seconds);

}  // namespace tandem::tools
