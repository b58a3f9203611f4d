#include "exec/executor.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "device/lowering.h"
#include "exec/expert_cache.h"
#include "exec/expert_store.h"
#include "exec/placed_graph.h"

namespace tandem {
namespace {

size_t step_bytes(const Tensor& t, const StepShape& shape) {
  const int64_t rows = t.extent == Extent::tokens    ? shape.n_tokens
                       : t.extent == Extent::outputs ? shape.n_outputs
                                                     : t.n_rows;
  return row_bytes(t.dtype, t.n_cols) * static_cast<size_t>(rows);
}

}  // namespace

Program::Program(Executor& executor, Graph graph, Schedule schedule)
    : executor_(executor), graph_(std::move(graph)), schedule_(std::move(schedule)) {
  executor_.programs_.push_back(this);
}

Program::~Program() {
  if (executor_.last_.program == this) executor_.last_ = {};
  std::erase(executor_.programs_, this);
}

Executor::Executor(std::vector<Device*> devices, Placement placement, std::vector<std::vector<KvLayer>> kv,
                   std::unique_ptr<DiskReader> disk, MakeCachePolicy policy,
                   std::unique_ptr<Collectives> collectives, DiskReader* spill)
    : devices_(std::move(devices)),
      placement_(std::move(placement)),
      kv_(std::move(kv)),
      residency_(devices_),
      reader_(std::move(disk)),
      disk_(devices_, reader_.get()),
      experts_(std::make_unique<ExpertStore>(*devices_.at(0), reader_.get())),
      cache_(std::make_unique<ExpertCache>(devices_, *experts_, std::move(policy))),
      stream_(devices_, disk_),
      queue_(stream_, devices_.size()),
      kv_stream_(devices_, prefetched_layers(placement_), kv_.at(0), spill),
      collectives_(std::move(collectives)) {
  TANDEM_CHECK(devices_[0]->info().host_memory && kv_.size() == devices_.size());
  arenas_.resize(devices_.size());
  const std::span<const PrefetchedLayer> caches = kv_stream_.caches();
  for (size_t c = 0; c < caches.size(); ++c) {
    kv_[caches[c].device.index()][caches[c].layer] = kv_stream_.view(c);
  }
}

Executor::~Executor() {
  TANDEM_CHECK(programs_.empty());
  for (size_t d = 0; d < arenas_.size(); ++d) {
    if (arenas_[d].base) devices_[d]->free(arenas_[d].base);
  }
}

std::unique_ptr<Program> Executor::compile(Graph graph) {
  std::unique_ptr<Program> while_hot;
  if (placement_.splits_caches()) {
    while_hot = compile_placed(placed_graph(graph, placement_, CacheReach::hot_cache));
  }
  Graph placed = placed_graph(std::move(graph), placement_);
  std::unique_ptr<Program> in_parts;
  if (std::optional<PartedGraph> parted = parted_graph(placed, placement_)) {
    in_parts = compile_placed(std::move(parted->graph), parted->parts);
  }
  std::unique_ptr<Program> program = compile_placed(std::move(placed));
  program->while_hot_ = std::move(while_hot);
  program->in_parts_ = std::move(in_parts);
  return program;
}

std::unique_ptr<Program> Executor::compile_placed(Graph graph, const StepParts& parts) {
  Schedule schedule = make_schedule(graph, placement_, devices_.size(), Arenas::laid_out, parts);
  check_supported(graph, schedule.partition);
  std::unique_ptr<Program> program(new Program(*this, std::move(graph), std::move(schedule)));
  const Partition& partition = program->schedule_.partition;
  for (size_t d = 0; d < devices_.size(); ++d) {
    program->slots_.push_back(slot_needs(program->graph_, partition, *devices_[d], DeviceId::at(d)));
  }
  for (const StreamGroup& group : partition.groups) program->groups_.emplace_back(program->graph_, group);
  for (const Command& c : program->schedule_.commands) {
    if (c.kind == CommandKind::collect) {
      std::vector<float>& buffer = collected(program->graph_, c.tensor);
      buffer.resize(std::max(buffer.size(), program->graph_.tensor(c.tensor).n_bytes() / sizeof(float)));
    }
    if (c.kind == CommandKind::copy && !c.from.is_host() && !c.device.is_host()) {
      staging_.resize(std::max(staging_.size(), program->graph_.tensor(c.tensor).n_bytes()));
    }
  }
  prepare(*program);
  return program;
}

void Executor::prepare(Program& program) {
  for (size_t d = 0; d < devices_.size(); ++d) {
    grow_arena(d, program.schedule_.partition.arena_bytes[d]);
    grow_slots(DeviceId::at(d), program.slots_[d]);
  }
  experts_->reserve(program.schedule_.experts);
  bind(program);
}

void Executor::check_supported(const Graph& graph, const Partition& partition) const {
  for (const PlacedSegment& segment : partition.segments) {
    if (segment.collective) continue;
    const Device& device = *devices_[segment.device.index()];
    for (int32_t i : segment.nodes) {
      const Node& node = graph.nodes[i];
      const std::string why = device.why_unsupported(graph, node);
      if (why.empty()) continue;
      throw_error(ErrorCode::usage, "{} cannot run {} of layer {}: {}", device.info().name, op_name(node.op),
                  node.layer, why);
    }
  }
}

// Growing moves the arena: programs bound to the old one are unbound, and bound again when they next run
// (also if the new allocation fails).
void Executor::grow_arena(size_t d, size_t n_bytes) {
  Arena& arena = arenas_[d];
  if (n_bytes <= arena.n_bytes) return;
  for (Program* program : programs_) program->executables_.clear();
  last_ = {};
  if (arena.base) devices_[d]->free(arena.base);
  arena = Arena{};
  arena.base = devices_[d]->alloc(n_bytes);
  arena.n_bytes = n_bytes;
}

void Executor::grow_slots(DeviceId device, const SlotNeeds& needs) {
  if (device.is_host() ? !disk_.must_grow(needs) : !stream_.must_grow(device, needs)) return;
  for (Program* program : programs_) program->executables_.clear();
  if (device.is_host()) return disk_.reserve(needs);
  stream_.reserve(device, needs);
}

void Executor::bind(Program& program) {
  const Graph& graph = program.graph_;
  const Partition& partition = program.schedule_.partition;
  program.executables_.clear();
  program.events_.assign(program.schedule_.n_events, 0);
  program.addresses_.assign(devices_.size(), std::vector<DevicePtr>(graph.tensors.size(), nullptr));
  for (const CachedLayer& layer : program.schedule_.cached) {
    if (!layer.on_disk) continue;
    for (const CachedLayer::Slots& w : layer.weights) residency_.reserve(layer.device, *w.slots);
  }
  for (size_t d = 0; d < devices_.size(); ++d) {
    std::vector<DevicePtr>& addresses = program.addresses_[d];
    for (size_t id = 0; id < addresses.size(); ++id) {
      const size_t offset = partition.arena_offsets[d][id];
      if (offset != Partition::kNowhere) addresses[id] = arenas_[d].base + offset;
    }
    for (TensorId id : partition.weights[d]) {
      const Weight& weight = *graph.tensor(id).weight;
      addresses[id] = residency_.address(DeviceId::at(d), weight, *placement_.slices);
    }
  }
  bind_groups(program);
  cache_->add(program.schedule_.cached, [this](DeviceId device, const Weight& slots) {
    return residency_.address(device, slots, *placement_.slices);
  });
  for (const PlacedSegment& segment : partition.segments) {
    if (segment.collective) {
      program.executables_.push_back(nullptr);
      continue;
    }
    const size_t d = segment.device.index();
    program.executables_.push_back(devices_[d]->compile(
        Segment{&graph, segment.nodes, program.addresses_[d], kv_[d], experts_.get(), cache_.get()}));
  }
}

void Executor::bind_groups(Program& program) {
  const std::vector<StreamGroup>& groups = program.schedule_.partition.groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    const StreamGroup& group = groups[g];
    const size_t d = group.device.index();
    const DevicePtr read = group.on_disk ? disk_.slot(group.disk_turn.slot) : nullptr;
    GroupWeights& bound = program.groups_[g];
    bound.bind(read, *placement_.slices);
    size_t offset = 0;  // in the slot of the device
    for (size_t i = 0; i < group.weights.size(); ++i) {
      const Weight& weight = *bound.weights[i];
      program.addresses_[d][group.weights[i]] = group.device.is_host()
                                                    ? read + bound.layout.offset_of(weight)
                                                    : stream_.slot(group.device, group.turn.slot) + offset;
      offset += align_up(devices_[d]->weight_bytes(weight), kSlotAlignment);
    }
  }
}

