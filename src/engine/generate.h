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

// What the caller sees while it runs. All optional.
struct GenerateCallbacks {
  std::function<void(int32_t id)> token;                // each that is chosen, but for the one that ends it
  std::function<void(std::string_view text)> text;      // whole UTF-8 characters, as they come
  std::function<void(int64_t n_done)> prompt_progress;  // tokens of the prompt done so far
  std::function<bool()> interrupted;                    // true: finish the token and stop
};

// What a sampler must know of a model, and of the session's.
SamplerModel sampler_model(const Model& model, int64_t n_ctx);
SamplerModel sampler_model(const Session& session);

// Continues `session` with the prompt's tokens and then with what the sampler chooses. The sampler has
// accepted what the session holds already; it is given the prompt here. Throws what Session and Sampler
// throw.
GenerateStats generate(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                       const GenerateOptions& options, const GenerateCallbacks& callbacks);

}  // namespace tandem
