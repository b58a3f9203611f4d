#include "exec/executor.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
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

Program::Program(Executor& executor, Graph graph, Partition partition)
    : executor_(executor), graph_(std::move(graph)), partition_(std::move(partition)) {
  executor_.programs_.push_back(this);
}

Program::~Program() {
  std::erase(executor_.programs_, this);
}

Executor::Executor(std::vector<Device*> devices, Placement placement, std::vector<std::vector<KvLayer>> kv,
                   std::unique_ptr<DiskReader> disk)
    : devices_(std::move(devices)),
      placement_(std::move(placement)),
      kv_(std::move(kv)),
      residency_(devices_),
      disk_(devices_, std::move(disk)),
      stream_(devices_, disk_),
      kv_stream_(devices_, placement_, kv_.at(0)) {
  TANDEM_CHECK(!devices_.empty() && devices_[0]->info().host_memory && kv_.size() == devices_.size());
  arenas_.resize(devices_.size());
  reads_host_.resize(devices_.size());
  for (size_t i = 0; i < placement_.layers.size(); ++i) {
    const auto* prefetched = std::get_if<PrefetchedKv>(&placement_.layers[i].kv);
    if (prefetched) kv_[prefetched->to.index()][i] = kv_stream_.view(static_cast<int>(i));
  }
}

Executor::~Executor() {
  TANDEM_CHECK(programs_.empty());
  for (size_t d = 0; d < arenas_.size(); ++d) {
    if (arenas_[d].base) devices_[d]->free(arenas_[d].base);
  }
}

std::unique_ptr<Program> Executor::compile(Graph graph) {
  std::unique_ptr<Program> while_recent;
  if (placement_.splits_caches()) {
    while_recent = compile_placed(placed_graph(graph, placement_, CacheReach::recent_part));
  }
  std::unique_ptr<Program> program = compile_placed(placed_graph(std::move(graph), placement_));
  program->while_recent_ = std::move(while_recent);
  return program;
}

std::unique_ptr<Program> Executor::compile_placed(Graph graph) {
  check_supported(graph);
  Partition partition = partition_graph(graph, placement_, devices_.size());
  std::unique_ptr<Program> program(new Program(*this, std::move(graph), std::move(partition)));
  for (size_t d = 0; d < devices_.size(); ++d) {
    program->slots_.push_back(
        slot_needs(program->graph_, program->partition_, placement_, *devices_[d], DeviceId::at(d)));
  }
  program->schedule_ = schedule_stream(program->partition_, program->slots_);
  const Partition& p = program->partition_;
  for (const StreamGroup& group : p.groups) program->disk_.push_back(disk_layout(program->graph_, group));
  if (!p.logits_device.is_host()) {
    const size_t n = program->graph_.tensor(program->graph_.logits).n_bytes() / sizeof(float);
    if (logits_.size() < n) logits_.resize(n);
  }
  for (const Stage& stage : p.stages) {
    for (const Transfer& t : stage.transfers) {
      if (t.from.is_host() || t.to.is_host()) continue;
      staging_.resize(std::max(staging_.size(), program->graph_.tensor(t.tensor).n_bytes()));
    }
  }
  prepare(*program);
  return program;
}

void Executor::prepare(Program& program) {
  for (size_t d = 0; d < devices_.size(); ++d) {
    grow_arena(d, program.partition_.arena_bytes[d]);
    grow_slots(d, program.slots_[d]);
  }
  bind(program);
}

void Executor::check_supported(const Graph& graph) const {
  for (const Node& node : graph.nodes) {
    const Device& device = *devices_[placement_.runs_on(graph, node).index()];
    const std::string why = device.why_unsupported(graph, node);
    if (why.empty()) continue;
    throw_error(ErrorCode::usage, "%s cannot run %s of layer %d: %s", device.info().name.c_str(),
                std::string(op_name(node.op)).c_str(), node.layer, why.c_str());
  }
}

// A larger arena moves: programs that were bound to the old one are unbound and bound again when they next
// run (also when the larger one could not be had).
void Executor::grow_arena(size_t d, size_t n_bytes) {
  Arena& arena = arenas_[d];
  if (n_bytes <= arena.n_bytes) return;
  for (Program* program : programs_) program->executables_.clear();
  if (arena.base) devices_[d]->free(arena.base);
  arena = Arena{};
  arena.base = devices_[d]->alloc(n_bytes);
  arena.n_bytes = n_bytes;
}

void Executor::grow_slots(size_t d, const SlotNeeds& needs) {
  if (d == 0 ? !disk_.must_grow(needs) : !stream_.must_grow(DeviceId::at(d), needs)) return;
  for (Program* program : programs_) program->executables_.clear();
  if (d == 0) return disk_.reserve(needs);
  stream_.reserve(DeviceId::at(d), needs);
}