// What runs such a step.
Program& Executor::program_for(Program& program, const StepInputs& inputs) {
  const std::span<const int32_t> from = inputs.data[static_cast<size_t>(Input::hot_from)];
  if (program.while_hot_ && std::all_of(from.begin(), from.end(), [](int32_t p) { return p == 0; }))
    return *program.while_hot_;
  const Placement& placement = program.executor_.placement_;
  const bool in_parts =
      program.in_parts_ && goes_in_parts(placement, program.graph_.shape.max_tokens, inputs.shape.n_tokens);
  return in_parts ? *program.in_parts_ : program;
}

void Executor::run(Program& built, const StepInputs& inputs) {
  Program& program = program_for(built, inputs);
  const ShapeClass& limit = program.graph_.shape;
  TANDEM_CHECK(inputs.shape.n_tokens <= limit.max_tokens && inputs.shape.n_outputs <= limit.max_outputs);
  if (program.executables_.empty()) prepare(program);
  last_ = {};
  try {
    begin_step(program, inputs);
    for (const Command& command : program.schedule_.commands) execute(program, command, inputs);
    const Graph& graph = program.graph_;
    const Partition& partition = program.schedule_.partition;
    last_.shape = {inputs.shape.n_tokens, inputs.shape.n_outputs};
    last_.hidden = result(program, graph.hidden, partition.hidden_device, inputs.shape);
    last_.has_logits = !is_left(program, graph.logits, inputs.wanted);
    if (!last_.has_logits) {
      last_.top = result(program, graph.top, partition.logits_device, inputs.shape);
      last_.n_top = static_cast<size_t>(graph.tensor(graph.top).n_cols / 2);
    }
    last_.program = &program;
  } catch (...) {
    abandon_step();
    throw;
  }
}

