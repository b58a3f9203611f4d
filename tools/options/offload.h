// The options that say what runs on GPUs, with the names and meanings that llama.cpp users know.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/options.h"

namespace CLI {
class App;
}

namespace tandem::tools {

// The GPU group, --device, --list-devices and --explain.
void add_offload_options(CLI::App& app, EngineOptions& options, bool& explain);

// "-1", "all", "99" or "auto" of -ngl. Throws Error(usage).
std::optional<int64_t> parse_gpu_layers(const std::string& text);
// The share of "40" or "40%"; "off" is 1, "auto" nothing. Throws Error(usage).
std::optional<double> parse_gpu_rows(const std::string& text);
// "REGEX=DEVICE,REGEX=DEVICE". Throws Error(usage).
std::vector<std::pair<std::string, std::string>> parse_overrides(const std::string& text);
// "8GiB", "8G", "8192MiB", "8GB" (of 10^9), a bare number: bytes. Throws Error(usage) that starts with the
// option's name.
size_t parse_bytes(const std::string& option, const std::string& text);
// "3,1" or "3/1". Throws Error(usage).
std::vector<double> parse_tensor_split(const std::string& text);

}  // namespace tandem::tools
