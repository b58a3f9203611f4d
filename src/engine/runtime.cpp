#include "engine/runtime.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/checked.h"
#include "base/log.h"
#include "base/setting.h"
#include "engine/held_weights.h"
#include "engine/long_context.h"
#include "engine/step_relay.h"
#include "exec/expert_cache.h"
#include "exec/expert_store.h"
#include "kv/spill.h"
#include "plan/generic_kernels.h"
#include "plan/kv_formats.h"
#include "plan/kv_memory.h"

namespace tandem {
namespace {

constexpr int64_t kSmallestUbatch = 32;  // that the out-of-memory ladder goes to

// No NaN and no +infinity. (-infinity is how some models rule out a token.)
bool all_usable(const TokenLogits& logits) {
  if (logits.n_top() > 0) return logits.top_logit(0) < INFINITY;  // NaN comes first
  bool usable = true;
  for (float x : logits.all()) usable &= x < INFINITY;
  return usable;
}

// None when the placement has nothing on disk.
std::unique_ptr<DiskReader> disk_reader(const Model& model, const EngineOptions& options,
                                        const Placement& placement) {
  if (!placement.reads_disk()) return nullptr;
  return options.open_disk ? options.open_disk(model.disk_files()) : open_disk_reader(model.disk_files());
}

ContextOptions held_to_batch(ContextOptions o, const Model& model, size_t n_devices) {
  const bool is_automatic = o.n_ubatch <= 0;
  if (is_automatic) o.n_ubatch = automatic_ubatch(model.architecture(), n_devices);
  if (is_automatic && !o.n_batch_given) return o;
  o.n_ubatch = std::min(o.n_ubatch, std::max<int64_t>(o.n_batch, 1));
  return o;
}

std::unique_ptr<Collectives> collectives_for(const EngineOptions& options, const Placement& placement,
                                             const std::vector<Device*>& devices) {
  if (options.make_collectives) return options.make_collectives(devices);
  return placement.parallel ? best_collectives(devices) : make_host_collectives();
}

}  // namespace

Runtime::Runtime(const Model& model, std::vector<Device*> devices, const EngineOptions& options,
                 const Explain& before_allocation)
    : model_(model),
      devices_(std::move(devices)),
      options_(options),
      shape_(held_to_batch(options.context, model, devices_.size())) {
  place(before_allocation);
  build_down_the_ladder();
}

// Everything that takes memory, for the placement and micro-batch as they are. What the cache holds stays.
void Runtime::build() {
  prefill_.reset();
  decode_.reset();
  earlier_counts_ = expert_counts();
  executor_.reset();
  SessionGraphs graphs = session_graphs(model_.architecture(), shape_);
  const ShapeClass capacity = graphs.prefill.shape;
  fit_.bytes = footprint(graphs.both(), devices_, fit_.placement, graphs.kv);
  build_cache(graphs.kv);
  executor_ = std::make_unique<Executor>(devices_, fit_.placement, cache_->layers(),
                                         disk_reader(model_, options_, fit_.placement),
                                         options_.expert_policy ? options_.expert_policy : usual_cache_policy,
                                         collectives_for(options_, fit_.placement, devices_),
                                         cache_->spill() ? cache_->spill()->reader() : nullptr);
  const HoldBytes hold = hold_while_free(model_, *devices_[0]);
  if (fit_.placement.pins_fetched) executor_->pin_weights(hold);
  const Toggle huge_pages = options_.offload.huge_pages;
  if (takes_huge_pages(huge_pages, model_, fit_.bytes, *devices_[0]))
    executor_->use_huge_pages(hold, huge_pages == Toggle::on || options_.offload.huge_pages_at_once);
  key_rotations_ = key_rotations(graphs.decode, graphs.kv);
  if (options_.relay) executor_->connect(options_.relay->link());
  decode_ = executor_->compile(std::move(graphs.decode));
  prefill_ = executor_->compile(std::move(graphs.prefill));
  if (options_.offload.expert_use) {
    executor_->bring_most_used(*options_.offload.expert_use);
  }
  executor_->experts().watch(options_.on_experts);
  executor_->expert_cache().watch(options_.on_experts);

  max_outputs_ = capacity.max_outputs;
  for (std::vector<int32_t>* input : {&ids_, &positions_, &sequences_, &slots_, &hot_slots_}) {
    input->resize(capacity.max_tokens);
  }
  outputs_.resize(capacity.max_outputs);
  block_table_.assign(capacity.max_sequences * capacity.max_blocks, 0);
  states_.assign(2 * capacity.max_sequences, 0);
  sequence_steps_.reserve(static_cast<size_t>(capacity.max_sequences));
}

// The cache where the placement says; what one holds that was elsewhere moves.
void Runtime::build_cache(const KvConfig& kv) {
  const SplitKv* split = fit_.placement.split();
  std::vector<DeviceId> device_of_layer;
  std::vector<HeadPools> heads(kv.layers.size());
  HotPools hot{{}, split ? split->n_blocks : 0};
  for (const LayerPlacement& layer : fit_.placement.layers) {
    device_of_layer.push_back(holder(layer.kv));
    const auto i = static_cast<size_t>(&layer - fit_.placement.layers.data());
    heads[i] = divided_pools(layer.kv, kv.layers[i]);
    const auto* home = std::get_if<SplitKv>(&layer.kv);
    hot.gpu_of_layer.push_back(home ? std::optional(home->hot) : std::nullopt);
  }
  if (cache_) {
    if (hot_ && !split) {
      hot_->move_out();
      hot_.reset();
      cache_->drop_hot();
    }
    return cache_->relocate(device_of_layer);
  }
  TANDEM_CHECK(!split || n_sequences() == 1);
  cache_ = std::make_unique<KvCache>(kv, devices_, device_of_layer, std::move(hot), std::move(heads));
  if (split) hot_ = std::make_unique<HotCache>(*cache_, split->n_keep);
  if (kv.n_memory_blocks > 0) {
    const OpenDisk by_default = [](std::vector<DiskFile> files) {
      return open_disk_reader(std::move(files));
    };
    cache_->spill_to(shape_.kv_spill, options_.open_disk ? options_.open_disk : by_default);
  }
}

void Runtime::build_down_the_ladder() {
  for (;;) {
    try {
      return build();
    } catch (const Error& e) {
      // Smaller steps would not help a cache that host memory cannot hold.
      const bool is_cache =
          !cache_ &&
          std::ranges::none_of(fit_.placement.layers, [](const LayerPlacement& l) { return uses_gpu(l.kv); });
      if (e.code() != ErrorCode::out_of_memory || is_cache || !options_.oom_ladder || !step_down(e.message()))
        throw;
    }
  }
}

// One rung down; false at the end, with everything on the host and small.
bool Runtime::step_down(const std::string& reason) {
  std::vector<LayerPlacement>& layers = fit_.placement.layers;
  const auto say = [&](const std::string& what) { log_warning("{}; {}", reason, what); };
  const int64_t smallest = std::max(kSmallestUbatch, shape_.n_sequences + shape_.n_draft + 1);
  if (shape_.n_ubatch > smallest) {
    const int64_t n = std::max(shape_.n_ubatch / 2, smallest);
    say(format("the micro-batch goes from {} tokens to {}", shape_.n_ubatch, n));
    shape_.n_ubatch = n;
    return true;
  }
  // Layers that devices compute together stay with them.
  if (fit_.placement.parallel) return false;
  const auto caches = [](const LayerPlacement& l) { return cached_experts(l.experts, StepKind::decode); };
  if (std::ranges::any_of(layers, caches)) {
    say("GPUs keep no experts of the host's");
    for (LayerPlacement& l : layers) l.experts = without_cached_experts(l.experts);
    return true;
  }
  const auto on_gpu = [](const LayerPlacement& l) { return uses_gpu(l.weights) || uses_gpu(l.experts); };
  if (std::ranges::any_of(layers, [](const LayerPlacement& l) { return uses_gpu(l.kv); })) {
    say("the KV cache goes to host memory");
    for (LayerPlacement& l : layers) l.kv = ResidentKv{DeviceId::host()};
    return true;
  }
  const auto n_gpu = std::count_if(layers.begin(), layers.end(), on_gpu);
  if (n_gpu == 0 && fit_.placement.output.is_host() && fit_.placement.overrides.empty()) return false;
  if (n_gpu == 0) {
    say("the rest goes to the host too");
    fit_.placement.output = DeviceId::host();
    fit_.placement.overrides.clear();
    return true;
  }
  auto n = (n_gpu + 3) / 4;
  say(format("{} of {} layers go to the host", n, n_gpu));
  WeightHome host = InMemory{}, experts = InMemory{};
  if (fit_.placement.reads_disk()) host = experts = OnDisk{};  // there is no room for more in host memory
  if (fit_.placement.reads_chosen()) experts = chosen_from_disk({});
  for (LayerPlacement& l : layers) {
    if (on_gpu(l) && n-- > 0) l = {host, experts, l.kv};
  }
  return true;
}

// After a step that found no memory: everything is built again, smaller. False when that was not the matter,
// or there is nothing left to be made smaller.
bool Runtime::recover(const Error& error) {
  if (error.code() != ErrorCode::out_of_memory || !options_.oom_ladder || !step_down(error.message()))
    return false;
  build_down_the_ladder();
  return true;
}

// Chooses what is open and says what was chosen.
void Runtime::place(const Explain& before_allocation) {
  check_options(options_);
  check_self_extend(model_.hparams().self_extend, options_);
  if (shape_.kv_memory && shape_.kv_spill.empty()) {
    throw_error(ErrorCode::usage, "{} needs a folder for the rest of the cache: {}",
                setting_text(Setting::kv_memory), setting_text(Setting::kv_spill, "DIR"));
  }
  PlanRequest plan{model_.architecture(), model_.weights(),          devices_, options_.offload, shape_,
                   options_.rates,        model_.may_leave_on_disk()};
  if (options_.placement.layers.empty()) {
    const bool automatic = shape_.is_automatic();
    const int64_t n_most = checked_shape(model_.architecture(), shape_).n_ctx;
    SessionPlan best = std::move(plan_session(plan).front());
    shape_ = best.shape;
    fit_ = std::move(best.fit);
    if (automatic && shape_.n_ctx < n_most) {
      const std::string& limit = best.context_limit;
      log_info("context: {} tokens{} (the model was trained with {}; {} sets another)", shape_.n_ctx,
               limit.empty() ? "" : format(", what {} holds", limit), model_.hparams().n_ctx_train,
               setting_text(Setting::n_ctx));
    }
    if (devices_.size() > 1) {
      log_info("{}", summary(devices_, fit_));
    } else if (fit_.placement.reads_disk() && !fit_.placement.reads_chosen()) {
      log_info("{}: {} of weights do not fit in memory and are read from disk for every step", model_.path(),
               size_text(fit_.bytes.disk_weights));
    }
    if (fit_.placement.reads_chosen()) {
      const SessionGraphs graphs = session_graphs(model_.architecture(), shape_);
      const std::vector<const Graph*> both = graphs.both();
      log_info("{}: {} of weights are on disk, and steps read the experts that they choose; {}",
               model_.path(), size_text(fit_.bytes.disk_weights),
               experts_text(fit_request(plan, graphs, both), fit_));
    }
  }
  if (!options_.placement.layers.empty()) {
    shape_ = checked_shape(model_.architecture(), shape_);
    fit_.placement = options_.placement;
    spill_caches(fit_.placement, session_graphs(model_.architecture(), shape_).kv);
  }
  note_sparse_reads();
  if (options_.context.n_ctx_given)
    warn_of_long_context(model_.hparams(), options_.model.rope, shape_.n_ctx, shape_.n_ctx_sequence);
  warn_of_unused_expert_cache();
  for (const std::string& fallback : fit_.fallbacks) log_warning("runs on the CPU instead: {}", fallback);
  if (!before_allocation) return;
  const SessionGraphs graphs = session_graphs(model_.architecture(), shape_);
  const std::vector<const Graph*> both = graphs.both();
  fit_.bytes = footprint(both, devices_, fit_.placement, graphs.kv);
  before_allocation(explain(
      {plan.architecture, plan.weights, plan.devices, plan.options, graphs.kv, both, plan.rates}, fit_));
}

// Refuses sparse reads where nothing would be read sparsely, and says that they lose something.
void Runtime::note_sparse_reads() const {
  if (!sparse_kv().on()) return;
  const KvConfig kv = session_graphs(model_.architecture(), shape_).kv;
  check_sparse_kv(shape_, kv, fit_.placement);
  log_info("{}: lossy: of more than {} tokens, each new one reads {} and the mean of the others",
           setting_text(Setting::sparse_kv, sparse_kv_text(sparse_kv())), sparse_kv().n_read(),
           sparse_kv().n_read());
}

void Runtime::warn_of_unused_expert_cache() const {
  if (options_.offload.expert_cache.value_or(0) == 0) return;
  if (fit_.placement.caches_experts(StepKind::decode)) return;
  const DeviceModels devices(devices_);
  const std::vector<size_t> needed = cached_expert_bytes(fit_.placement, model_.weights(), devices);
  const bool could = std::ranges::any_of(needed, [](size_t n_bytes) { return n_bytes > 0; });
  log_warning("{} has no effect: {}", setting_text(Setting::expert_cache),
              could ? "no GPU has room for an expert of each layer"
                    : "no layer has its experts on the host and the rest on a GPU");
}

std::string Runtime::generic_kernels() const {
  const SessionGraphs graphs = session_graphs(model_.architecture(), shape_);
  return tandem::generic_kernels(graphs.both(), devices_, fit_.placement);
}

// Programs before the executor that made them.
Runtime::~Runtime() {
  prefill_.reset();
  decode_.reset();
  executor_.reset();
}

ExpertCounts Runtime::expert_counts() const {
  if (!executor_) return earlier_counts_;
  ExpertCounts now = executor_->experts().counts();
  now.on_gpus = executor_->expert_cache().counts();
  return earlier_counts_ + now;
}

size_t Runtime::arena_bytes() const {
  size_t sum = 0;
  for (size_t d = 0; d < devices_.size(); ++d) sum += executor_->arena_bytes(DeviceId::at(d));
  return sum;
}

void Runtime::check_vocabulary(std::span<const int32_t> tokens) const {
  const int64_t n_vocab = model_.hparams().n_vocab;
  for (int32_t id : tokens) {
    if (id >= 0 && id < n_vocab) continue;
    throw_error(ErrorCode::usage, "token id {} is not in the vocabulary of {}", id, n_vocab);
  }
}

void Runtime::check_finite(const TokenLogits& logits, int64_t position) const {
  if (all_usable(logits)) return;
  throw_error(ErrorCode::numeric, "{}: the logits at position {} are not finite (NaN or infinity)",
              model_.path(), position);
}

std::optional<StepLogits> Runtime::step(std::span<const BatchSlice> slices, LogitsWanted wanted) {
  if (!prefill_) build_down_the_ladder();  // an earlier call found no memory
  TANDEM_CHECK(!slices.empty() && static_cast<int64_t>(slices.size()) <= n_sequences());
  size_t n_appended = 0;
  const auto rollback = [&] {
    while (n_appended > 0) {
      const BatchSlice& slice = slices[--n_appended];
      slice.sequence->truncate(slice.sequence->length() - static_cast<int64_t>(slice.tokens.size()));
    }
  };
  if (cache_->open_groups()) cache_->open_groups()->begin_step();
  try {
    int32_t* slots = slots_.data();
    for (const BatchSlice& slice : slices) {
      const auto n = static_cast<int64_t>(slice.tokens.size());
      TANDEM_CHECK(n > 0 && slots - slots_.data() + n <= n_ubatch());
      TANDEM_CHECK(slice.sequence->length() + n <= n_ctx_sequence());
      slice.sequence->append(n, slots);
      ++n_appended;
      slots += n;
    }
  } catch (...) {
    rollback();
    throw;
  }
  try {
    return run(slices, wanted);
  } catch (const Error& e) {
    rollback();
    if (!recover(e)) throw;
    return std::nullopt;
  } catch (...) {
    rollback();
    throw;
  }
}

// Has the blocks in memory that the step writes. From here on, slots and block tables name places (kv/spill.h).
void Runtime::bring_spilled(std::span<const BatchSlice> slices) {
  KvSpill* spill = cache_->spill();
  if (!spill) return;
  const int64_t block_size = kv_config().block_size;
  spill->begin_step();
  for (const BatchSlice& slice : slices) {
    const int64_t n_past = slice.sequence->length() - static_cast<int64_t>(slice.tokens.size());
    spill->bring(slice.sequence->blocks().subspan(static_cast<size_t>(n_past / block_size)),
                 n_past % block_size != 0);
  }
  int32_t* slot = slots_.data();
  for (const BatchSlice& slice : slices) {
    spill->bring_back(slice.sequence->blocks());
    for (size_t i = 0; i < slice.tokens.size(); ++i, ++slot) {
      const auto n = static_cast<int32_t>(block_size);
      *slot = spill->place(*slot / n) * n + *slot % n;
    }
  }
  if (spill->take_changed()) executor_->forget_spilled();
}

// Concatenates the slices, whose tokens have their KV slots; one row of the block table per slice.
StepShape Runtime::fill_inputs(std::span<const BatchSlice> slices) {
  const size_t max_blocks = block_table_.size() / static_cast<size_t>(n_sequences());
  StepShape shape;
  bring_spilled(slices);
  const KvSpill* spill = cache_->spill();
  sequence_steps_.clear();
  for (size_t i = 0; i < slices.size(); ++i) {
    const BatchSlice& slice = slices[i];
    const auto n = static_cast<int64_t>(slice.tokens.size());
    const std::span<const int32_t> blocks = slice.sequence->blocks();
    TANDEM_CHECK(slice.n_outputs <= n && shape.n_outputs + slice.n_outputs <= max_outputs_);
    std::copy(slice.tokens.begin(), slice.tokens.end(), ids_.begin() + shape.n_tokens);
    std::iota(positions_.begin() + shape.n_tokens, positions_.begin() + shape.n_tokens + n,
              static_cast<int32_t>(slice.sequence->length() - n));
    std::fill_n(sequences_.begin() + shape.n_tokens, n, static_cast<int32_t>(i));
    const auto row = block_table_.begin() + static_cast<int64_t>(i * max_blocks);
    const auto place_of = [&](int32_t block) { return spill ? spill->place(block) : block; };
    std::fill(std::transform(blocks.begin(), blocks.end(), row, place_of),
              row + static_cast<int64_t>(max_blocks), 0);
    if (slice.sequence->is_recurrent()) {
      const KvSequence::StepSlots slots = slice.sequence->step_slots();
      states_[2 * i] = slots.read;
      states_[2 * i + 1] = slots.write;
    }
    shape.n_tokens += n;
    sequence_steps_.push_back({n, slice.sequence->length() - n});
    std::iota(outputs_.begin() + shape.n_outputs, outputs_.begin() + shape.n_outputs + slice.n_outputs,
              static_cast<int32_t>(shape.n_tokens - slice.n_outputs));
    shape.n_outputs += slice.n_outputs;
  }
  if (shape.n_outputs == 0) {  // no graph runs without
    outputs_[0] = static_cast<int32_t>(shape.n_tokens - 1);
    shape.n_outputs = 1;
  }
  shape.sequences = sequence_steps_;
  return shape;
}

// Concatenates what the slices bring for an MTP layer. Returns the number of floats.
size_t Runtime::join_hidden(std::span<const BatchSlice> slices) {
  hidden_.clear();
  for (const BatchSlice& slice : slices) {
    TANDEM_CHECK(slice.hidden.size() == slice.tokens.size() * static_cast<size_t>(model_.hparams().n_embd));
    hidden_.insert(hidden_.end(), slice.hidden.begin(), slice.hidden.end());
  }
  return hidden_.size();
}

// What SelfExtend makes of the positions.
void Runtime::set_far_inputs(StepInputs& inputs) {
  const SelfExtend& o = model_.hparams().self_extend;
  const auto n = static_cast<size_t>(inputs.shape.n_tokens);
  for (std::vector<int32_t>& list : far_) list.resize(std::max(list.size(), n));
  for (size_t i = 0; i < n; ++i) {
    far_[0][i] = static_cast<int32_t>(o.last_far(positions_[i]));
    far_[1][i] = static_cast<int32_t>(o.query_group(positions_[i]));
    far_[2][i] = static_cast<int32_t>(o.key_group(positions_[i]));
  }
  constexpr Input kInputs[] = {Input::far_positions, Input::grouped_queries, Input::grouped_keys};
  for (size_t i = 0; i < far_.size(); ++i)
    inputs.data[static_cast<size_t>(kInputs[i])] = std::span(far_[i]).first(n);
}

StepLogits Runtime::run(std::span<const BatchSlice> slices, LogitsWanted wanted) {
  StepInputs inputs;
  inputs.wanted = wanted;
  inputs.shape = fill_inputs(slices);
  const auto n_tokens = static_cast<size_t>(inputs.shape.n_tokens);
  const auto set = [&](Input which, std::span<const int32_t> data) {
    inputs.data[static_cast<size_t>(which)] = data;
  };
  set(Input::ids, std::span(ids_).first(n_tokens));
  set(Input::positions, std::span(positions_).first(n_tokens));
  set(Input::sequences, std::span(sequences_).first(n_tokens));
  set(Input::slots, std::span(slots_).first(n_tokens));
  set(Input::outputs, std::span(outputs_).first(inputs.shape.n_outputs));
  const size_t max_blocks = block_table_.size() / static_cast<size_t>(n_sequences());
  set(Input::block_table,
      std::span(block_table_)
          .first((slices.size() - 1) * max_blocks + slices.back().sequence->blocks().size()));
  const bool needs_hidden = decode_->graph().inputs[static_cast<size_t>(Input::hidden)] != kNoTensor;
  if (needs_hidden) {
    const size_t n_floats = join_hidden(slices);
    set(Input::hidden, {reinterpret_cast<const int32_t*>(hidden_.data()), n_floats});
  }
  if (model_.hparams().self_extend.on()) set_far_inputs(inputs);
  if (is_recurrent()) set(Input::states, std::span(states_).first(2 * slices.size()));
  int32_t hot_from = 0;
  if (hot_) {
    hot_->append(*slices.front().sequence, inputs.shape.n_tokens, hot_slots_.data());
    hot_from = hot_->from();
    set(Input::hot_slots, std::span(hot_slots_).first(n_tokens));
    set(Input::hot_blocks, hot_->blocks());
    set(Input::hot_from, std::span(&hot_from, 1));
  }
  cache_->publish_open_blocks();
  const ShapeClass& small = decode_->graph().shape;
  const bool decodes =
      inputs.shape.n_tokens <= small.max_tokens && inputs.shape.n_outputs <= small.max_outputs;
  if (options_.relay) options_.relay->begin(slices, wanted);
  executor_->run(decodes ? *decode_ : *prefill_, inputs);
  const StepLogits logits(*executor_, static_cast<size_t>(model_.hparams().n_vocab));
  return options_.relay ? options_.relay->end(logits, wanted) : logits;
}

int64_t Runtime::micro_batch(int64_t n_tokens) const {
  return options_.relay ? options_.relay->micro_batch(n_tokens, n_ubatch()) : n_ubatch();
}

void Runtime::read_kv(const KvSequence& sequence, size_t layer, KvHalf half, std::byte* rows) const {
  if (kv_config().layers[layer].is_recurrent()) {
    std::vector<int32_t> slots;
    for (const KvSequence::State& state : sequence.states()) slots.push_back(state.slot);
    return read_kv_rows(*cache_, layer, half, slots, static_cast<int64_t>(slots.size()), rows);
  }
  if (hot_) return hot_->read_rows(sequence, layer, half, rows);
  read_kv_rows(*cache_, layer, half, sequence.blocks(), sequence.length(), rows);
}

void Runtime::write_kv(const KvSequence& sequence, size_t layer, KvHalf half, const std::byte* rows) {
  if (hot_) hot_->forget();
  write_kv_rows(*cache_, layer, half, sequence.blocks(), sequence.length(), rows);
}

void Runtime::read_block(const KvSequence& sequence, int64_t block, size_t layer, KvHalf half,
                         std::byte* rows) const {
  const int64_t n_tokens = kv_config().block_size;
  TANDEM_CHECK((block + 1) * n_tokens <= sequence.length());
  if (hot_) return hot_->read_block(sequence, block, layer, half, n_tokens, rows);
  read_kv_rows(*cache_, layer, half, sequence.blocks().subspan(block, 1), n_tokens, rows);
}

void Runtime::write_block(const KvSequence& sequence, int64_t block, size_t layer, KvHalf half,
                          const std::byte* rows) {
  const int64_t n_tokens = kv_config().block_size;
  TANDEM_CHECK((block + 1) * n_tokens <= sequence.length());
  write_kv_rows(*cache_, layer, half, sequence.blocks().subspan(block, 1), n_tokens, rows);
}

void Runtime::append_unwritten(KvSequence& sequence, int64_t n_tokens) {
  if (hot_) hot_->hand_back(sequence);
  std::vector<int32_t> slots(static_cast<size_t>(n_tokens));
  sequence.append(n_tokens, slots.data(), OpenGroups::Rows::known);
}

void Runtime::read_state(int32_t slot, size_t layer, KvHalf half, std::byte* row) const {
  read_kv_rows(*cache_, layer, half, std::span(&slot, 1), 1, row);
}

bool Runtime::move(KvSequence& sequence, int64_t n_keep, int64_t n_drop) {
  const int64_t n_before = sequence.length(), n_after = n_before - n_drop;
  TANDEM_CHECK(n_keep >= 0 && n_drop >= 0 && n_keep <= n_after);
  if (!key_rotations_ || hot_ || options_.relay) return false;
  const std::vector<int32_t> old(sequence.blocks().begin(), sequence.blocks().end());
  sequence.truncate(n_keep);
  TANDEM_CHECK(sequence.length() == n_keep);  // its blocks are its own
  std::vector<int32_t> slots(static_cast<size_t>(n_after - n_keep));
  sequence.append(n_after - n_keep, slots.data());  // the blocks that were freed are enough
  // Whole blocks are written, so the first one begins with rows that stay.
  const int64_t block = n_keep / kv_config().block_size, first = block * kv_config().block_size;
  const auto from = std::span(old).subspan(static_cast<size_t>(block));
  const auto to = sequence.blocks().subspan(static_cast<size_t>(block));
  try {
    std::vector<std::byte> rows;
    for (size_t layer = 0; layer < kv_config().layers.size() && !to.empty(); ++layer) {
      for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
        const size_t n_row = kv_token_bytes(layer, half);
        if (n_row == 0) continue;  // it reads another layer's cache
        rows.resize(static_cast<size_t>(n_before - first) * n_row);
        read_kv_rows(*cache_, layer, half, from, n_before - first, rows.data());
        std::byte* moved = rows.data() + static_cast<size_t>(n_keep - first) * n_row;
        std::memmove(moved, moved + static_cast<size_t>(n_drop) * n_row,
                     static_cast<size_t>(n_after - n_keep) * n_row);
        if (half == KvHalf::keys) {
          const KvLayer keys = kv_layer_shape(kv_config(), layer);
          rotate_keys((*key_rotations_)[layer], keys.k_dtype, keys.head_dim_k,
                      (n_after - n_keep) * keys.n_head_kv, -n_drop, moved);
        }
        write_kv_rows(*cache_, layer, half, to, n_after - first, rows.data());
      }
    }
  } catch (...) {
    sequence.truncate(n_keep);
    throw;
  }
  return true;
}

void Runtime::write_state(int32_t slot, size_t layer, KvHalf half, const std::byte* row) {
  write_kv_rows(*cache_, layer, half, std::span(&slot, 1), 1, row);
}

ContextOptions planned_context(const Model& model, std::vector<Device*> devices,
                               const EngineOptions& options) {
  check_options(options);
  check_self_extend(model.hparams().self_extend, options);
  const ContextOptions shape = held_to_batch(options.context, model, devices.size());
  const PlanRequest plan{model.architecture(), model.weights(),          devices, options.offload, shape,
                         options.rates,        model.may_leave_on_disk()};
  return plan_session(plan).front().shape;
}

}  // namespace tandem