void Executor::pin_weights(HoldBytes hold) {
  pinned_.emplace(std::move(hold));
  stream_.pin(*pinned_);
  cache_->pin(*pinned_);
  kv_stream_.pin(*pinned_);
}

void Executor::begin_step(const Program& program, const StepInputs& inputs) {
  if (pinned_) pinned_->begin_step();
  if (huge_ && inputs.shape.n_tokens <= HugeWeights::kFewTokens)
    huge_->begin_step(program.graph_, program.schedule_.partition);
  const std::vector<StreamGroup>& groups = program.schedule_.partition.groups;
  stream_.use(groups, program.groups_);
  queue_.begin(groups);
  set_shapes(program.schedule_.partition.parts, inputs);
  kv_stream_.begin(inputs.data[static_cast<size_t>(Input::block_table)],
                   inputs.data[static_cast<size_t>(Input::slots)], inputs.shape.sequences);
}

// The sizes of the step and of its parts. A sequence with tokens in several goes on in the later ones: their recurrent layers
// read the state that those before them wrote.
void Executor::set_shapes(const StepParts& parts, const StepInputs& inputs) {
  shapes_.fill(inputs.shape);
  const int64_t n_step = inputs.shape.n_tokens;
  for (size_t part = 0; part < parts.count; ++part) {
    const StepRows rows = rows_of_part(part);
    const auto i = static_cast<size_t>(rows);
    shapes_[i].n_tokens = parts.n_tokens(rows, n_step);
    const int64_t begin = parts.n_before(rows), end = begin + shapes_[i].n_tokens;
    sequences_[i].clear();
    int64_t at = 0;
    for (const SequenceStep& s : inputs.shape.sequences) {
      const int64_t from = std::max(at, begin), upto = std::min(at + s.n_tokens, end);
      if (from < upto) sequences_[i].push_back({upto - from, s.n_past + from - at});
      at += s.n_tokens;
    }
    shapes_[i].sequences = sequences_[i];
    const std::span<const int32_t> states = inputs.data[static_cast<size_t>(Input::states)];
    states_[i].assign(states.begin(), states.end());
    if (part == 0 || states.empty() || begin >= n_step) continue;
    const std::span<const int32_t> of = inputs.data[static_cast<size_t>(Input::sequences)];
    const auto cut = static_cast<size_t>(begin), last = static_cast<size_t>(of[cut - 1]);
    if (of[cut] == of[cut - 1]) states_[i][2 * last] = states[2 * last + 1];
  }
}

