#include "tools/plan/report.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/overloaded.h"
#include "base/terminal.h"
#include "plan/context_fit.h"
#include "plan/kv_formats.h"
#include "tools/text_table.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostContext = int64_t{1} << 24;
constexpr size_t kColumns = 88;  // of an ordinary window

PlanReport::Tier tier(const PlanRequest& r, const Fit& fit, size_t d) {
  const SessionGraphs no_graphs;
  const FitRequest request{r.architecture, r.weights, r.devices, r.options, no_graphs.kv, {}, r.rates};
  PlanReport::Tier t;
  t.name = r.devices[d]->info().name;
  t.is_gpu = !r.devices[d]->info().host_memory;
  t.bytes = fit.bytes.devices[d];
  if (d == 0) t.bytes.weights += fit.bytes.mapped_weights;
  const bool used = t.is_gpu && t.bytes.total() > 0;
  t.overhead = used ? r.options.budgets.vram_overhead : 0;
  t.budget = device_budget(request, d);
  // If the budget reserves room for the overhead, include it in the limit shown.
  const Budgets& budgets = r.options.budgets;
  if (t.is_gpu && (budgets.max_vram || !(budgets.vram_utilization || r.options.n_gpu_layers)))
    t.budget = std::min(budgets.max_vram.value_or(SIZE_MAX), t.budget + t.overhead);
  t.total_memory = d == 0 ? host_memory(r.devices, budgets) : r.devices.memory(d).total_bytes;
  t.rates = r.rates[d];
  return t;
}

// The choice that min_vram describes: everything on GPUs, except as the user says otherwise.
OffloadChoice line_choice(const PlanRequest& r) {
  if (r.devices.size() < 2) return {};
  return from_options(r.options, r.options.n_gpu_layers.value_or(r.architecture.hparams().n_layer + 1));
}

std::string layers_text(const PlanReport& r, const OffloadChoice& c) {
  if (c.n_gpu_layers > r.n_layer) return "all";
  return format("{}/{}", c.n_gpu_layers, r.n_layer + 1);
}

// The GPU's share of the rows of streamed matrices, in prefill and in decoding; "-" if the CPU computes none.
std::string rows_text(const OffloadChoice& c) {
  if (!c.divides_rows()) return "-";
  return format("{:.0f}%/{:.0f}%", 100 * c.rows_prefill,
                c.streaming == Streaming::always ? 100 * c.rows_decode : 0);
}

// Home of the KV cache; the legend below the table explains the last three.
std::string cache_text(bool gpu, const OffloadChoice& c) {
  if (!gpu) return "CPU";
  return std::visit(Overloaded{[](const CacheBesideLayers& beside) -> std::string {
                                 return beside.for_prompts_on_gpus ? "GPU+" : "GPU";
                               },
                               [](const CacheOnHost& on_host) -> std::string {
                                 return on_host.for_prompts_on_gpus ? "CPU+" : "CPU";
                               },
                               [](const PrefetchedCache&) -> std::string { return "fetched"; },
                               [](const SplitCache& split) { return format("GPU {}", split.n_keep); }},
                    c.cache);
}

// Explains what the table of plans has in short.
std::string legend_text(const PlanReport& r) {
  const auto has = [&](auto&& is) {
    return r.tiers.size() > 1 && std::any_of(r.plans.begin(), r.plans.end(),
                                             [&](const SessionPlan& p) { return is(p.fit.choice); });
  };
  std::string text;
  if (has([](const OffloadChoice& c) { return std::holds_alternative<PrefetchedCache>(c.cache); }))
    text += "KV fetched: in host memory, copied to the GPU for every step, ahead of use\n";
  const auto for_prompts = [](bool on_host) {
    return [=](const OffloadChoice& c) {
      return is_brought_for_prompts(c.cache) && std::holds_alternative<CacheOnHost>(c.cache) == on_host;
    };
  };
  if (has(for_prompts(true))) text += "KV CPU+: in host memory, copied to the GPU for the steps of prompts\n";
  if (has(for_prompts(false))) text += "KV GPU+: beside the layers; of those on the CPU copied to the GPU for the steps of prompts\n";
  if (has([](const OffloadChoice& c) { return std::holds_alternative<SplitCache>(c.cache); }))
    text += "KV GPU N: the newest N tokens on the GPU, older ones on the CPU\n";
  return text;
}

