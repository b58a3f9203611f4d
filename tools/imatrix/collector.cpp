#include "tools/imatrix/collector.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tandem::tools {
namespace {

bool wanted(const Weight& weight, OutputTensor output) {
  return weight.name.starts_with("blk.") ||
         (output == OutputTensor::include && weight.name == "output.weight");
}

}  // namespace

ImportanceCollector::ImportanceCollector(const std::deque<Weight>& weights, OutputTensor output,
                                         ImportanceSums before) {
  for (const Weight& weight : weights) {
    if (!wanted(weight, output) || weight.n_rows < 2) continue;
    const auto n_mats = static_cast<size_t>(weight.n_mats);
    ImportanceSums::Entry entry{std::vector<float>(n_mats * static_cast<size_t>(weight.n_cols)),
                                std::vector<double>(n_mats)};
    sums_.entries.emplace(weight.name, std::move(entry));
  }
  sums_.merge(before);
}

void ImportanceCollector::observe(const cpu::ProductInput& input) {
  const auto found = sums_.entries.find(input.weight.name);
  if (found == sums_.entries.end()) return;
  const int64_t n_columns = input.weight.n_cols;
  float* sums = found->second.sums.data() + input.expert * n_columns;
  for (int64_t i = 0; i < input.n; ++i) {
    const float* x = input.row(i);
    for (int64_t j = 0; j < n_columns; ++j) sums[j] += x[j] * x[j];
  }
  found->second.counts[input.expert] += static_cast<double>(input.n);
}

ImportanceSums ImportanceCollector::sums() const {
  ImportanceSums reached = sums_;
  std::erase_if(reached.entries, [](const auto& entry) {
    const auto& counts = entry.second.counts;
    return std::all_of(counts.begin(), counts.end(), [](double n) { return n == 0.0; });
  });
  return reached;
}

void ImportanceCollector::check_finite() const {
  for (const auto& [name, entry] : sums_.entries) {
    if (std::all_of(entry.sums.begin(), entry.sums.end(), [](float v) { return std::isfinite(v); })) continue;
    throw_error(ErrorCode::numeric, "the inputs of {} are not finite (NaN or infinity)", printable(name));
  }
}

}  // namespace tandem::tools