const StepShape& Executor::shape_of(const Program& program, TensorId tensor) const {
  return shape_of(program.schedule_.partition.parts.rows_of(tensor));
}

// Of a short step, the last parts may have no tokens.
bool Executor::is_of_empty_part(const Program& program, const Command& c) const {
  const Partition& partition = program.schedule_.partition;
  return runs_segment(c.kind) && shape_of(partition.segments[c.segment].rows).n_tokens == 0;
}

void Executor::execute(Program& program, const Command& c, const StepInputs& inputs) {
  if (is_of_empty_part(program, c)) return;
  const size_t d = c.device.index();
  switch (c.kind) {
    case CommandKind::feed: return feed(program, d, inputs);
    case CommandKind::copy: return copy(program, c);
    case CommandKind::record: program.events_[c.event] = devices_[d]->record(); return;
    case CommandKind::wait: return wait(d, program.events_[c.event]);
    case CommandKind::read: return queue_.read(c.group);
    case CommandKind::wait_read: return queue_.wait_read(c.group);
    case CommandKind::fetch: return queue_.fetch(c.group);
    case CommandKind::start_fetches: return queue_.start_ready();
    case CommandKind::join: queue_.start(c.group); return stream_.join(c.group);
    case CommandKind::release: return stream_.release(c.group);
    case CommandKind::fetch_cache: return kv_stream_.fetch(c.cache);
    case CommandKind::join_cache: return kv_stream_.join(c.cache);
    case CommandKind::write_back: return kv_stream_.write_back(c.cache);
    case CommandKind::run: return run_segment(program, c);
    case CommandKind::all_reduce:
    case CommandKind::all_gather:
    case CommandKind::start_sum: return run_collective(program, c);
    case CommandKind::end_sum: return end_sum(program, c);
    case CommandKind::join_sum: return join_sum(program, c);
    case CommandKind::collect:
      if (!is_left(program, c.tensor, inputs.wanted)) bring(program, c.tensor, c.device, inputs.shape);
      return;
    case CommandKind::receive: return link_->receive(host_bytes(program, c.tensor, inputs.shape));
    case CommandKind::send: return link_->send(host_bytes(program, c.tensor, inputs.shape));
  }
}

size_t Executor::slot_bytes(DeviceId device) const {
  return stream_.n_bytes(device) + kv_stream_.n_bytes(device) +
         (device.is_host() ? disk_.n_bytes() + experts_->n_bytes() : 0);
}

uint64_t Executor::disk_bytes() const {
  return disk_.read_bytes() + kv_stream_.read_bytes() + experts_->counts().read_bytes;
}

ExpertUse Executor::expert_use() const {
  ExpertUse use = experts_->use();
  for (const auto& [layer, counts] : cache_->use().counts) {
    std::vector<uint64_t>& sum = use.counts[layer];
    sum.resize(std::max(sum.size(), counts.size()));
    for (size_t e = 0; e < counts.size(); ++e) sum[e] += counts[e];
  }
  return use;
}

void Executor::bring_most_used(const ExpertUse& use) {
  cache_->bring_most_used(use);
  experts_->read_most_used(use);
}

