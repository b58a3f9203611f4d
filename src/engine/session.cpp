#include "engine/session.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"

namespace tandem {
namespace {

constexpr int64_t kSmallestUbatch = 32;  // that the out-of-memory ladder goes to

// No NaN and no +infinity. (-infinity is how some models rule out a token.)
bool all_usable(std::span<const float> row) {
  bool usable = true;
  for (float x : row) usable &= x < INFINITY;
  return usable;
}

}  // namespace

Session::Session(const Model& model, std::vector<Device*> devices, const SessionOptions& options,
                 const Explain& before_allocation)
    : model_(model), devices_(std::move(devices)), options_(options) {
  if (options_.n_ctx <= 0) options_.n_ctx = model.hparams().n_ctx_train;
  options_.n_batch = std::clamp<int64_t>(options_.n_batch, 1, options_.n_ctx);
  options_.n_ubatch = std::clamp<int64_t>(options_.n_ubatch, 1, options_.n_batch);
  place(before_allocation);
  build_down_the_ladder();
  tokens_.reserve(static_cast<size_t>(std::min<int64_t>(options_.n_ctx, 1 << 20)));
}

// Everything that takes memory, for the placement and micro-batch as they are. What the cache holds stays.
void Session::build() {
  prefill_.reset();
  decode_.reset();
  executor_.reset();
  SessionGraphs graphs = session_graphs(model_.architecture(), shape());
  const ShapeClass capacity = graphs.prefill.shape;
  fit_.bytes = footprint(graphs.both(), devices_, fit_.placement, graphs.kv);
  build_cache(graphs.kv);
  executor_ = std::make_unique<Executor>(devices_, fit_.placement, cache_->layers());
  decode_ = executor_->compile(std::move(graphs.decode));
  prefill_ = executor_->compile(std::move(graphs.prefill));

  const auto n = static_cast<size_t>(options_.n_ubatch);
  positions_.resize(n);
  slots_.resize(n);
  recent_slots_.resize(n);
  sequences_.assign(n, 0);
  outputs_.resize(static_cast<size_t>(capacity.max_outputs));
  block_table_.assign(static_cast<size_t>(capacity.max_blocks), 0);
}

// The cache where the placement says; what one holds that was elsewhere moves.
void Session::build_cache(const KvConfig& kv) {
  std::vector<int> device_of_layer;
  RecentPools recent{{}, fit_.placement.n_recent_blocks};
  for (const LayerPlacement& layer : fit_.placement.layers) {
    device_of_layer.push_back(layer.kv);
    recent.device_of_layer.push_back(layer.kv_recent);
  }
  if (cache_) {
    if (recent_ && !fit_.placement.splits_caches()) {
      recent_->move_out();
      recent_.reset();
      cache_->drop_recent();
    }
    return cache_->relocate(device_of_layer);
  }
  cache_ = std::make_unique<KvCache>(kv, devices_, device_of_layer, std::move(recent));
  sequence_ = std::make_unique<KvSequence>(cache_->pool(), kv.block_size);
  if (fit_.placement.splits_caches()) {
    recent_ = std::make_unique<RecentPart>(*cache_, fit_.placement.kv_split);
  }
}

void Session::build_down_the_ladder() {
  for (;;) {
    try {
      return build();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::out_of_memory || !options_.oom_ladder || !step_down(e.what())) throw;
    }
  }
}

// One rung down; false at the end, with everything on the host and small.
bool Session::step_down(const std::string& reason) {
  std::vector<LayerPlacement>& layers = fit_.placement.layers;
  const auto say = [&](const std::string& what) { log_warning("%s; %s", reason.c_str(), what.c_str()); };
  if (options_.n_ubatch > kSmallestUbatch) {
    const int64_t n = std::max(options_.n_ubatch / 2, kSmallestUbatch);
    say(format("the micro-batch goes from %lld tokens to %lld", static_cast<long long>(options_.n_ubatch),
               static_cast<long long>(n)));
    options_.n_ubatch = n;
    return true;
  }
  const auto on_gpu = [](const LayerPlacement& l) {
    return l.weights != 0 || l.experts != 0 || l.streamed_prefill != 0 || l.streamed_decode != 0;
  };
  if (std::any_of(layers.begin(), layers.end(),
                  [](const LayerPlacement& l) { return l.kv != 0 || l.kv_prefetched != 0 || l.kv_recent != 0; })) {
    say("the KV cache goes to host memory");
    for (LayerPlacement& l : layers) l.kv = l.kv_prefetched = l.kv_recent = 0;
    return true;
  }
  const auto n_gpu = std::count_if(layers.begin(), layers.end(), on_gpu);
  if (n_gpu == 0 && fit_.placement.output == 0 && fit_.placement.overrides.empty()) return false;
  if (n_gpu == 0) {
    say("the rest goes to the host too");
    fit_.placement.output = 0;
    fit_.placement.overrides.clear();
    return true;
  }
  auto n = (n_gpu + 3) / 4;
  say(format("%lld of %lld layers go to the host", static_cast<long long>(n), static_cast<long long>(n_gpu)));
  for (LayerPlacement& l : layers) {
    if (on_gpu(l) && n-- > 0) l = LayerPlacement{};
  }
  return true;
}