std::string disk_text(const OffloadChoice& c) {
  if (!c.chosen_experts) return format("{}", c.n_disk_layers);
  return c.n_disk_layers > 0 ? format("{}+exps", c.n_disk_layers) : "experts";
}

// Without the columns that tell nothing of any plan: there is no disk, all caches have the type named above, ...
std::string plans_text(const PlanReport& r, const SizeUnit& unit) {
  using enum TextTable::Side;
  struct PlanColumn {
    TextTable::Column column;
    std::string usual;  // left out if all plans have it
    std::function<std::string(size_t)> text;
  };
  const bool gpu = r.tiers.size() > 1;
  const auto choice = [&](size_t i) -> const OffloadChoice& { return r.plans[i].fit.choice; };
  const auto cache_type = [&](size_t i) { return std::string(dtype_name(r.plans[i].shape.k_dtype)); };
  const auto vram = [&](size_t i) {
    size_t n = 0;
    for (size_t d = 1; d < r.tiers.size(); ++d)
      n += r.plan_bytes[i][d] > 0 ? r.plan_bytes[i][d] + r.overhead : 0;
    return unit.text(n);
  };
  const std::vector<PlanColumn> all = {
      {{""}, "", [](size_t i) { return format("{}", i + 1); }},
      {{"ngl", left}, "-", [&](size_t i) { return gpu ? layers_text(r, choice(i)) : "-"; }},
      {{"over\nGPUs", left}, "layer", [&](size_t i) { return std::string(split_name(choice(i).split)); }},
      {{"experts\non CPU"},
       "0",
       [&](size_t i) { return format("{}", std::min(choice(i).n_cpu_moe, r.n_layer)); }},
      {{"kept\non GPU"}, "0", [&](size_t i) { return format("{}", choice(i).n_cached_experts); }},
      {{"KV", left}, "", [&](size_t i) { return cache_text(gpu, choice(i)); }},
      {{"cache", left}, cache_type(0), cache_type},
      {{"streamed", left},
       "none",
       [&](size_t i) { return std::string(streaming_name(choice(i).streaming)); }},
      {{"GPU\nrows", left}, "-", [&](size_t i) { return rows_text(choice(i)); }},
      {{"on\ndisk"}, "0", [&](size_t i) { return disk_text(choice(i)); }},
      {{"micro-\nbatch"}, "", [&](size_t i) { return format("{}", r.plans[i].shape.n_ubatch); }},
      {{format("VRAM\n{}", unit.name)}, unit.text(0), vram},
      {{format("RAM\n{}", unit.name)}, "", [&](size_t i) { return unit.text(r.plan_bytes[i][0]); }},
      {{"prefill\nt/s"},
       "",
       [&](size_t i) { return format("{:.1f}", r.plans[i].fit.speed.prefill_tokens_per_s); }},
      {{"decode\nt/s"}, "", [&](size_t i) {
         return format("{:.1f}", r.plans[i].fit.speed.decode_tokens_per_s);
       }}};
  std::vector<TextTable::Column> columns;
  std::vector<std::vector<std::string>> rows(r.plans.size());
  for (const PlanColumn& c : all) {
    bool is_usual = true;
    for (size_t i = 0; i < rows.size(); ++i) is_usual = is_usual && c.text(i) == c.usual;
    if (is_usual) continue;
    columns.push_back(c.column);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].push_back(c.text(i));
  }
  TextTable table(std::move(columns));
  for (std::vector<std::string>& row : rows) table.add(std::move(row));
  return "\n" + table.text() + legend_text(r);
}