void Executor::run_segment(Program& program, const Command& c) {
  const StepShape& shape = shape_of(program.schedule_.partition.segments[c.segment].rows);
  devices_[c.device.index()]->run(*program.executables_[c.segment], shape);
  if (!c.device.is_host()) return;
  experts_->check();  // ops cannot throw
  cache_->check();
}

void Executor::feed(const Program& program, size_t d, const StepInputs& inputs) {
  for (TensorId id : program.schedule_.partition.inputs[d]) {
    const std::vector<TensorId>& later = program.schedule_.partition.parts.states;
    const auto part = static_cast<size_t>(std::ranges::find(later, id) - later.begin());
    const std::span<const int32_t> data =
        part < later.size() ? states_[static_cast<size_t>(rows_of_part(part))]
                            : inputs.data[static_cast<size_t>(program.graph_.tensor(id).input)];
    TANDEM_CHECK(data.size_bytes() <= program.graph_.tensor(id).n_bytes());
    devices_[d]->copy_in(program.addresses_[d][id], data.data(), data.size_bytes());
  }
}

void Executor::copy(const Program& program, const Command& c) {
  const Tensor& tensor = program.graph_.tensor(c.tensor);
  const size_t n_bytes = step_bytes(tensor, shape_of(program, c.tensor));
  if (n_bytes == 0) return;
  const auto storage = static_cast<size_t>(tensor.storage);
  const size_t from = c.from.index(), to = c.device.index();
  const DevicePtr source = program.addresses_[from][storage];
  const DevicePtr target = program.addresses_[to][storage];
  if (c.from.is_host()) {
    devices_[to]->copy_in(target, source, n_bytes);
  } else if (c.device.is_host()) {
    devices_[from]->copy_out(target, source, n_bytes);
  } else {
    devices_[from]->copy_out(staging_.data(), source, n_bytes);
    wait(from, devices_[from]->record());
    devices_[to]->copy_in(target, staging_.data(), n_bytes);
  }
  transfers_.n_bytes += n_bytes;
  transfers_.n_copies += 1;
}

std::span<std::byte> Executor::host_bytes(const Program& program, TensorId id, const StepShape& shape) const {
  const Tensor& tensor = program.graph_.tensor(id);
  return {reinterpret_cast<std::byte*>(program.addresses_[0][static_cast<size_t>(tensor.storage)]),
          step_bytes(tensor, shape)};
}

void Executor::run_collective(const Program& program, const Command& c) {
  const Graph& graph = program.graph_;
  const PlacedSegment& segment = program.schedule_.partition.segments[c.segment];
  const StepShape& shape = shape_of(segment.rows);
  const bool goes_on = c.kind == CommandKind::start_sum;
  std::vector<CollectivePart>& parts = collective_parts_;
  parts.clear();
  size_t n_rows = 0;
  int layer = 0;
  for (const int32_t i : segment.nodes) {
    const Node& node = graph.nodes[static_cast<size_t>(i)];
    const size_t d = node.device.value().index();
    const TensorId in = std::get<CollectiveOp>(node.op).x;
    const auto address = [&](TensorId id) {
      return id == kNoTensor ? nullptr : program.addresses_[d][static_cast<size_t>(graph.tensor(id).storage)];
    };
    parts.push_back({devices_[d], address(in), address(node.output),
                     in == kNoTensor ? 0 : static_cast<size_t>(graph.tensor(in).n_cols),
                     goes_on ? devices_[d]->side_queue() : nullptr});
    layer = node.layer;
    if (in != kNoTensor) n_rows = static_cast<size_t>(row_count(graph.tensor(in), shape));
  }
  transfers_.n_collectives += 1;
  try {
    for (const CollectivePart& p : parts) {
      if (SideQueue* side = goes_on ? p.device->side_queue() : nullptr) side->follow();
    }
    if (goes_on) return collectives_->begin_all_reduce(parts, n_rows);
    if (c.kind == CommandKind::all_reduce) return collectives_->all_reduce(parts, n_rows);
    collectives_->all_gather(parts, n_rows);
  } catch (const Error& e) {
    throw_error(e.code(), "layer {}: {}", layer, e.message());
  }
}

