#include "plan/session_plan.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "base/setting.h"
#include "graph/top_k.h"
#include "plan/kv_formats.h"

namespace tandem {
namespace {

constexpr int64_t kUsualUbatch = 512, kMaxUbatch = 8192;
constexpr size_t kMaxLogitsBytes = 64u << 20;  // of all-token logits in one step

// With smaller micro-batches there is some memory more for the rest, which changes how many layers are on
// GPUs but hardly which way of placing them is good: the best of the shape asked for are tried. None for
// those that nothing is known of.
std::vector<OffloadChoice> choices_for(const ContextOptions& shape, const std::vector<SessionPlan>& plans) {
  constexpr size_t kBest = 6;
  std::vector<OffloadChoice> list;
  for (const SessionPlan& plan : plans) {
    const bool is_wider = plan.shape.n_ubatch > shape.n_ubatch && plan.shape.k_dtype == shape.k_dtype;
    OffloadChoice choice = plan.fit.choice;
    if (!is_wider || choice.divides_rows()) continue;  // rows are divided anew
    choice.chosen_experts = false;                     // and so is memory for experts
    choice.n_expert_bytes = 0;
    list.push_back(choice);
    if (list.size() == kBest) break;
  }
  return list;
}

// Everything that a GPU can have is on one: no other shape could be faster.
bool is_all_on_gpus(const PlanRequest& r, const Fit& fit) {
  return fit.choice.is_all_on_gpus(r.architecture.hparams().n_layer);
}

size_t gpu_bytes(const Fit& fit) {
  if (fit.bytes.devices.size() == 1) return device_needs(fit, 0);
  size_t n_bytes = 0;
  for (size_t d = 1; d < fit.bytes.devices.size(); ++d) n_bytes += fit.bytes.devices[d].total();
  return n_bytes;
}

std::vector<SessionPlan> plans_of_shape(const PlanRequest& r, const ContextOptions& shape,
                                        std::span<const OffloadChoice> choices) {
  const SessionGraphs graphs = session_graphs(r.architecture, shape);
  const std::vector<const Graph*> both = graphs.both();
  FitRequest request = fit_request(r, graphs, both);
  request.choices = choices;
  std::vector<SessionPlan> plans;
  for (Fit& f : all_fits(request)) plans.push_back({shape, std::move(f)});
  return plans;
}

// Where speeds are unknown: those of the widest micro-batch that leaves all weights in memory. If none does, of the
// widest, which reads them least often.
std::vector<SessionPlan> widest_in_memory(const PlanRequest& r) {
  std::vector<SessionPlan> widest;
  for (const ContextOptions& shape : open_shapes(r)) {
    std::vector<SessionPlan> plans = plans_of_shape(r, shape, {});
    if (plans.empty()) continue;
    if (!plans.front().fit.choice.reads_disk()) return plans;
    if (widest.empty()) widest = std::move(plans);
  }
  return widest;
}

// Seconds of a prompt that fills half of the context, and of that with a usual answer.
struct LongPrompt {
  double prompt_s, all_s;
  double answer_s() const { return all_s - prompt_s; }
};
LongPrompt long_prompt(const SessionPlan& plan) {
  const auto n_prompt = static_cast<double>(std::max(plan.shape.n_ctx_sequence / 2, kUsualPrompt));
  const double prompt_s = n_prompt / plan.fit.speed.prefill_tokens_per_s;
  return {prompt_s, prompt_s + kUsualAnswer / plan.fit.speed.decode_tokens_per_s};
}

// Whether prompts bring weights to a GPU for every step.
bool streams_prompts(const Fit& fit) {
  return std::ranges::any_of(fit.placement.layers, [](const LayerPlacement& layer) {
    const bool here =
        holder(layer.weights).is_host() && !computes_on(layer.weights, StepKind::prefill).is_host();
    return here ||
           (holder(layer.experts).is_host() && !computes_on(layer.experts, StepKind::prefill).is_host());
  });
}

// Whether the host computes experts in prompts.
bool computes_experts(const PlanRequest& r, const Fit& fit) {
  return r.architecture.hparams().n_expert > 0 &&
         std::ranges::any_of(fit.placement.layers, [](const LayerPlacement& layer) {
           return computes_on(layer.experts, StepKind::prefill).is_host();
         });
}

// The micro-batch in which each expert of a mixture gets 128 rows, if all are used alike; of others the usual one.
int64_t ubatch_of_experts(const Hparams& h) {
  constexpr int64_t kRowsOfExpert = 128;
  if (h.n_expert <= 0 || h.n_expert_used <= 0) return kUsualUbatch;
  const auto n = static_cast<uint64_t>(ceil_div(kRowsOfExpert * h.n_expert, h.n_expert_used));
  return std::clamp(static_cast<int64_t>(std::bit_ceil(n)), kUsualUbatch, kMaxUbatch);
}

// The best choices that gain by wider micro-batches, at most kAlike with the same streaming, split and experts on the host: with a
// narrow one several ways may be as fast, and another be far ahead with a wide one.
std::vector<OffloadChoice> choices_to_widen(const PlanRequest& r, const std::vector<SessionPlan>& plans) {
  constexpr size_t kBest = 6;
  constexpr int64_t kAlike = 2;
  std::vector<OffloadChoice> list;
  for (const SessionPlan& plan : plans) {
    OffloadChoice choice = plan.fit.choice;
    if (plan.shape.k_dtype != plans.front().shape.k_dtype) continue;
    if (!streams_prompts(plan.fit) && !computes_experts(r, plan.fit)) continue;
    if (!streams(r.options))
      choice.rows_prefill = choice.rows_decode = 1;  // divided anew, as memory for experts is
    choice.chosen_experts = false;
    choice.n_expert_bytes = 0;
    choice.n_disk_layers = choice.n_cached_experts = 0;
    const auto is_alike = [&](const OffloadChoice& other) {
      return other.streaming == choice.streaming && other.split == choice.split &&
             other.n_cpu_moe == choice.n_cpu_moe;
    };
    if (std::ranges::count_if(list, is_alike) >= kAlike) continue;
    list.push_back(choice);
    if (list.size() == kBest) break;
  }
  return list;
}

// What is streamed crosses the bus once a step, and what is on disk is read once. So wider micro-batches than the usual one
// are tried where the best plan streams, if a prompt of half the context fills one and then takes less time by more than a
// little. Wider activations take memory from layers: what an answer loses by that must be less than what the prompt gains. Nor is
// a way that is best for prompts kept if another one answers faster by more than it reads slower, both by more than a little.
// Where the host computes experts, wider ones are taken until each gets enough rows, unless that costs more than a little:
// kernels are faster with them than predicted.
std::optional<SessionPlan> wider_plan(const PlanRequest& r, const std::vector<SessionPlan>& plans) {
  constexpr double kWorthwhile = 0.97;
  const SessionPlan& usual = plans.front();
  const bool streams = streams_prompts(usual.fit), computes = computes_experts(r, usual.fit);
  if (r.shape.n_ubatch_given || !(streams || computes)) return std::nullopt;
  const int64_t n_batch = usual.shape.n_batch_given ? usual.shape.n_batch : kMaxUbatch;
  const int64_t enough_rows = ubatch_of_experts(r.architecture.hparams());
  const int64_t most =
      std::min({streams ? kMaxUbatch : enough_rows, n_batch, usual.shape.n_ctx_sequence / 2});
  const std::vector<OffloadChoice> choices = choices_to_widen(r, plans);
  std::optional<SessionPlan> best;
  LongPrompt least = long_prompt(usual);
  const double usual_s = least.all_s, usual_prompt_s = least.prompt_s;
  for (int64_t n = 2 * usual.shape.n_ubatch; n <= most; n *= 2) {
    ContextOptions shape = usual.shape;
    shape.n_ubatch = n;
    double bearable_s = computes && n <= enough_rows ? std::min(usual_s, least.all_s) / kWorthwhile : 0;
    for (SessionPlan& plan : plans_of_shape(r, shape, choices)) {
      if (plan.fit.choice.reads_disk() != usual.fit.choice.reads_disk()) continue;
      const LongPrompt time = long_prompt(plan);
      const bool gains = time.all_s < least.all_s && (time.prompt_s <= kWorthwhile * least.prompt_s ||
                                                      (time.answer_s() <= kWorthwhile * least.answer_s() &&
                                                       time.prompt_s <= kWorthwhile * usual_prompt_s));
      if (!gains && !(computes_experts(r, plan.fit) && time.all_s <= bearable_s)) continue;
      bearable_s = time.all_s;
      best = std::move(plan);
      least = time;
    }
  }
  return best;
}

std::vector<SessionPlan> plans_by_speed(const PlanRequest& r) {
  std::vector<SessionPlan> plans;
  for (const ContextOptions& shape : open_shapes(r)) {
    std::ranges::move(plans_of_shape(r, shape, choices_for(shape, plans)), std::back_inserter(plans));
    if (!plans.empty() && is_all_on_gpus(r, plans.front().fit)) break;
  }
  // A lossless cache and the micro-batch asked for come first where they are as fast.
  std::stable_sort(plans.begin(), plans.end(), [](const SessionPlan& a, const SessionPlan& b) {
    return compared_seconds(a.fit) < compared_seconds(b.fit);
  });
  if (plans.empty()) return plans;
  if (auto wider = wider_plan(r, plans)) plans.insert(plans.begin(), std::move(*wider));
  return plans;
}

}  // namespace

std::vector<ContextOptions> open_shapes(const PlanRequest& r) {
  const ContextOptions asked = checked_shape(r.architecture, r.shape);
  std::vector<ContextOptions> list{asked};
  const int64_t smallest = std::max<int64_t>(r.rates.empty() ? kUsualUbatch : 64, asked.n_sequences + 1);
  if (r.rates.empty() && r.devices.size() > 1) return list;
  for (int64_t n = asked.n_ubatch / 2; !asked.n_ubatch_given && n >= smallest; n /= 2) {
    list.push_back(asked);
    list.back().n_ubatch = n;
  }
  if (r.rates.empty() || !r.options.may_quantize_kv || asked.kv_dtype_given) return list;
  for (int i = 0; i < r.architecture.hparams().n_layer; ++i) {
    const KvShape kv = r.architecture.kv_shape(i);
    if (kv.head_dim_k % 32 != 0 || kv.head_dim_v % 32 != 0) return list;
  }
  const size_t n = list.size();
  for (size_t i = 0; i < n; ++i) {
    list.push_back(list[i]);
    list.back().k_dtype = list.back().v_dtype = DType::Q8_0;
  }
  return list;
}

int64_t trained_context(const PlanRequest& r) {
  return r.architecture.hparams().n_ctx_usable() * std::max<int64_t>(r.shape.n_sequences, 1);
}

FitRequest fit_request(const PlanRequest& r, const SessionGraphs& graphs,
                       const std::vector<const Graph*>& both) {
  return {r.architecture, r.weights, r.devices, r.options, graphs.kv, both, r.rates, {}, r.may_leave_on_disk};
}

ContextOptions checked_shape(const Architecture& architecture, ContextOptions shape) {
  if (shape.is_automatic() && shape.max_ctx > 0) shape.n_ctx = shape.max_ctx;
  if (shape.n_ctx <= 0) shape.n_ctx = architecture.hparams().n_ctx_usable();
  if (shape.n_ubatch <= 0) shape.n_ubatch = std::min(kUsualUbatch, std::max<int64_t>(shape.n_batch, 1));
  shape.n_ubatch = std::clamp<int64_t>(shape.n_ubatch, 1, shape.n_ctx);
  if (shape.n_ctx_sequence <= 0 || shape.n_ctx_sequence > shape.n_ctx) shape.n_ctx_sequence = shape.n_ctx;
  shape.n_sequences = std::clamp<int64_t>(shape.n_sequences, 1, ceil_div(shape.n_ctx, KvConfig{}.block_size));
  shape.n_draft = std::clamp<int64_t>(shape.n_draft, 0, shape.n_ctx / 2);
  if (shape.n_sequences + shape.n_draft > 1)
    shape.n_ubatch = std::max(shape.n_ubatch, shape.n_sequences + shape.n_draft + 1);
  shape.n_state_checkpoints =
      std::clamp<int64_t>(shape.n_state_checkpoints, 0, shape.n_ctx / KvConfig{}.block_size);
  return shape;
}

int64_t automatic_ubatch(const Architecture& architecture, size_t n_devices) {
  return n_devices > 1 ? kUsualUbatch : ubatch_of_experts(architecture.hparams());
}

static void check_deferred(const Hparams& h, const Graph& graph) {
  const int64_t n = graph.shape.n_deferred;
  if (h.n_expert_used > 0 && n >= h.n_expert_used) {
    throw_error(ErrorCode::usage,
                "{}: a token of this model uses {} experts, and one of them cannot be deferred",
                setting_text(Setting::n_deferred, n), h.n_expert_used);
  }
  const auto is_deferred = [](const Node& node) {
    const auto* op = std::get_if<MoeFfnOp>(&node.op);
    return op && op->joins_later;
  };
  if (std::ranges::none_of(graph.nodes, is_deferred)) {
    throw_error(ErrorCode::usage, "{}: this model has no experts that can be deferred",
                setting_text(Setting::n_deferred, n));
  }
}

SessionGraphs session_graphs(const Architecture& architecture, const ContextOptions& asked) {
  const ContextOptions shape = checked_shape(architecture, asked);
  SessionGraphs graphs;
  KvConfig& kv = graphs.kv;
  kv.n_ctx = shape.n_ctx;
  for (int i = 0; i < architecture.hparams().n_layer; ++i) kv.layers.push_back(architecture.kv_shape(i));
  if (kv.is_recurrent()) kv.n_state_slots = state_slot_count(shape.n_sequences, shape.n_state_checkpoints);
  set_kv_formats(kv, shape);
  ShapeClass capacity;
  for (const KvFormat& format : kv.formats) capacity.kv_rotations.push_back(format.rotation);
  capacity.n_ctx = shape.n_ctx_sequence;
  capacity.latent_form = shape.latent_form;
  capacity.keeps_hidden = shape.keeps_hidden;
  capacity.max_blocks = ceil_div(shape.n_ctx_sequence, kv.block_size);
  capacity.max_sequences = shape.n_sequences;
  capacity.n_draft = shape.n_draft;
  capacity.n_deferred = shape.n_deferred;
  capacity.max_tokens = capacity.max_outputs = shape.n_sequences + shape.n_draft;
  capacity.n_top = shape.all_logits ? 0 : kMaxTopK;
  capacity.sparse = shape.sparse_kv;
  graphs.decode = architecture.build(capacity);
  capacity.sparse = {};
  capacity.max_tokens = shape.n_ubatch;
  if (shape.all_logits) {
    const size_t row = static_cast<size_t>(architecture.hparams().n_vocab) * sizeof(float);
    capacity.max_outputs = std::clamp<int64_t>(static_cast<int64_t>(kMaxLogitsBytes / row),
                                               capacity.max_outputs, shape.n_ubatch);
  }
  graphs.prefill = architecture.build(capacity);
  const bool is_part =
      !graphs.prefill.received.empty() || !graphs.prefill.sent.empty();  // then others may have them
  if (shape.n_deferred > 0 && !is_part) check_deferred(architecture.hparams(), graphs.prefill);
  return graphs;
}

std::vector<SessionPlan> plan_fixed_context(const PlanRequest& r) {
  std::vector<SessionPlan> plans = r.rates.empty() ? widest_in_memory(r) : plans_by_speed(r);
  if (plans.empty()) {  // what fit() says of the shape asked for
    const ContextOptions shape = checked_shape(r.architecture, r.shape);
    const SessionGraphs graphs = session_graphs(r.architecture, shape);
    const std::vector<const Graph*> both = graphs.both();
    plans.push_back({shape, fit(fit_request(r, graphs, both))});
  }
  return plans;
}

Fit fit_shape(const PlanRequest& r, const ContextOptions& shape, const OffloadChoice& choice) {
  const SessionGraphs graphs = session_graphs(r.architecture, shape);
  const std::vector<const Graph*> both = graphs.both();
  return fit_with(fit_request(r, graphs, both), choice);
}

MemoryLine memory_line(const PlanRequest& r, const OffloadChoice& choice) {
  // Two contexts of whole blocks, with a micro-batch that both hold, and more than a hot cache.
  ContextOptions shape = checked_shape(r.architecture, r.shape);
  const auto* split = std::get_if<SplitCache>(&choice.cache);
  shape.kv_memory.reset();
  const int64_t held = shape.n_ubatch + (split ? split->n_keep + 1024 : 0);
  shape.n_ctx = std::max<int64_t>(align_up(static_cast<size_t>(held), 1024), 8192);
  const int64_t first = shape.n_ctx;
  const auto low = static_cast<double>(gpu_bytes(fit_shape(r, shape, choice)));
  shape.n_ctx = 2 * first;
  const auto high = static_cast<double>(gpu_bytes(fit_shape(r, shape, choice)));
  const double slope = (high - low) / static_cast<double>(first);
  return {slope, low - slope * static_cast<double>(first)};
}

}  // namespace tandem
