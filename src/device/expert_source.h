// ExpertSource: brings the experts of layers whose experts are not all in memory. moe_ffn on the CPU asks for those that
// the tokens of a step have chosen, and computes with each as soon as it is there:
//
//   source.request(...);
//   while (!(ready = source.next()).empty()) compute with them;
//
// Calls come from one thread, the one that calls Device::run(). The matrices that next() returns may be read by any thread
// until the next call. Nothing throws: after a failed read, next() returns nothing more, and the source keeps the
// error for its owner to report once the segment has run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

struct Weight;

struct WantedExpert {
  int32_t expert = 0;
  int32_t n_tokens = 0;  // of the step that have chosen it
};

// What a step's tokens have chosen in a layer, for who watches.
struct ChosenInLayer {
  int layer = 0;
  std::span<const WantedExpert> experts;  // each once
  // What each of few tokens is likely to choose in the next layer, each once; the likeliest of a token first.
  std::span<const int32_t> guesses;
};

// An expert in memory; its rows lie as in the file. Null: the layer has no such matrix.
struct ReadyExpert {
  size_t index = 0;  // in the request
  const std::byte *gate = nullptr, *up = nullptr, *down = nullptr;
};

struct ExpertRequest {
  const Weight* down = nullptr;           // names the layer
  std::span<const WantedExpert> experts;  // each once; valid until next() has returned nothing
  const float* x = nullptr;               // [n_tokens, n_cols] what the experts are applied to
  int64_t n_tokens = 0, n_cols = 0;
};

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // Returns whether it brings the experts of the layer with this matrix.
  virtual bool has(const Weight& down) const = 0;
  // Starts reading the experts that are not in memory, as far as there is room.
  virtual void request(const ExpertRequest& request) = 0;
  // Returns the experts of the request that are in memory now and were not returned before; waits for one if there is
  // none. Those returned before are no longer in use. Empty: all have been returned, or a read has failed.
  virtual std::span<const ReadyExpert> next() = 0;
  // Whether a read has failed since the step began: what next() did not return is missing.
  virtual bool failed() const = 0;
};

}  // namespace tandem
