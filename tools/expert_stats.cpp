#include "tools/expert_stats.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text_input.h"
#include "exec/expert_store.h"

namespace tandem::tools {
namespace {

constexpr const char* kKind = "tandem expert statistics";

nlohmann::json model_json(const Hparams& model) {
  return {{"architecture", model.architecture},
          {"n_layer", model.n_layer},
          {"n_embd", model.n_embd},
          {"n_expert", model.n_expert},
          {"n_expert_used", model.n_expert_used}};
}

[[noreturn]] void throw_wrong(const std::string& path, const char* why) {
  throw_error(ErrorCode::bad_file, "{}: no expert statistics of tandem: {}", printable(path, 4096), why);
}

std::vector<uint64_t> counts_of(const std::string& path, const nlohmann::json& list, const Hparams& model) {
  if (!list.is_array() || list.size() != static_cast<size_t>(model.n_expert))
    throw_wrong(path, "a layer has another number of experts");
  std::vector<uint64_t> counts;
  for (const nlohmann::json& count : list) {
    if (!count.is_number_unsigned()) throw_wrong(path, "a count is not a whole number");
    counts.push_back(
        std::min<uint64_t>(count.get<uint64_t>(), uint64_t{1} << 48));  // sums stay far from overflow
  }
  return counts;
}

// A layer's number, below n_layer; -1 for anything else.
int layer_number(const std::string& text, int64_t n_layer) {
  if (text.empty() || text.size() > 6 ||
      !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }))
    return -1;
  const int layer = std::stoi(text);
  return layer < n_layer ? layer : -1;
}

}  // namespace

void add_expert_stats_option(CLI::App& command, std::string& path) {
  text(command, "--expert-stats", path, "FILE",
       "of a mixture with experts on disk or also on a GPU: start with those in memory and on the GPU that "
       "FILE says are used most, and add what this run uses to it")
      .group("GPU");
}

void add_expert_trace_option(CLI::App& command, std::string& path) {
  text(command, "--expert-trace", path, "FILE",
       "of a mixture with experts on disk or also on a GPU: write every choice of experts to FILE, for "
       "scripts/expert_report.py")
      .group("GPU");
}

ExpertUse read_expert_stats(const std::string& path, const Hparams& model) {
  ExpertUse use;
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return use;
  const std::string content = read_text(path);
  if (content.empty()) return use;
  const auto page = parse_json(content, printable(path, 4096));
  if (!page.is_object() || page.value("kind", nlohmann::json()) != kKind)
    throw_wrong(path, "another kind of file");
  if (!page.contains("model") || !page.contains("layers") || !page["layers"].is_object())
    throw_wrong(path, "it is not complete");
  if (page["model"] != model_json(model)) {
    throw_error(ErrorCode::usage, "{}: the expert statistics of another model: {}, and this one is {}",
                printable(path, 4096), printable(page["model"].dump()), model_json(model).dump());
  }
  for (const auto& [number, list] : page["layers"].items()) {
    const int layer = layer_number(number, model.n_layer);
    if (layer < 0) throw_wrong(path, "it names a layer that the model does not have");
    use.counts[layer] = counts_of(path, list, model);
  }
  return use;
}

void write_expert_stats(const std::string& path, const Hparams& model, const ExpertUse& use) {
  nlohmann::ordered_json page;
  page["kind"] = kKind;
  page["model"] = model_json(model);
  page["layers"] = nlohmann::json::object();
  for (const auto& [layer, counts] : use.counts) page["layers"][std::to_string(layer)] = counts;
  const std::string text = page.dump() + "\n";
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.publish();
}

ExpertTrace::ExpertTrace(const std::string& path, const Hparams& model, EngineOptions& options) {
  if (path.empty()) return;
  file_ = std::make_unique<OutputFile>(path);
  line_ = nlohmann::json({{"kind", "tandem expert trace"}, {"model", model_json(model)}}).dump() + "\n";
  file_->write(std::as_bytes(std::span(line_)));
  options.on_experts = [this](const ChosenInLayer& chosen) { add(chosen); };
}

void ExpertTrace::add(const ChosenInLayer& chosen) {
  line_ = std::to_string(chosen.layer);
  for (const WantedExpert& e : chosen.experts) {
    line_ += " " + std::to_string(e.expert) + ":" + std::to_string(e.n_tokens);
  }
  if (!chosen.guesses.empty()) line_ += " >";
  for (const int32_t expert : chosen.guesses) line_ += " " + std::to_string(expert);
  line_ += "\n";
  file_->write(std::as_bytes(std::span(line_)));
}

void ExpertTrace::publish() {
  if (file_) file_->publish();
}

ExpertStats::ExpertStats(const std::string& path, const Hparams& model, EngineOptions& options)
    : path_(path), model_(model) {
  if (path_.empty()) return;
  if (model.n_expert == 0) {
    throw_error(ErrorCode::usage, "--expert-stats: {} has no experts", printable(options.model.path, 4096));
  }
  before_ = read_expert_stats(path_, model);
  if (!before_.counts.empty()) options.offload.expert_use = std::make_shared<const ExpertUse>(before_);
}

void ExpertStats::save(const Executor& executor) const {
  if (path_.empty()) return;
  ExpertUse all = before_;
  const ExpertUse now = executor.expert_use();
  if (now.counts.empty()) {
    log_info("{}: nothing to record, for no experts are on disk or also on a GPU", printable(path_, 4096));
    return;
  }
  for (const auto& [layer, counts] : now.counts) {
    std::vector<uint64_t>& sums = all.counts[layer];
    sums.resize(counts.size());
    for (size_t e = 0; e < counts.size(); ++e) sums[e] += counts[e];
  }
  write_expert_stats(path_, model_, all);
}

}  // namespace tandem::tools