// The plans of a request; of the largest context that fits, if the one asked for does not.
std::vector<SessionPlan> plans_that_fit(PlanRequest& request, int64_t& n_ctx_asked) {
  try {
    return plan_session(request);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::out_of_memory || request.shape.is_automatic()) throw;
    const int64_t n = largest_possible_context(request);
    if (n == 0) throw;
    n_ctx_asked = checked_shape(request.architecture, request.shape).n_ctx;
    request.shape.n_ctx = n;
    return plan_fixed_context(request);
  }
}

Json rate_json(double rate) {
  return rate > 0 ? Json(rate) : Json(nullptr);
}

}  // namespace

PlanReport make_plan_report(const PlanRequest& asked, const std::string& path, const std::string& model) {
  PlanReport report;
  PlanRequest request = asked;
  report.path = path;
  report.model = model;
  report.n_layer = request.architecture.hparams().n_layer;
  report.n_ctx_trained = request.architecture.hparams().n_ctx_train;
  report.n_ctx_usable = request.architecture.hparams().n_ctx_usable();
  report.overhead = request.options.budgets.vram_overhead;
  const double disk = request.rates[0].disk_bytes_per_s;
  report.disk_bytes_per_s = disk > 0 ? disk : kUsualDiskBytesPerS;
  report.plans = plans_that_fit(request, report.n_ctx_asked);
  report.context_limit = report.plans.front().context_limit;
  if (report.plans.size() > 3) report.plans.resize(3);
  for (size_t d = 0; d < request.devices.size(); ++d)
    report.tiers.push_back(tier(request, report.plans[0].fit, d));
  for (const SessionPlan& plan : report.plans) {
    report.plan_bytes.emplace_back();
    for (size_t d = 0; d < request.devices.size(); ++d)
      report.plan_bytes.back().push_back(device_needs(plan.fit, d));
  }
  const SessionPlan& best = report.plans[0];
  const SessionGraphs graphs = session_graphs(request.architecture, best.shape);
  const std::vector<const Graph*> both = graphs.both();
  const FitRequest fit = fit_request(request, graphs, both);
  report.expert_hits = expected_hits(fit, best.fit.placement);
  report.experts = experts_text(fit, best.fit);
  report.kept_experts = kept_experts(fit, best.fit.placement);
  report.kept_experts_text = cached_experts_text(fit, best.fit);
  report.splits = split_text(fit, best.fit);
  report.expert_assumption = expert_use_text(request.options.expert_use.get());
  report.line_choice = line_choice(request);
  PlanRequest line = request;
  line.shape = report.shape();
  line.shape.n_ctx_sequence = request.shape.n_ctx_sequence;
  report.line = memory_line(line, report.line_choice);
  // More than the model was trained with only if the user asks for that and it fits with all weights in memory.
  const int64_t planned = std::max(report.shape().n_ctx, report.n_ctx_usable);
  const bool is_longer = planned > report.n_ctx_usable && !report.plans[0].fit.choice.reads_disk();
  const int64_t most = is_longer ? std::max(planned, kMostContext) : planned;
  report.largest_context = largest_context(line, report.line_choice, most);
  report.largest_context_best = largest_context(line, report.plans[0].fit.choice, most);
  return report;
}

std::string cache_types_text(const ContextOptions& shape) {
  const std::string ranges = kv_type_layers_text(shape.kv_type_layers);
  return format("{}/{}{}", dtype_name(shape.k_dtype), dtype_name(shape.v_dtype),
                ranges.empty() ? "" : ", layers " + ranges);
}

