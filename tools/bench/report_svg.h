// The report of `tandem bench` as a picture: tokens per second over the parameter that varies, with error bars of one
// standard deviation. Prompts and generation have a panel each, because their speeds are far apart.
#pragma once

#include <memory>

#include "tools/bench/report.h"

namespace tandem::tools {

// Draws what was measured when the report ends.
std::unique_ptr<BenchReport> make_svg_report(Output& out, const BenchMachine& machine);

}  // namespace tandem::tools