void Executor::bind(Program& program) {
  const Graph& graph = program.graph_;
  const Partition& partition = program.partition_;
  program.executables_.clear();
  program.sent_.assign(graph.tensors.size(), 0);
  program.addresses_.assign(devices_.size(), std::vector<DevicePtr>(graph.tensors.size(), nullptr));
  for (size_t d = 0; d < devices_.size(); ++d) {
    std::vector<DevicePtr>& addresses = program.addresses_[d];
    for (size_t id = 0; id < addresses.size(); ++id) {
      const size_t offset = partition.arena_offsets[d][id];
      if (offset != Partition::kNowhere) addresses[id] = arenas_[d].base + offset;
    }
    for (TensorId id : partition.weights[d]) {
      addresses[static_cast<size_t>(id)] = residency_.address(DeviceId::at(d), *graph.tensor(id).weight);
    }
  }
  for (size_t g = 0; g < partition.groups.size(); ++g) {
    const DeviceId device = partition.groups[g].device;
    if (device.is_host()) {
      const DevicePtr slot = disk_.slot(program.schedule_.disk_turns[g].slot);
      for (TensorId id : partition.groups[g].weights) {
        program.addresses_[0][static_cast<size_t>(id)] =
            slot + program.disk_[g].offset_of(*graph.tensor(id).weight);
      }
      continue;
    }
    DevicePtr address = stream_.slot(device, program.schedule_.turns[g].slot);
    for (TensorId id : partition.groups[g].weights) {
      program.addresses_[device.index()][static_cast<size_t>(id)] = address;
      address += align_up(devices_[device.index()]->weight_bytes(*graph.tensor(id).weight), kSlotAlignment);
    }
  }
  for (const Stage& stage : partition.stages) {
    const size_t d = stage.device.index();
    program.executables_.push_back(
        devices_[d]->compile(Segment{&graph, stage.nodes, program.addresses_[d], kv_[d]}));
  }
}

std::span<const float> Executor::run(Program& program, const StepInputs& inputs) {
  const std::span<const int32_t> from = inputs.data[static_cast<size_t>(Input::recent_from)];
  if (program.while_recent_ && std::all_of(from.begin(), from.end(), [](int32_t p) { return p == 0; })) {
    return run(*program.while_recent_, inputs);
  }
  const ShapeClass& limit = program.graph_.shape;
  TANDEM_CHECK(inputs.shape.n_tokens <= limit.max_tokens && inputs.shape.n_outputs <= limit.max_outputs);
  if (program.executables_.empty()) prepare(program);
  try {
    feed_inputs(program, inputs);
    run_stages(program, inputs);
    settle_host_reads();
    return collect_logits(program, inputs.shape);
  } catch (...) {
    abandon_step();
    throw;
  }
}

void Executor::run_stages(Program& program, const StepInputs& inputs) {
  const StepShape& shape = inputs.shape;
  const Partition& partition = program.partition_;
  kv_stream_.begin(inputs.data[static_cast<size_t>(Input::block_table)],
                   inputs.data[static_cast<size_t>(Input::slots)]);
  begin_streams(program);
  for (size_t i = 0; i < partition.stages.size(); ++i) {
    const Stage& stage = partition.stages[i];
    begin_stage(program, i, shape);
    devices_[stage.device.index()]->run(*program.executables_[i], shape);
    for (TensorId id : stage.sends) send(program, id, stage.device, shape);
    if (stage.kv_layer >= 0) kv_stream_.done(stage.kv_layer);
    if (stage.group >= 0 && program.schedule_.turns[static_cast<size_t>(stage.group)].last_stage == i)
      pass_slots_on(program, stage);
  }
  kv_stream_.end();
}

// What the stage reads will be there when it runs.
void Executor::begin_stage(Program& program, size_t i, const StepShape& shape) {
  const Stage& stage = program.partition_.stages[i];
  const size_t d = stage.device.index();
  for (const Transfer& t : stage.transfers) transfer(program, t, shape);
  if (stage.device.is_host()) {
    settle_host_reads();
  } else if (!stage.transfers.empty()) {
    reads_host_[d] = devices_[d]->record();
  }
  join_weights(program, stage);
  if (stage.kv_layer >= 0) kv_stream_.join(stage.kv_layer);
}

void Executor::begin_streams(const Program& program) {
  stream_.begin();
  for (size_t group : program.schedule_.first_read) read(program, group);
  for (size_t group : program.schedule_.first) fetch(program, group);
}

void Executor::fetch(const Program& program, size_t g) {
  stream_.fetch({&program.graph_, &program.partition_.groups[g], &program.disk_[g],
                 program.schedule_.disk_turns[g].slot},
                program.schedule_.turns[g].slot);
}

// Unless the device has it already.
void Executor::read(const Program& program, size_t g) {
  const StreamGroup& group = program.partition_.groups[g];
  if (!group.device.is_host() && stream_.holds(group, program.graph_, program.schedule_.turns[g].slot))
    return;
  disk_.fetch(program.disk_[g], program.schedule_.disk_turns[g].slot);
}

