#include "tools/plan/hosts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "pipeline/micro_batch.h"
#include "plan/imagined_device.h"
#include "plan/session_plan.h"

namespace tandem::tools {
namespace {

// What one rank of a host has.
struct RankMachine {
  size_t host = 0;
  std::vector<std::unique_ptr<DeviceModel>> gpus;
  std::vector<DeviceRates> rates;  // of the CPU, then of the GPUs
  EngineOptions engine;            // with the host's memory as limit
  RankPower power;

  DeviceModels devices(DeviceModel* cpu) const {
    std::vector<DeviceModel*> list{cpu};
    for (const auto& gpu : gpus) list.push_back(gpu.get());
    return DeviceModels(list);
  }
};

KnownGpu gpu_of(const HostsRequest& r, const PlannedHost& h) {
  KnownGpu gpu = h.vram ? r.usual_gpu : r.find_gpu(h.gpu);
  if (h.vram) gpu.memory_gib = static_cast<double>(*h.vram) / (1 << 30);
  if (h.vram_bytes_per_s) {
    gpu.rates.read_bytes_per_s = *h.vram_bytes_per_s;
    if (h.vram) gpu.rates.ops_per_s = 60 * 1.25 * *h.vram_bytes_per_s;
  }
  if (h.pcie_bytes_per_s) gpu.rates.bus_bytes_per_s = *h.pcie_bytes_per_s;
  if (h.peer_bytes_per_s) {
    gpu.rates.peer_bytes_per_s = *h.peer_bytes_per_s;
    gpu.rates.peer_s = DeviceRates::kUsualPeerS;
  }
  return gpu;
}

RankMachine machine_of_rank(const HostsRequest& r, size_t host) {
  const PlannedHost& h = r.hosts[host];
  RankMachine m;
  m.host = host;
  m.engine = r.engine;
  m.engine.offload.budgets.max_ram = h.ram_bytes / static_cast<size_t>(h.n_ranks);
  DeviceRates cpu = r.cpu_rates;
  cpu.read_bytes_per_s = cpu.memory_bytes_per_s = h.ram_bytes_per_s / static_cast<double>(h.n_ranks);
  cpu.ops_per_s /= static_cast<double>(h.n_ranks);
  m.rates.push_back(cpu);
  m.power.host_bytes = static_cast<double>(*m.engine.offload.budgets.max_ram);
  m.power.host_bytes_per_s = cpu.read_bytes_per_s;
  if (h.n_gpus == 0) return m;
  if (h.n_gpus < h.n_ranks) {
    throw_error(ErrorCode::usage, "host {}: {} ranks, but {} GPUs: give each rank one", printable(h.name),
                h.n_ranks, h.n_gpus);
  }
  const KnownGpu gpu = gpu_of(r, h);
  const auto n_bytes = static_cast<size_t>(gpu.memory_gib * (1 << 30));
  const int64_t n_gpus = h.n_ranks > 1 ? 1 : h.n_gpus;  // as ranks on one machine take them
  for (int64_t i = 0; i < n_gpus; ++i) {
    m.gpus.push_back(
        std::make_unique<ImaginedDevice>(n_gpus == 1 ? std::string(gpu.name) : format("{} {}", gpu.name, i),
                                         n_bytes, gpu.weight_bytes, gpu.dtype_support));
    m.rates.push_back(gpu.rates);
  }
  m.power.gpu_bytes = 0.9 * static_cast<double>(n_gpus) * static_cast<double>(n_bytes);
  // Whole layers one after the other; what is divided all read at once.
  const bool together = r.engine.offload.split_mode == SplitMode::tensor;
  m.power.gpu_bytes_per_s = gpu.rates.read_bytes_per_s * static_cast<double>(together ? n_gpus : 1);
  return m;
}

double sent_bytes(const Architecture& stage) {
  const Graph graph = stage.build(ShapeClass{});
  double n_bytes = 0;
  for (const TensorId id : graph.sent) {
    n_bytes += static_cast<double>(row_bytes(graph.tensor(id).dtype, graph.tensor(id).n_cols));
  }
  return n_bytes;
}

SessionPlan plan_stage(const HostsRequest& r, const RankMachine& m, const Model& model,
                       ContextOptions shape) {
  if (shape.n_ubatch <= 0) shape.n_ubatch = automatic_ubatch(model.architecture(), m.rates.size());
  const PlanRequest request{model.architecture(),     model.weights(), m.devices(r.cpu.get()),
                            m.engine.offload,         shape,           m.rates,
                            model.may_leave_on_disk()};
  try {
    return plan_session(request).front();
  } catch (const Error& e) {
    throw Error(e.code(), format("host {}: {}", printable(r.hosts[m.host].name), e.message()));
  }
}

}  // namespace

HostsPlan plan_hosts(const HostsRequest& r) {
  std::vector<RankMachine> machines;
  std::vector<RankPower> powers;
  for (size_t host = 0; host < r.hosts.size(); ++host) {
    for (int64_t i = 0; i < r.hosts[host].n_ranks; ++i) {
      machines.push_back(machine_of_rank(r, host));
      powers.push_back(machines.back().power);
    }
  }
  HostsPlan plan;
  plan.shape = r.engine.context;
  std::vector<std::unique_ptr<Model>> stages;
  for (size_t i = 0; i < machines.size(); ++i) stages.push_back(r.load());
  const Architecture& whole = stages[0]->architecture();
  constexpr int64_t kUsualContext = 4096;
  const int64_t n_ctx =
      plan.shape.n_ctx > 0 ? plan.shape.n_ctx : std::min(kUsualContext, whole.hparams().n_ctx_usable());
  const LayerShares shares =
      divide_layers(layer_loads(whole), possible_cuts(whole), powers, static_cast<double>(n_ctx));
  std::optional<int64_t> least_ctx;
  std::vector<SessionPlan> alone;  // what each rank would have room for
  for (size_t i = 0; i < machines.size(); ++i) {
    stages[i]->keep_layers(shares.ranges[i]);
    alone.push_back(plan_stage(r, machines[i], *stages[i], r.engine.context));
    const int64_t n = alone.back().shape.n_ctx;
    least_ctx = std::min(least_ctx.value_or(n), n);
  }
  plan.shape.n_ctx = *least_ctx;
  double slowest = 0;
  for (size_t i = 0; i < machines.size(); ++i) {
    const bool is_same = alone[i].shape.n_ctx == plan.shape.n_ctx;
    const SessionPlan stage =
        is_same ? std::move(alone[i]) : plan_stage(r, machines[i], *stages[i], plan.shape);
    const PlannedHost& host = r.hosts[machines[i].host];
    RankPlan rank;
    rank.host = machines[i].host;
    rank.layers = shares.ranges[i];
    rank.host_bytes = stage.fit.bytes.devices[0].total() + stage.fit.bytes.mapped_weights;
    for (size_t d = 1; d < stage.fit.bytes.devices.size(); ++d)
      rank.gpu_bytes += stage.fit.bytes.devices[d].total();
    rank.n_gpus = machines[i].gpus.size();
    rank.split = stage.fit.choice.split;
    rank.token_s = 1 / stage.fit.speed.decode_tokens_per_s;
    rank.prompt_token_s = 1 / stage.fit.speed.prefill_tokens_per_s;
    const bool last = i + 1 == machines.size();
    const size_t next = machines[last ? 0 : i + 1].host;
    const bool crosses = next != rank.host;  // else memory
    rank.sent_bytes = last ? 0 : sent_bytes(stages[i]->architecture());
    rank.link_bytes_per_s =
        crosses ? std::min(host.link_bytes_per_s, r.hosts[next].link_bytes_per_s) : host.ram_bytes_per_s / 4;
    rank.link_s = crosses ? std::max(host.link_s, r.hosts[next].link_s) : 1e-6;
    const double link = rank.link_s + rank.sent_bytes / rank.link_bytes_per_s;
    plan.link_s += machines.size() > 1 ? link : 0;
    plan.token_s += rank.token_s;
    slowest = std::max({slowest, rank.prompt_token_s, rank.sent_bytes / rank.link_bytes_per_s});
    plan.shape.n_ubatch = stage.shape.n_ubatch;
    plan.ranks.push_back(rank);
  }
  plan.token_s += plan.link_s;
  plan.n_prompt = std::max<int64_t>(1, plan.shape.n_ctx / 2);
  const auto n_ranks = static_cast<int>(machines.size());
  plan.micro_batch =
      std::min(plan.n_prompt, pipeline_micro_batch(plan.n_prompt, plan.shape.n_ubatch, n_ranks));
  const double turns =
      static_cast<double>(plan.n_prompt) / static_cast<double>(plan.micro_batch) + n_ranks - 1;
  plan.prompt_tokens_per_s =
      static_cast<double>(plan.n_prompt) / (turns * static_cast<double>(plan.micro_batch) * slowest);
  return plan;
}

std::string hosts_text(const HostsRequest& r, const HostsPlan& plan) {
  std::string text = format("{}: {}\n{} ranks on {} hosts, context {} tokens\n\n", r.name, r.description,
                            plan.ranks.size(), r.hosts.size(), plan.shape.n_ctx);
  text += format("{:<5}{:<16}{:<10}{:>14}{:>14}{:>12}{:>14}{:>14}\n", "rank", "host", "layers", "host memory",
                 "GPU memory", "token", "prompt", "sent a token");
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    const RankPlan& rank = plan.ranks[i];
    text += format(
        "{:<5}{:<16}{:<10}{:>14}{:>14}{:>9.2f} ms{:>10.0f} t/s{:>14}\n", i,
        printable(r.hosts[rank.host].name), format("{}-{}", rank.layers.first, rank.layers.end - 1),
        size_text(rank.host_bytes), rank.gpu_bytes > 0 ? size_text(rank.gpu_bytes) : "-", 1e3 * rank.token_s,
        1 / rank.prompt_token_s, rank.sent_bytes > 0 ? size_text(static_cast<size_t>(rank.sent_bytes)) : "-");
  }
  text += format("\ndecode {:.2f} t/s: {:.2f} ms a token, of which {:.2f} ms on links\n", 1 / plan.token_s,
                 1e3 * plan.token_s, 1e3 * plan.link_s);
  text += format("prompt {:.0f} t/s, of {} tokens in micro-batches of {}\n", plan.prompt_tokens_per_s,
                 plan.n_prompt, plan.micro_batch);
  const auto divides = [](const RankPlan& rank) {
    return rank.n_gpus > 1 && rank.split == SplitMode::tensor;
  };
  if (std::ranges::any_of(plan.ranks, divides)) {
    text += "each layer is divided over the GPUs of its rank:";
    for (size_t i = 0; i < plan.ranks.size(); ++i) {
      if (divides(plan.ranks[i])) text += format(" rank {} {} GPUs;", i, plan.ranks[i].n_gpus);
    }
    text.back() = '\n';
  }
  return text + "The CPUs compute as this machine's does, as far as their memory gives.\n";
}

std::string hosts_json(const HostsRequest& r, const HostsPlan& plan) {
  using Json = nlohmann::ordered_json;
  Json page{{"model", r.name},
            {"n_ctx", plan.shape.n_ctx},
            {"decode_tokens_per_s", 1 / plan.token_s},
            {"decode_link_s", plan.link_s},
            {"prefill_tokens_per_s", plan.prompt_tokens_per_s},
            {"n_prompt", plan.n_prompt},
            {"micro_batch", plan.micro_batch}};
  for (const RankPlan& rank : plan.ranks) {
    page["ranks"].push_back({{"host", r.hosts[rank.host].name},
                             {"first_layer", rank.layers.first},
                             {"end_layer", rank.layers.end},
                             {"n_gpus", rank.n_gpus},
                             {"split_mode", split_name(rank.split)},
                             {"host_bytes", rank.host_bytes},
                             {"gpu_bytes", rank.gpu_bytes},
                             {"token_s", rank.token_s},
                             {"prompt_token_s", rank.prompt_token_s},
                             {"sent_bytes", rank.sent_bytes}});
  }
  return page.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::tools
