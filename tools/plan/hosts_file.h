// The file of `tandem plan --hosts`: the machines that a model's layers are to be divided over, in the order of ranks. A small
// part of TOML: tables of an array, whose values are strings in double quotes and numbers.
//
//   [[host]]
//   name = "big"        # for the report; default: host1, host2, ...
//   ranks = 2           # processes on this machine, which share what follows; default 1
//   ram = "256G"        # memory for weights and caches
//   ram_bw = 200        # GB/s
//   gpu = "h100"        # as --gpu; or vram = "24G", vram_bw and pcie_bw
//   gpus = 4            # how many of them; default 1
//   peer_bw = 360       # GB/s from GPU to GPU (NVLink) for sums; default: the known GPU's, or sums go over host memory
//   link = 100          # Gbit/s to other machines; default 10
//   link_us = 20        # time of a message, in microseconds; default 30
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

struct PlannedHost {
  std::string name;
  int64_t n_ranks = 1, n_gpus = 0;
  size_t ram_bytes = 0;
  double ram_bytes_per_s = 0;
  std::string gpu;  // a known one; or
  std::optional<size_t> vram;
  std::optional<double> vram_bytes_per_s, pcie_bytes_per_s, peer_bytes_per_s;
  double link_bytes_per_s = 1.25e9, link_s = 30e-6;
};

// Throws Error(bad_file) with the line that is wrong. `path` is for messages.
std::vector<PlannedHost> parse_hosts(std::string_view text, const std::string& path);

}  // namespace tandem::tools
