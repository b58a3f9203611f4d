// Shards: the lines of one input divided over several runs of `tandem batch`, on one machine or on many. Each run writes a
// file of its own, which it continues when it is run again; `tandem batch --merge` joins them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::tools {

// Every `count`-th line of the input, from line `number` on.
struct Shard {
  int64_t number = 1, count = 1;  // both from 1; 1/1 is the whole input

  bool has(int64_t line) const { return (line - 1) % count == number - 1; }  // lines count from 1
  bool is_whole() const { return count == 1; }
  std::string text() const;  // "3/8"
};

// "3/8", or "off" for the whole input. Throws Error(usage).
Shard parse_shard(const std::string& option, const std::string& text);

// The shard of this task of a Slurm job array, whose tasks are numbered 1-N or 0-(N-1); the whole input outside of one.
// Throws Error(usage) for other numbers, and where other shards of the output show that this array answers again only some
// of them.
Shard slurm_shard(const std::string& output);

// "answers-00003-of-00008.jsonl" for "answers.jsonl". The whole input, stdout and what is no regular file keep their name.
std::string shard_path(const std::string& output, const Shard& shard);

struct ShardFile {
  std::string path;
  Shard shard;
};
// The files beside the output that are named like its shards, by number. Throws Error(io).
std::vector<ShardFile> shard_files(const std::string& output);

}  // namespace tandem::tools
