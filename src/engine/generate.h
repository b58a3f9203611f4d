// Generation: prompt in, text out, one token after the other, until something says stop.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "engine/continuation.h"
#include "engine/session.h"

namespace tandem {

struct GenerateStats {
  StopReason reason = StopReason::limit;
  int64_t n_prompt = 0, n_generated = 0, n_shifts = 0;
  double prompt_s = 0, generate_s = 0;  // reading the prompt; all that followed
};

// Called while it runs. All optional.
struct GenerateCallbacks {
  std::function<void(int32_t id)> token;            // each chosen token, except the one that ends the text
  std::function<void(std::string_view text)> text;  // whole UTF-8 characters, as they come
  std::function<void(int64_t n_done)> prompt_progress;  // tokens of the prompt done so far, from 0
  std::function<bool()> interrupted;                    // true: finish the token and stop
};

// The part of a model that a sampler needs.
SamplerModel sampler_model(const Model& model, int64_t n_ctx);
SamplerModel sampler_model(const Session& session);

// Appends the prompt's tokens to `session`, then the tokens that the sampler chooses. The sampler has
// accepted the tokens that the session holds already; the prompt is accepted here. Throws what Session and
// Sampler throw.
GenerateStats generate(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                       const GenerateOptions& options, const GenerateCallbacks& callbacks);

}  // namespace tandem