// After a step that found no memory: everything is built again, smaller. False when that was not the matter,
// or there is nothing left to be made smaller.
bool Session::recover(const Error& error) {
  if (error.code() != ErrorCode::out_of_memory || !options_.oom_ladder || !step_down(error.what()))
    return false;
  build_down_the_ladder();
  return true;
}

// Chooses what is open and says what was chosen.
void Session::place(const Explain& before_allocation) {
  PlanRequest plan{model_.architecture(), model_.weights(), devices_, options_.offload, shape()};
  plan.ubatch_is_free = options_.ubatch_is_free;
  plan.kv_dtype_is_free = options_.kv_dtype_is_free;
  plan.rates = options_.rates;
  if (options_.placement.layers.empty()) {
    SessionPlan best = std::move(plan_session(plan).front());
    plan.shape = best.shape;
    fit_ = std::move(best.fit);
    options_.n_ubatch = plan.shape.n_ubatch;
    options_.k_dtype = plan.shape.k_dtype;
    options_.v_dtype = plan.shape.v_dtype;
  }
  if (!options_.placement.layers.empty()) {
    fit_.placement = options_.placement;
    size_recent_part(fit_.placement, session_graphs(model_.architecture(), plan.shape).kv, plan.shape.n_ubatch);
  }
  for (const std::string& fallback : fit_.fallbacks)
    log_warning("runs on the CPU instead: %s", fallback.c_str());
  if (!before_allocation) return;
  const SessionGraphs graphs = session_graphs(model_.architecture(), plan.shape);
  const std::vector<const Graph*> both = graphs.both();
  fit_.bytes = footprint(both, devices_, fit_.placement, graphs.kv);
  before_allocation(explain(
      {plan.architecture, plan.weights, plan.devices, plan.flags, graphs.kv, both, plan.rates}, fit_));
}

SessionShape Session::shape() const {
  return {options_.n_ctx, options_.n_ubatch, options_.k_dtype, options_.v_dtype, options_.all_logits};
}

// Programs before the executor that made them, sequences before their cache.
Session::~Session() {
  prefill_.reset();
  decode_.reset();
  executor_.reset();
  recent_.reset();
  sequence_.reset();
}

size_t Session::arena_bytes() const {
  size_t sum = 0;
  for (size_t d = 0; d < devices_.size(); ++d) sum += executor_->arena_bytes(static_cast<int>(d));
  return sum;
}

void Session::check_tokens(std::span<const int32_t> tokens) const {
  TANDEM_CHECK(!tokens.empty());
  const auto n = static_cast<int64_t>(tokens.size());
  if (n_past() + n > n_ctx()) {
    throw_error(ErrorCode::usage,
                "%lld tokens do not fit: the context holds %lld and has %lld already (-c sets its size)",
                static_cast<long long>(n), static_cast<long long>(n_ctx()), static_cast<long long>(n_past()));
  }
  const int64_t n_vocab = model_.hparams().n_vocab;
  for (int32_t id : tokens) {
    if (id < 0 || id >= n_vocab) {
      throw_error(ErrorCode::usage, "token id %d is not in the vocabulary of %lld", id,
                  static_cast<long long>(n_vocab));
    }
  }
}

std::span<const float> Session::append(std::span<const int32_t> tokens, const Progress& progress) {
  check_tokens(tokens);
  if (!prefill_) build_down_the_ladder();  // an earlier call found no memory
  std::span<const float> logits;
  const auto n = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min(options_.n_ubatch, n - done);
    try {
      Program& program = count == 1 ? *decode_ : *prefill_;
      logits = step(program, tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count)), 1);
    } catch (const Error& e) {
      if (!recover(e)) throw;
      continue;  // with what may be a smaller micro-batch
    }
    done += count;
    if (progress && !progress(done) && done < n) return {};
  }
  check_finite(logits, 1);
  return logits;
}

