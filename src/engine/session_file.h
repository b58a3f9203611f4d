// A saved session: the tokens that a session has read, their KV cache, and a transcript. `tandem chat` saves
// conversations with it, `tandem run --prompt-cache` prompts.
//
// The file is a GGUF file, so it is validated like a model and `tandem inspect` shows it:
//
//   general.architecture    "tandem-session"
//   session.version         u32, 2; 3 with session.kv_rotation, which older programs would not see
//   session.fingerprint     of the model: its metadata, its tensor table and a sample of every tensor
//   session.model           the model's name, for messages
//   session.rotation        how the cached keys were rotated; a session that rotates otherwise refuses them
//   session.n_deferred      u32, only with deferred experts: how many; a session that defers another number refuses them
//   session.kv_rotation     i32 array [n_layer, 2], only if heads are rotated before they are cached: the widths of the
//                           matrices of each layer's keys and values (graph/hadamard.h); 0: not rotated
//   session.tokens          i32 array
//   session.n_exact         u32, only if cached keys were moved (engine/moved_keys.h): the tokens before them
//   session.transcript      JSON of the caller, or ""
//   tensors cache.N.k, .v   [head_dim, n_head_kv, n_tokens] in the dtype of the cache; no .v where values are in the keys;
//                           twice as many heads of keys with SelfExtend (graph/self_extend.h)
//   session.states          i32 array, only with recurrent layers: how many tokens each saved state has seen; the
//                           cache has as many tokens as the last one
//   tensors cache.N.k, .v   [head_dim, n_head_kv, n_tokens] in the dtype of the cache; of a recurrent layer, F32:
//                           the state of its convolution [n, 1, n_states] and of its recurrence
//
// The cache is laid out token after token, so it loads into any placement, block size or thread count; into a
// cache of another dtype, or one that rotates heads otherwise, it is converted. Files are written beside their final name and renamed, so a name
// never holds half a session. Reading validates all before a session is touched. Throws Error(bad_file | io),
// and Error(usage) when the context is too small, rotates otherwise or defers other experts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/session.h"
#include "gguf/file.h"

namespace tandem {

inline constexpr const char* kSessionArchitecture = "tandem-session";

enum class Saved { all, transcript };  // transcript: without tokens and cache, so the file is small
void save_session(const Session& session, const std::string& path, std::string_view transcript = "",
                  Saved what = Saved::all);

class SessionFile {
 public:
  // Opens and validates; reads only the model and the cache's shape of `session`.
  SessionFile(const std::string& path, const Session& session);

  const std::vector<int32_t>& tokens() const { return tokens_; }
  std::string_view transcript() const { return transcript_; }
  // Makes the session hold the first n of the tokens.
  void restore(Session& session, size_t n_tokens) const;

 private:
  void check_kind(const Session& session) const;
  void read_states(const Session& session);
  void read_rotations(const Session& session);
  void check_tensors(const Session& session) const;

  GgufFile file_;
  std::vector<int32_t> tokens_;
  int64_t n_cached_ = 0;               // tokens whose cache the file has
  int64_t n_exact_ = INT64_MAX;        // as Session::n_exact(); INT64_MAX: all
  std::vector<int64_t> states_;        // of recurrent layers: how many tokens each saved state has seen
  std::vector<KvRotation> rotations_;  // of each layer, as saved
  std::string_view transcript_;
};

}  // namespace tandem
