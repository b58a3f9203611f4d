// PreTokenizer: cuts a text into the pieces that BPE merges within, with the regular expressions of its row
// in the table. Compiled once; immutable, any number of threads may call split. The constructor throws
// Error(bug) for a pattern that does not compile; split throws only bad_alloc: where a match reaches the
// regex engine's limits (they guard against runaway input), the rest of that piece stays whole.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "text/pretokenizer_table.h"

namespace tandem {

class PreTokenizer {
 public:
  explicit PreTokenizer(const PreTokenizerSpec& spec);
  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // Returns the pieces of `text`, in order, non-empty, covering all of it. `text` must be valid UTF-8.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct CompiledRule;
  std::vector<CompiledRule> rules_;
};

}  // namespace tandem