void Executor::end_sum(Program& program, const Command& c) {
  const PlacedSegment& segment = program.schedule_.partition.segments[c.segment];
  try {
    std::ranges::copy(collectives_->end_all_reduce(),
                      program.events_.begin() + static_cast<ptrdiff_t>(c.event));
  } catch (const Error& e) {
    const Node& node = program.graph_.nodes[static_cast<size_t>(segment.nodes.front())];
    throw_error(e.code(), "layer {}: {}", node.layer, e.message());
  }
}

void Executor::join_sum(const Program& program, const Command& c) {
  size_t event = c.event;
  for (const int32_t i : program.schedule_.partition.segments[c.segment].nodes) {
    const Node& node = program.graph_.nodes[static_cast<size_t>(i)];
    if (SideQueue* side = devices_[node.device.value().index()]->side_queue())
      side->lead(program.events_[event]);
    ++event;
  }
}

// Where a tensor goes that a device other than the host returns.
std::vector<float>& Executor::collected(const Graph& graph, TensorId tensor) {
  return tensor == graph.logits ? logits_ : tensor == graph.top ? top_ : hidden_;
}

// Whether a step leaves a result where it is: of the logits and the largest of them it brings what is wanted.
bool Executor::is_left(const Program& program, TensorId tensor, LogitsWanted wanted) {
  const bool brings_top = program.schedule_.partition.has_top && wanted != LogitsWanted::all;
  return tensor == program.graph_.logits ? brings_top : tensor == program.graph_.top && !brings_top;
}

// Devices that wait for each other may wait forever.
void Executor::wait(size_t d, Event event) {
  if (placement_.parallel) return collectives_->wait(*devices_[d], event, "a step");
  devices_[d]->wait(event);
}

// Copies a tensor to the host and waits for it.
void Executor::bring(const Program& program, TensorId id, DeviceId device, const StepShape& shape) {
  const size_t d = device.index();
  const Tensor& tensor = program.graph_.tensor(id);
  const DevicePtr address = program.addresses_[d][tensor.storage];
  devices_[d]->copy_out(collected(program.graph_, id).data(), address, step_bytes(tensor, shape));
  wait(d, devices_[d]->record());
}

std::span<const float> Executor::logits() {
  TANDEM_CHECK(last_.program != nullptr && last_.program->graph_.logits != kNoTensor);
  const Program& program = *last_.program;
  const DeviceId device = program.schedule_.partition.logits_device;
  if (!last_.has_logits) bring(program, program.graph_.logits, device, last_.shape);
  last_.has_logits = true;
  return result(program, program.graph_.logits, device, last_.shape);
}

// What the step returns in `tensor`, which `device` has made; nothing for kNoTensor.
std::span<const float> Executor::result(const Program& program, TensorId tensor, DeviceId device,
                                        const StepShape& shape) {
  if (tensor == kNoTensor) return {};
  const Tensor& t = program.graph_.tensor(tensor);
  const size_t n = step_bytes(t, shape) / sizeof(float);
  if (!device.is_host()) return {collected(program.graph_, tensor).data(), n};
  const DevicePtr address = program.addresses_[0][t.storage];
  return {reinterpret_cast<const float*>(address), n};
}

// After a failure: forgets what the slots hold, which is unknown now, and waits until nothing that was
// issued still uses host memory.
void Executor::abandon_step() {
  last_ = {};
  stream_.forget();
  disk_.forget();
  kv_stream_.forget();
  cache_->forget();
  experts_->forget();
  if (collectives_->is_lost()) return;  // it may never be done
  const auto drain = [](WorkQueue& queue) {
    try {
      queue.wait(queue.record());
    } catch (const Error&) {  // the first failure is the one to report
    }
  };
  for (Device* device : devices_) {
    if (SideQueue* side = placement_.parallel ? device->side_queue() : nullptr) drain(*side);
    drain(*device);
  }
  collectives_->abandon();
}

}  // namespace tandem
