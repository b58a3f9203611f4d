#include "engine/session.h"

#include <algorithm>

#include "base/setting.h"

namespace tandem {

Session::Session(const Model& model, std::vector<Device*> devices, const EngineOptions& options,
                 const Explain& before_allocation)
    : runtime_(model, std::move(devices), options, before_allocation), sequence_(runtime_.new_sequence()) {
  TANDEM_CHECK(runtime_.n_sequences() == 1);
  tokens_.reserve(std::min<int64_t>(n_ctx(), 1 << 20));
}

void Session::check_tokens(std::span<const int32_t> tokens) const {
  TANDEM_CHECK(!tokens.empty());
  const auto n = static_cast<int64_t>(tokens.size());
  if (n_past() + n > n_ctx()) {
    throw_error(ErrorCode::usage,
                "{} tokens do not fit: the context holds {} and has {} already ({} sets its size)", n,
                n_ctx(), n_past(), setting_text(Setting::n_ctx));
  }
  runtime_.check_vocabulary(tokens);
}

std::span<const float> Session::append(std::span<const int32_t> tokens, const Progress& progress) {
  check_tokens(tokens);
  std::span<const float> logits;
  const auto n = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min(runtime_.n_ubatch(), n - done);
    const BatchSlice slice{&sequence_, tokens.subspan(done, count), 1};
    const auto result = runtime_.step(std::span(&slice, 1));
    if (!result) continue;  // with what may be a smaller micro-batch
    logits = *result;
    tokens_.insert(tokens_.end(), slice.tokens.begin(), slice.tokens.end());
    done += count;
    if (progress && !progress(done) && done < n) return {};
  }
  runtime_.check_finite(logits, n_past() - 1);
  return logits;
}

void Session::evaluate(std::span<const int32_t> tokens, const LogitsFn& fn) {
  check_tokens(tokens);
  const auto n = static_cast<int64_t>(tokens.size());
  const auto n_vocab = static_cast<size_t>(model().hparams().n_vocab);
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min({runtime_.n_ubatch(), runtime_.max_outputs(), n - done});
    const BatchSlice slice{&sequence_, tokens.subspan(done, count), count};
    const auto logits = runtime_.step(std::span(&slice, 1));
    if (!logits) continue;
    tokens_.insert(tokens_.end(), slice.tokens.begin(), slice.tokens.end());
    for (int64_t row = 0; row < count; ++row) {
      runtime_.check_finite(logits->subspan(static_cast<size_t>(row) * n_vocab, n_vocab),
                            n_past() - count + row);
    }
    fn(done, count, *logits);
    done += count;
  }
}

void Session::truncate(int64_t n) {
  TANDEM_CHECK(n >= 0 && n <= n_past());
  sequence_.truncate(n);
  tokens_.resize(n);
  TANDEM_CHECK(sequence_.length() == n);  // nobody else shares this session's blocks
}

void Session::read_kv(size_t layer, KvHalf half, std::byte* rows) const {
  runtime_.read_kv(sequence_, layer, half, rows);
}

void Session::restore(std::span<const int32_t> tokens, const KvRows& rows) {
  truncate(0);
  if (tokens.empty()) return;
  check_tokens(tokens);
  std::vector<int32_t> slots(tokens.size());
  sequence_.append(static_cast<int64_t>(tokens.size()), slots.data());
  try {
    for (size_t layer = 0; layer < kv_config().layers.size(); ++layer) {
      for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
        if (runtime_.kv_token_bytes(layer, half) == 0) continue;  // no values beside the keys
        const std::span<const std::byte> data = rows(layer, half);
        TANDEM_CHECK(data.size() == runtime_.kv_token_bytes(layer, half) * tokens.size());
        runtime_.write_kv(sequence_, layer, half, data.data());
      }
    }
    tokens_.assign(tokens.begin(), tokens.end());
  } catch (...) {
    sequence_.truncate(0);
    throw;
  }
}

}  // namespace tandem
