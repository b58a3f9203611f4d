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

// The tokens of the next step, of n_left and at most n_most. With recurrent layers, a step ends where a block ends if it
// can, which leaves a checkpoint there; also shortly before the end, because a text is most often cut back by its last
// tokens.
int64_t Session::step_size(int64_t n_left, int64_t n_most) const {
  const int64_t at = sequence_.length(), n = std::min(n_most, n_left);
  if (!sequence_.is_recurrent() || sequence_.n_checkpoints() == 0) return n;
  const int64_t block_size = kv_config().block_size;
  const int64_t end = (at + n - (n == n_left ? 1 : 0)) / block_size * block_size;
  return end > at ? end - at : n;
}

std::span<const float> Session::append(std::span<const int32_t> tokens, const Progress& progress) {
  return append(tokens, LogitsWanted::all, progress).all();
}

TokenLogits Session::append(std::span<const int32_t> tokens, LogitsWanted wanted, const Progress& progress) {
  check_tokens(tokens);
  TokenLogits logits;
  const int64_t n_again = n_past() - n_cached();  // without a state since truncate()
  const std::vector<int32_t> all = n_again > 0 ? with_missing(tokens) : std::vector<int32_t>();
  const std::span<const int32_t> work = n_again > 0 ? std::span<const int32_t>(all) : tokens;
  const auto n = static_cast<int64_t>(work.size());
  for (int64_t done = 0; done < n;) {
    const int64_t count = step_size(n - done, runtime_.micro_batch(n));
    const bool is_last = done + count == n;
    const BatchSlice slice{&sequence_, work.subspan(done, count), 1};
    const auto result = runtime_.step(std::span(&slice, 1), is_last ? wanted : LogitsWanted::none);
    if (!result) continue;  // with what may be a smaller micro-batch
    if (is_last) logits = result->row(0);
    done += count;
    const int64_t first_new = std::max(done - count, n_again);
    if (done > first_new) tokens_.insert(tokens_.end(), work.begin() + first_new, work.begin() + done);
    hand_out_hidden(slice);
    if (progress && !progress(std::max<int64_t>(0, done - n_again)) && done < n) return {};
  }
  runtime_.check_finite(logits, n_past() - 1);
  return logits;
}

std::span<const float> Session::append(std::span<const int32_t> tokens, std::span<const float> hidden) {
  check_tokens(tokens);
  TANDEM_CHECK(!sequence_.is_recurrent());
  const auto n = static_cast<int64_t>(tokens.size()), n_embd = model().hparams().n_embd;
  TokenLogits logits;
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min(runtime_.n_ubatch(), n - done);
    const BatchSlice slice{&sequence_, tokens.subspan(done, count), 1,
                           hidden.subspan(done * n_embd, count * n_embd)};
    const auto result = runtime_.step(std::span(&slice, 1));
    if (!result) continue;
    logits = result->row(0);
    done += count;
    tokens_.insert(tokens_.end(), slice.tokens.begin(), slice.tokens.end());
  }
  runtime_.check_finite(logits, n_past() - 1);
  return logits.all();
}

std::span<const float> Session::hidden() const {
  return runtime_.hidden().last(static_cast<size_t>(model().hparams().n_embd));
}

void Session::hand_out_hidden(const BatchSlice& slice) const {
  if (on_hidden_)
    on_hidden_(n_cached() - static_cast<int64_t>(slice.tokens.size()), slice.tokens, runtime_.hidden());
}

// What truncate() left without a state, and then these.
std::vector<int32_t> Session::with_missing(std::span<const int32_t> tokens) const {
  std::vector<int32_t> all(tokens_.begin() + n_cached(), tokens_.end());
  all.insert(all.end(), tokens.begin(), tokens.end());
  return all;
}

// With recurrent layers, a step does not go past the end of a block, where it leaves a checkpoint.
int64_t Session::max_checked() const {
  int64_t n = runtime_.max_decode_tokens() - (n_past() - n_cached());
  if (sequence_.is_recurrent() && sequence_.n_checkpoints() > 0) {
    const int64_t block_size = kv_config().block_size;
    n = std::min(n, block_size - n_past() % block_size);
  }
  return std::min({n, runtime_.max_outputs(), n_ctx() - n_past()});
}

std::span<const float> Session::append_all(std::span<const int32_t> tokens) {
  return append_all(tokens, LogitsWanted::all).all();
}

StepLogits Session::append_all(std::span<const int32_t> tokens, LogitsWanted wanted) {
  check_tokens(tokens);
  TANDEM_CHECK(static_cast<int64_t>(tokens.size()) <= max_checked());
  const std::vector<int32_t> work = with_missing(tokens);
  const BatchSlice slice{&sequence_, work, static_cast<int64_t>(tokens.size())};
  std::optional<StepLogits> logits;
  while (!logits) logits = runtime_.step(std::span(&slice, 1), wanted);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  hand_out_hidden(slice);
  for (size_t row = 0; row < tokens.size(); ++row)
    runtime_.check_finite(logits->row(row), n_past() - static_cast<int64_t>(tokens.size() - row));
  return *logits;
}

