#include "support/stages_rig.h"

#include "cpu/cpu_device.h"

namespace tandem::test {

std::vector<SimRankEnd> StagesRig::run(const std::function<void(Session& session)>& lead) {
  times.resize(layers.size());
  weight_bytes.assign(layers.size(), 0);
  return run_sim_ranks(static_cast<int>(layers.size()), ranks, [&](SimRanks& r) {
    const auto rank = static_cast<size_t>(r.rank());
    const auto loaded = Model::load(model);
    loaded->keep_layers(layers[rank]);
    for (const Weight& w : loaded->weights()) weight_bytes[rank] += w.n_bytes();
    const auto host = cpu::make_cpu_device({1, 1});
    std::vector<Device*> devices{host.get()};
    if (gpus) {
      for (Device* gpu : gpus(r.rank())) devices.push_back(gpu);
    }
    Pipeline pipeline(r);
    EngineOptions o = options;
    o.relay = &pipeline;
    o.oom_ladder = false;
    if (devices.size() > 1) o.offload.n_gpu_layers = loaded->hparams().n_layer + 1;
    if (r.rank() == 0) {
      if (on_lead) on_lead(pipeline);
      Session session(*loaded, devices, o);
      lead(session);
      pipeline.finish();
    } else {
      Runtime runtime(*loaded, devices, o);
      pipeline.follow(runtime);
    }
    times[rank] = pipeline.times();
  });
}

std::vector<LayerRange> stages_of(const std::vector<bool>& cuts, int n_ranks) {
  const int n_layer = static_cast<int>(cuts.size()) - 1;
  std::vector<int> possible;  // begins of stages
  for (int i = 0; i < n_layer; ++i) {
    if (cuts[static_cast<size_t>(i)]) possible.push_back(i);
  }
  const int n = static_cast<int>(possible.size());
  if (n < n_ranks) return {};
  std::vector<LayerRange> ranges;
  for (int r = 0; r < n_ranks; ++r) {
    const int end = r + 1 == n_ranks ? n_layer : possible[static_cast<size_t>((r + 1) * n / n_ranks)];
    ranges.push_back({possible[static_cast<size_t>(r * n / n_ranks)], end});
  }
  return ranges;
}

}  // namespace tandem::test
