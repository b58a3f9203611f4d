#include "engine/session.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"

namespace tandem {
namespace {

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
  SessionGraphs graphs = place(before_allocation);
  const ShapeClass shape = graphs.prefill.shape;

  std::vector<int> device_of_layer;
  for (const LayerPlacement& layer : fit_.placement.layers) device_of_layer.push_back(layer.kv);
  cache_ = std::make_unique<KvCache>(graphs.kv, devices_, device_of_layer);
  sequence_ = std::make_unique<KvSequence>(cache_->pool(), graphs.kv.block_size);
  executor_ = std::make_unique<Executor>(devices_, fit_.placement, cache_->layers());
  decode_ = executor_->compile(std::move(graphs.decode));
  prefill_ = executor_->compile(std::move(graphs.prefill));

  const auto n = static_cast<size_t>(options_.n_ubatch);
  tokens_.reserve(static_cast<size_t>(std::min<int64_t>(options_.n_ctx, 1 << 20)));
  positions_.resize(n);
  slots_.resize(n);
  sequences_.assign(n, 0);
  outputs_.resize(static_cast<size_t>(shape.max_outputs));
  block_table_.assign(static_cast<size_t>(shape.max_blocks), 0);
}

// Chooses what is open and says what was chosen.
SessionGraphs Session::place(const Explain& before_allocation) {
  const SessionShape asked{options_.n_ctx, options_.n_ubatch, options_.k_dtype, options_.v_dtype, options_.all_logits};
  PlanRequest plan{model_.architecture(), model_.weights(), devices_, options_.offload, asked};
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
  SessionGraphs graphs = session_graphs(model_.architecture(), plan.shape);
  const std::vector<const Graph*> both = graphs.both();
  if (!options_.placement.layers.empty()) {
    fit_.placement = options_.placement;
    fit_.bytes = footprint(both, devices_, fit_.placement, graphs.kv);
  }
  for (const std::string& fallback : fit_.fallbacks) log_warning("runs on the CPU instead: %s", fallback.c_str());
  if (before_allocation) {
    before_allocation(explain({plan.architecture, plan.weights, plan.devices, plan.flags, graphs.kv, both, plan.rates}, fit_));
  }
  return graphs;
}

// Programs before the executor that made them, sequences before their cache.
Session::~Session() {
  prefill_.reset();
  decode_.reset();
  executor_.reset();
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
    throw_error(ErrorCode::usage, "%lld tokens do not fit: the context holds %lld and has %lld already (-c sets its size)",
                static_cast<long long>(n), static_cast<long long>(n_ctx()), static_cast<long long>(n_past()));
  }
  const int64_t n_vocab = model_.hparams().n_vocab;
  for (int32_t id : tokens) {
    if (id < 0 || id >= n_vocab) {
      throw_error(ErrorCode::usage, "token id %d is not in the vocabulary of %lld", id, static_cast<long long>(n_vocab));
    }
  }
}

std::span<const float> Session::append(std::span<const int32_t> tokens, const Progress& progress) {
  check_tokens(tokens);
  std::span<const float> logits;
  const auto n = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min(options_.n_ubatch, n - done);
    Program& program = count == 1 ? *decode_ : *prefill_;
    logits = step(program, tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count)), 1);
    done += count;
    if (progress && !progress(done) && done < n) return {};
  }
  check_finite(logits, 1);
  return logits;
}

void Session::evaluate(std::span<const int32_t> tokens, const LogitsFn& fn) {
  TANDEM_CHECK(options_.all_logits);
  check_tokens(tokens);
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t at_a_time = std::min(options_.n_ubatch, prefill_->graph().shape.max_outputs);
  for (int64_t done = 0; done < n;) {
    const int64_t count = std::min(at_a_time, n - done);
    const auto logits = step(*prefill_, tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count)), count);
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
  const auto set = [&](Input which, std::span<const int32_t> data) { inputs.data[static_cast<size_t>(which)] = data; };
  set(Input::ids, tokens);
  set(Input::positions, std::span(positions_).first(count));
  set(Input::sequences, std::span(sequences_).first(count));
  set(Input::slots, std::span(slots_).first(count));
  set(Input::outputs, std::span(outputs_).first(static_cast<size_t>(n_outputs)));
  set(Input::block_table, std::span(block_table_).first(blocks.size()));
  try {
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

}  // namespace tandem