// Of a context that is longer than what the model was trained with.
static std::string trained_text(const PlanReport& r, int64_t n_ctx) {
  if (n_ctx <= r.n_ctx_trained || r.shape().n_sequences != 1) return "";
  return format(" (the model was trained with {}{})", r.n_ctx_trained,
                r.n_ctx_usable > r.n_ctx_trained ? format(", extended to {}", r.n_ctx_usable) : "");
}

std::string context_text(const PlanReport& r) {
  const int64_t n = r.shape().n_ctx;
  if (r.n_ctx_asked > 0 && n == r.n_ctx_trained) {
    return format("a context of {} tokens does not fit; one of {} does, which the model was trained with",
                  r.n_ctx_asked, n);
  }
  if (r.n_ctx_asked > 0) {
    const bool in_memory = !r.plans[0].fit.choice.reads_disk();
    return format("a context of {} tokens does not fit; the largest that does{} has {}{}", r.n_ctx_asked,
                  in_memory ? " with all weights in memory" : "", n, trained_text(r, r.n_ctx_asked));
  }
  if (!r.context_limit.empty()) {
    return format("context {} tokens, what {} holds (the model was trained with {})", n, r.context_limit,
                  r.n_ctx_trained);
  }
  return format("context {} tokens{}", n, trained_text(r, n));
}

std::string SizeUnit::text(size_t bytes) const {
  return format("{:.2f}", static_cast<double>(bytes) / n_bytes);
}

SizeUnit size_unit(const PlanReport& r) {
  size_t most = 0;
  for (const PlanReport::Tier& t : r.tiers) most = std::max(most, t.total());
  return most >= size_t{1} << 30 ? SizeUnit{"GiB", 0x1p30} : SizeUnit{"MiB", 0x1p20};
}