// What the stage runs finds its weights complete.
void Executor::join_weights(const Program& program, const Stage& stage) {
  stream_.start_ready();
  if (stage.group < 0) return;
  const auto g = static_cast<size_t>(stage.group);
  const size_t disk_slot = program.schedule_.disk_turns[g].slot;
  if (stage.device.is_host()) {
    disk_.fetch(program.disk_[g], disk_slot);
    disk_.wait(disk_slot);
    return;
  }
  stream_.join(stage.device, program.schedule_.turns[g].slot);
  if (program.partition_.groups[g].on_disk) disk_.joined(disk_slot);
}

// What comes next into the slots is brought there while the stages that follow compute.
void Executor::pass_slots_on(const Program& program, const Stage& stage) {
  const auto g = static_cast<size_t>(stage.group);
  if (!stage.device.is_host()) {
    stream_.release(stage.device, program.schedule_.turns[g].slot);
    fetch(program, program.schedule_.turns[g].next);
  }
  if (program.partition_.groups[g].on_disk) read(program, program.schedule_.disk_turns[g].next);
}

std::span<const float> Executor::collect_logits(const Program& program, const StepShape& shape) {
  const Partition& partition = program.partition_;
  const Tensor& logits = program.graph_.tensor(program.graph_.logits);
  const size_t d = partition.logits_device.index();
  const DevicePtr address = program.addresses_[d][static_cast<size_t>(logits.storage)];
  const size_t n = step_bytes(logits, shape) / sizeof(float);
  if (partition.logits_device.is_host()) return {reinterpret_cast<const float*>(address), n};
  devices_[d]->copy_out(logits_.data(), address, n * sizeof(float));
  devices_[d]->wait(devices_[d]->record());
  return {logits_.data(), n};
}

void Executor::feed_inputs(const Program& program, const StepInputs& inputs) {
  for (size_t d = 0; d < devices_.size(); ++d) {
    for (TensorId id : program.partition_.inputs[d]) {
      const std::span<const int32_t> data = inputs.data[static_cast<size_t>(program.graph_.tensor(id).input)];
      TANDEM_CHECK(data.size_bytes() <= program.graph_.tensor(id).n_bytes());
      devices_[d]->copy_in(program.addresses_[d][static_cast<size_t>(id)], data.data(), data.size_bytes());
    }
    if (d != 0 && !program.partition_.inputs[d].empty()) reads_host_[d] = devices_[d]->record();
  }
}

void Executor::transfer(const Program& program, const Transfer& t, const StepShape& shape) {
  const Tensor& tensor = program.graph_.tensor(t.tensor);
  const size_t n_bytes = step_bytes(tensor, shape);
  const auto storage = static_cast<size_t>(tensor.storage);
  Device& from = *devices_[t.from.index()];
  Device& to = *devices_[t.to.index()];
  const DevicePtr source = program.addresses_[t.from.index()][storage];
  const DevicePtr target = program.addresses_[t.to.index()][storage];
  if (t.from.is_host()) {
    to.copy_in(target, source, n_bytes);
  } else if (t.to.is_host()) {
    from.wait(program.sent_[static_cast<size_t>(t.tensor)]);
  } else {
    settle_host_reads();
    from.copy_out(staging_.data(), source, n_bytes);
    from.wait(from.record());
    to.copy_in(target, staging_.data(), n_bytes);
    reads_host_[t.to.index()] = to.record();
  }
  transfers_.n_bytes += n_bytes;
  transfers_.n_copies += 1;
}

void Executor::send(Program& program, TensorId id, DeviceId device, const StepShape& shape) {
  const Tensor& tensor = program.graph_.tensor(id);
  const auto storage = static_cast<size_t>(tensor.storage);
  const size_t d = device.index();
  // The target may reuse memory that another device still reads; this one does all in order.
  for (size_t other = 0; other < reads_host_.size(); ++other) {
    if (other != d) settle_host_reads(other);
  }
  devices_[d]->copy_out(program.addresses_[0][storage], program.addresses_[d][storage],
                        step_bytes(tensor, shape));
  program.sent_[static_cast<size_t>(id)] = devices_[d]->record();
}

// Copies into a device read host memory asynchronously; before it is written to again they must be over.
void Executor::settle_host_reads() {
  for (size_t d = 0; d < reads_host_.size(); ++d) settle_host_reads(d);
}

void Executor::settle_host_reads(size_t d) {
  if (reads_host_[d]) devices_[d]->wait(*reads_host_[d]);
  reads_host_[d].reset();
}

// After a failure nothing that was issued may still use the host's memory, and nobody knows what the slots
// hold.
void Executor::abandon_step() {
  stream_.forget();
  disk_.forget();
  for (size_t d = 0; d < devices_.size(); ++d) {
    reads_host_[d].reset();
    try {
      devices_[d]->wait(devices_[d]->record());
    } catch (const Error&) {  // the first failure is the one to report
    }
  }
}

}  // namespace tandem
