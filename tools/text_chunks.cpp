#include "tools/text_chunks.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace tandem::tools {
namespace {

constexpr int64_t kMinChunk = 3;  // in a shorter chunk no token is scored

}  // namespace

int64_t chunk_size(const ContextOptions& context, const Model& model) {
  const int64_t n_usable = model.hparams().n_ctx_usable();
  const int64_t n = context.n_ctx > 0 ? context.n_ctx : n_usable;
  if (n < kMinChunk) {
    throw_error(ErrorCode::usage, "--ctx-size: {} tokens leave nothing to score, needed at least {}", n,
                kMinChunk);
  }
  if (n > n_usable) {
    log_warning("chunks of {} tokens are longer than the model's training context of {}", n, n_usable);
  }
  return n;
}

TextChunks read_chunks(const ChunkOptions& o, int64_t n_ctx, const Vocab& vocab) {
  TextOptions text;
  text.file = o.file;
  const std::string content = read_prompt(text);
  if (content.find('\0') != std::string::npos) {
    throw_error(ErrorCode::usage, "{}: not a text in UTF-8: it has bytes that are 0", printable(o.file, 4096));
  }
  TextChunks chunks;
  // Add BOS if the model uses it, but never the EOS that some models put at the end.
  chunks.tokens = vocab.tokenize(content, {.add_special = false, .parse_special = o.parse_special});
  if (vocab.add_bos()) chunks.tokens.insert(chunks.tokens.begin(), vocab.special().bos);
  const auto n = static_cast<int64_t>(chunks.tokens.size());
  if (n < o.n_least * n_ctx) {
    throw_error(ErrorCode::usage,
                "{}: found {} tokens, needed at least {} for chunks of {} (-c sets the chunk size)",
                printable(o.file, 4096), n, o.n_least * n_ctx, n_ctx);
  }
  chunks.n_ctx = n_ctx;
  chunks.n_chunks = o.n_chunks <= 0 ? n / n_ctx : std::min<int64_t>(o.n_chunks, n / n_ctx);
  return chunks;
}

}  // namespace tandem::tools