std::string plan_text(const PlanReport& r) {
  const SessionPlan& best = r.plans.front();
  const SizeUnit unit = size_unit(r);
  constexpr size_t kShort = 40;  // leaves room in the line
  const std::string context = context_text(r);
  std::string text = format(
      "{}: {}\n{}{}cache {}, micro-batch {}{}\n\n", printable(r.path, 400), r.model, context,
      context.size() > kShort ? "\n" : ", ", cache_types_text(best.shape), best.shape.n_ubatch,
      best.shape.n_sequences > 1 ? format(", {} prompts at once", best.shape.n_sequences).c_str() : "");
  TextTable table({{unit.name, TextTable::Side::left},
                   {"weights"},
                   {"KV"},
                   {"activations"},
                   {"staging"},
                   {"scratch"},
                   {"overhead"},
                   {"total"},
                   {"allowed"}});
  for (const PlanReport::Tier& t : r.tiers) {
    const DeviceBytes& b = t.bytes;
    table.add({t.name, unit.text(b.weights), unit.text(b.kv), unit.text(b.activations), unit.text(b.staging),
               unit.text(b.scratch), unit.text(t.overhead), unit.text(t.total()),
               t.budget == SIZE_MAX ? "-" : unit.text(t.budget)});
  }
  text += table.text();
  if (!r.kept_experts_text.empty())
    text += wrapped_words("experts on GPUs: " + r.kept_experts_text, kColumns) + "\n";
  if (!r.experts.empty()) text += wrapped_words("experts: " + r.experts, kColumns) + "\n";
  for (const PlanReport::Tier& t : r.tiers) {
    text += format("{}: reads {:.1f} GB/s, {:.2f} Tops/s", t.name, t.rates.read_bytes_per_s / 1e9,
                   t.rates.ops_per_s / 1e12);
    if (t.is_gpu) text += format(", bus {:.1f} GB/s", t.rates.bus_bytes_per_s / 1e9);
    if (t.is_gpu && t.rates.pinned_bytes_per_s > 0)
      text += format(" ({:.1f} from page-locked memory)", t.rates.pinned_bytes_per_s / 1e9);
    if (t.rates.peer_bytes_per_s > 0 && r.tiers.size() > 2)
      text += format(", sums over GPUs {:.1f} GB/s", t.rates.peer_bytes_per_s / 1e9);
    text += "\n";
  }
  if (!r.splits.empty()) text += wrapped_words("over GPUs: " + r.splits, kColumns) + "\n";
  const Footprint& bytes = best.fit.bytes;
  if (bytes.disk_weights > 0) {
    const auto of_experts = static_cast<size_t>(r.expert_hits.read_bytes());
    text += format("disk: reads {:.1f} GB/s; {} {} of weights there, {} {} read for every token\n",
                   r.disk_bytes_per_s / 1e9, unit.text(bytes.disk_weights), unit.name,
                   unit.text(bytes.per_token.disk + of_experts), unit.name);
  }
  if (bytes.disk_kv > 0) {
    text += format(
        "disk: reads {:.1f} GB/s; with a full context {} {} of the KV cache there, {} {} read for every "
        "token in {:.3f} s\n",
        r.disk_bytes_per_s / 1e9, unit.text(bytes.disk_kv), unit.name, unit.text(bytes.per_token.kv_disk),
        unit.name, static_cast<double>(bytes.per_token.kv_disk) / r.disk_bytes_per_s);
  }
  text += plans_text(r, unit);
  const bool gpu = r.tiers.size() > 1;
  const size_t overhead = gpu ? r.tiers[1].overhead : 0;
  const OffloadChoice& c = r.line_choice;
  const bool everything = c.is_all_on_gpus(r.n_layer);
  text += format("\n{} = {:.9f} GiB * n_ctx + {:.3f} GiB\n  ({:.0f} bytes per token; {}{})\n",
                 gpu ? "min_vram" : "min_ram", r.line.bytes_per_token / 0x1p30,
                 (r.line.fixed_bytes + static_cast<double>(overhead)) / 0x1p30, r.line.bytes_per_token,
                 !gpu         ? "on the CPU"
                 : everything ? "everything on the GPU"
                              : "placed as the options say",
                 overhead > 0
                     ? format(", with {:.3f} GiB of overhead", static_cast<double>(overhead) / 0x1p30).c_str()
                     : "");
  const auto largest = [](int64_t n) { return n > 0 ? format("{} tokens", n) : std::string("none fits"); };
  text += format("largest context: {} {}, {} with placement 1\n", largest(r.largest_context),
                 !gpu         ? "on the CPU"
                 : everything ? "with everything on the GPU"
                              : "placed as the options say",
                 largest(r.largest_context_best));
  return text;
}