void Session::evaluate(std::span<const int32_t> tokens, const LogitsFn& fn) {
  check_tokens(tokens);
  while (n_cached() < n_past()) {  // what truncate() left without a state
    const std::span<const int32_t> rest = std::span<const int32_t>(tokens_).subspan(n_cached());
    const BatchSlice slice{&sequence_,
                           rest.first(step_size(static_cast<int64_t>(rest.size()), runtime_.n_ubatch())), 0};
    if (runtime_.step(std::span(&slice, 1), LogitsWanted::none)) hand_out_hidden(slice);
  }
  const auto n = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min({runtime_.n_ubatch(), runtime_.max_outputs(), n - done});
    const BatchSlice slice{&sequence_, tokens.subspan(done, count), count};
    const auto logits = runtime_.step(std::span(&slice, 1));
    if (!logits) continue;
    tokens_.insert(tokens_.end(), slice.tokens.begin(), slice.tokens.end());
    hand_out_hidden(slice);
    for (int64_t row = 0; row < count; ++row)
      runtime_.check_finite(logits->row(static_cast<size_t>(row)), n_past() - count + row);
    fn(done, count, logits->all());
    done += count;
  }
}

void Session::truncate(int64_t n) {
  TANDEM_CHECK(n >= 0 && n <= n_past());
  const int64_t n_left = std::min(n, n_cached());
  sequence_.truncate(n_left);
  tokens_.resize(n);
  if (n <= n_exact_) n_exact_ = INT64_MAX;
  TANDEM_CHECK(n_cached() == n_left || runtime_.cuts_more());  // nobody else shares this session's blocks
}

bool Session::shift(int64_t n_keep, int64_t n_drop) {
  TANDEM_CHECK(n_keep >= 0 && n_drop > 0 && n_keep + n_drop <= n_past());
  // An MTP layer has read what the model made of every token, at its old position.
  if (on_hidden_ || n_cached() < n_past()) return false;
  try {
    if (!runtime_.move(sequence_, n_keep, n_drop)) return false;
  } catch (...) {
    tokens_.resize(static_cast<size_t>(n_cached()));
    throw;
  }
  n_exact_ = std::min(n_exact_, n_keep);
  tokens_.erase(tokens_.begin() + n_keep, tokens_.begin() + n_keep + n_drop);
  return true;
}

void Session::read_kv(size_t layer, KvHalf half, std::byte* rows) const {
  runtime_.read_kv(sequence_, layer, half, rows);
}

std::vector<int64_t> Session::state_positions() const {
  std::vector<int64_t> positions;
  for (const KvSequence::State& state : sequence_.states()) positions.push_back(state.position);
  return positions;
}

void Session::keep_in(BlockStore& store) {
  kept_ = std::make_unique<KeptCache>(store, runtime_);
}

int64_t Session::load_kept(std::span<const int32_t> tokens) {
  if (!kept_) return n_past();
  TANDEM_CHECK(n_past() <= static_cast<int64_t>(tokens.size()));
  const int64_t n_had = n_past();
  const auto adopt = [&] {  // what is loaded, or was cut off for it
    const int64_t n = sequence_.is_recurrent() ? std::max(n_had, n_cached()) : n_cached();
    tokens_.assign(tokens.begin(), tokens.begin() + n);
  };
  runtime_.check_vocabulary(tokens);
  try {
    kept_->load(sequence_, tokens.first(std::min(tokens.size(), static_cast<size_t>(n_ctx()))));
  } catch (...) {
    adopt();
    throw;
  }
  adopt();
  return n_past();
}

void Session::keep() {
  if (kept_) {
    const auto n = static_cast<size_t>(std::min(n_exact_, n_past()));
    kept_->keep(sequence_, std::span(tokens_).first(n), KeptCache::WhenBusy::wait);
  }
}

void Session::restore(std::span<const int32_t> tokens, const SavedCache& cache) {
  truncate(0);
  if (tokens.empty()) return;
  check_tokens(tokens);
  const auto n = std::min(static_cast<int64_t>(tokens.size()), cache.n_cached);
  std::vector<int32_t> slots(tokens.size());
  try {
    if (sequence_.is_recurrent()) {
      for (const int64_t position : cache.state_positions) {
        if (position <= n) sequence_.append(position - n_cached(), slots.data(), OpenGroups::Rows::known);
      }
      restore_states(cache);
    } else {
      sequence_.append(n, slots.data(), OpenGroups::Rows::known);
    }
    for (size_t layer = 0; layer < kv_config().layers.size() && n_cached() > 0; ++layer) {
      if (kv_config().layers[layer].is_recurrent()) continue;
      for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
        if (runtime_.kv_token_bytes(layer, half) == 0) continue;  // no values beside the keys
        const std::span<const std::byte> data = cache.rows(layer, half, n_cached());
        TANDEM_CHECK(data.size() == runtime_.kv_token_bytes(layer, half) * static_cast<size_t>(n_cached()));
        runtime_.write_kv(sequence_, layer, half, data.data());
      }
    }
    tokens_.assign(tokens.begin(), tokens.end());
    if (cache.n_exact < n) n_exact_ = cache.n_exact;
  } catch (...) {
    sequence_.truncate(0);
    throw;
  }
}

// Of the saved states, those that the sequence has room for.
void Session::restore_states(const SavedCache& cache) {
  const std::vector<int64_t>& saved = cache.state_positions;
  for (size_t layer = 0; layer < kv_config().layers.size() && n_cached() > 0; ++layer) {
    if (!kv_config().layers[layer].is_recurrent()) continue;
    for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
      const size_t n_bytes = runtime_.kv_token_bytes(layer, half);
      if (n_bytes == 0) continue;  // a short convolution alone
      const std::span<const std::byte> data = cache.rows(layer, half, static_cast<int64_t>(saved.size()));
      TANDEM_CHECK(data.size() == n_bytes * saved.size());
      for (const KvSequence::State& state : sequence_.states()) {
        const auto i = std::ranges::find(saved, state.position) - saved.begin();
        runtime_.write_state(state.slot, layer, half, data.data() + static_cast<size_t>(i) * n_bytes);
      }
    }
  }
}

}  // namespace tandem