void Session::evaluate(std::span<const int32_t> tokens, const LogitsFn& fn) {
  TANDEM_CHECK(options_.all_logits);
  check_tokens(tokens);
  if (!prefill_) build_down_the_ladder();
  const auto n = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < n;) {
    const int64_t at_a_time = std::min(options_.n_ubatch, prefill_->graph().shape.max_outputs);
    const int64_t count = std::min(at_a_time, n - done);
    std::span<const float> logits;
    try {
      logits = step(*prefill_, tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count)), count);
    } catch (const Error& e) {
      if (!recover(e)) throw;
      continue;
    }
    check_finite(logits, count);
    fn(done, count, logits);
    done += count;
  }
}

// Logits of the last n_outputs tokens.
std::span<const float> Session::step(Program& program, std::span<const int32_t> tokens, int64_t n_outputs) {
  const auto n = static_cast<int64_t>(tokens.size());
  const auto count = tokens.size();
  std::iota(positions_.begin(), positions_.begin() + n, static_cast<int32_t>(n_past()));
  sequence_->append(n, slots_.data());
  const std::span<const int32_t> blocks = sequence_->blocks();
  std::copy(blocks.begin(), blocks.end(), block_table_.begin());
  std::iota(outputs_.begin(), outputs_.begin() + n_outputs, static_cast<int32_t>(n - n_outputs));

  StepInputs inputs;
  inputs.shape = StepShape{n, n_outputs};
  const auto set = [&](Input which, std::span<const int32_t> data) {
    inputs.data[static_cast<size_t>(which)] = data;
  };
  set(Input::ids, tokens);
  set(Input::positions, std::span(positions_).first(count));
  set(Input::sequences, std::span(sequences_).first(count));
  set(Input::slots, std::span(slots_).first(count));
  set(Input::outputs, std::span(outputs_).first(static_cast<size_t>(n_outputs)));
  set(Input::block_table, std::span(block_table_).first(blocks.size()));
  int32_t recent_from = 0;
  try {
    if (recent_) {
      recent_->append(*sequence_, n, recent_slots_.data());
      recent_from = recent_->from();
      set(Input::recent_slots, std::span(recent_slots_).first(count));
      set(Input::recent_blocks, recent_->blocks());
      set(Input::recent_from, std::span(&recent_from, 1));
    }
    const std::span<const float> logits = executor_->run(program, inputs);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    return logits;
  } catch (...) {
    sequence_->truncate(n_past());
    throw;
  }
}

void Session::check_finite(std::span<const float> logits, int64_t n_rows) const {
  const auto n_vocab = static_cast<size_t>(model_.hparams().n_vocab);
  for (int64_t row = 0; row < n_rows; ++row) {
    if (all_usable(logits.subspan(static_cast<size_t>(row) * n_vocab, n_vocab))) continue;
    throw_error(ErrorCode::numeric, "%s: the logits at position %lld are not finite (NaN or infinity)",
                model_.path().c_str(), static_cast<long long>(n_past() - n_rows + row));
  }
}

void Session::truncate(int64_t n) {
  TANDEM_CHECK(n >= 0 && n <= n_past());
  sequence_->truncate(n);
  tokens_.resize(static_cast<size_t>(n));
  TANDEM_CHECK(sequence_->length() == n);  // nobody else shares this session's blocks
}

Device& Session::kv_device(size_t layer) const {
  return *devices_[static_cast<size_t>(fit_.placement.layers[layer].kv)];
}

const KvLayer& Session::kv_layer(size_t layer) const {
  return cache_->layers()[static_cast<size_t>(fit_.placement.layers[layer].kv)][layer];
}

void Session::read_kv(size_t layer, KvHalf half, std::byte* rows) const {
  if (recent_) return recent_->read_rows(*sequence_, layer, half, rows);
  read_kv_rows(kv_device(layer), kv_layer(layer), half, sequence_->blocks(), n_past(), rows);
}

void Session::restore(std::span<const int32_t> tokens, const KvRows& rows) {
  truncate(0);
  if (tokens.empty()) return;
  check_tokens(tokens);
  const auto n = static_cast<int64_t>(tokens.size());
  std::vector<int32_t> slots(tokens.size());
  sequence_->append(n, slots.data());
  if (recent_) recent_->forget();
  try {
    for (size_t layer = 0; layer < kv_config().layers.size(); ++layer) {
      for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
        const std::span<const std::byte> data = rows(layer, half);
        TANDEM_CHECK(data.size() == kv_token_bytes(kv_layer(layer), half) * tokens.size());
        write_kv_rows(kv_device(layer), kv_layer(layer), half, sequence_->blocks(), n, data.data());
      }
    }
    tokens_.assign(tokens.begin(), tokens.end());
  } catch (...) {
    sequence_->truncate(0);
    throw;
  }
}

}  // namespace tandem