std::string plan_json(const PlanReport& r) {
  Json page;
  page["file"] = r.path;
  page["model"] = r.model;
  page["n_ctx"] = r.shape().n_ctx;
  page["n_ctx_trained"] = r.n_ctx_trained;
  if (r.n_ctx_usable > r.n_ctx_trained) page["n_ctx_extended"] = r.n_ctx_usable;
  page["n_ctx_that_does_not_fit"] = r.n_ctx_asked > 0 ? Json(r.n_ctx_asked) : Json(nullptr);
  page["context_limit"] = r.context_limit.empty() ? Json(nullptr) : Json(r.context_limit);
  page["tiers"] = Json::array();
  for (const PlanReport::Tier& t : r.tiers) {
    page["tiers"].push_back({{"name", t.name},
                             {"weights", t.bytes.weights},
                             {"kv", t.bytes.kv},
                             {"activations", t.bytes.activations},
                             {"staging", t.bytes.staging},
                             {"scratch", t.bytes.scratch},
                             {"overhead", t.overhead},
                             {"total", t.total()},
                             {"allowed", t.budget == SIZE_MAX ? Json(nullptr) : Json(t.budget)},
                             {"read_bytes_per_s", t.rates.read_bytes_per_s},
                             {"ops_per_s", t.rates.ops_per_s},
                             {"float_ops_per_s", rate_json(t.rates.float_ops_per_s)},
                             {"attention_ops_per_s", rate_json(t.rates.attention_ops_per_s)},
                             {"single_attention_ops_per_s", rate_json(t.rates.single_attention_ops_per_s)},
                             {"bus_bytes_per_s", t.is_gpu ? Json(t.rates.bus_bytes_per_s) : Json(nullptr)},
                             {"pinned_bytes_per_s", rate_json(t.rates.pinned_bytes_per_s)},
                             {"peer_bytes_per_s", rate_json(t.rates.peer_bytes_per_s)}});
  }
  const Footprint& best = r.plans[0].fit.bytes;
  page["disk"] = {{"weights", best.disk_weights},
                  {"kv", best.disk_kv},
                  {"kv_read_per_token", best.per_token.kv_disk},
                  {"read_per_token", best.per_token.disk + static_cast<size_t>(r.expert_hits.read_bytes())},
                  {"read_bytes_per_s", r.disk_bytes_per_s}};
  if (!r.experts.empty()) {
    page["experts"] = {{"slots", best.expert_slots},
                       {"hit_rate", r.expert_hits.share()},
                       {"read_per_step", r.expert_hits.read_bytes()},
                       {"assumption", r.expert_assumption}};
  }
  if (r.kept_experts.n_slots > 0) {
    page["experts_on_gpus"] = {{"slots", r.kept_experts.n_slots},
                               {"experts", r.kept_experts.n_experts},
                               {"hit_rate", r.kept_experts.share()},
                               {"fetched", r.kept_experts.fetched},
                               {"assumption", r.expert_assumption}};
  }
  page["plans"] = Json::array();
  for (size_t i = 0; i < r.plans.size(); ++i) {
    const SessionPlan& p = r.plans[i];
    const CacheChoice& cache = p.fit.choice.cache;
    const auto* split = std::get_if<SplitCache>(&cache);
    page["plans"].push_back({{"n_gpu_layers", p.fit.choice.n_gpu_layers},
                             {"n_cpu_moe", p.fit.choice.n_cpu_moe},
                             {"n_cached_experts", p.fit.choice.n_cached_experts},
                             {"kv_on_host", std::holds_alternative<CacheOnHost>(cache)},
                             {"kv_for_prompts", is_brought_for_prompts(cache)},
                             {"kv_prefetched", std::holds_alternative<PrefetchedCache>(cache)},
                             {"kv_split", split ? split->n_keep : 0},
                             {"split_mode", split_name(p.fit.choice.split)},
                             {"streaming", streaming_name(p.fit.choice.streaming)},
                             {"gpu_rows_prefill", p.fit.choice.rows_prefill},
                             {"gpu_rows_decode", p.fit.choice.rows_decode},
                             {"n_disk_layers", p.fit.choice.n_disk_layers},
                             {"chosen_experts", p.fit.choice.chosen_experts},
                             {"n_ubatch", p.shape.n_ubatch},
                             {"n_sequences", p.shape.n_sequences},
                             {"cache_type_k", dtype_name(p.shape.k_dtype)},
                             {"cache_type_v", dtype_name(p.shape.v_dtype)},
                             {"kv_type_layers", kv_type_layers_text(p.shape.kv_type_layers)},
                             {"bytes", r.plan_bytes[i]},
                             {"prefill_tokens_per_s", p.fit.speed.prefill_tokens_per_s},
                             {"decode_tokens_per_s", p.fit.speed.decode_tokens_per_s}});
  }
  page["min_vram"] = {{"bytes_per_token", r.line.bytes_per_token},
                      {"fixed_bytes", r.line.fixed_bytes},
                      {"overhead", r.tiers.size() > 1 ? r.tiers[1].overhead : 0},
                      {"n_gpu_layers", r.line_choice.n_gpu_layers}};
  page["largest_context"] = r.largest_context;
  page["largest_context_of_best_plan"] = r.largest_context_best;
  return page.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::tools
