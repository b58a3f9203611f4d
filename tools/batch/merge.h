// Joins the answers of the shards of a batch into one file.
#pragma once

#include <string>

namespace tandem::tools {

// Writes to `output` the answers of all shards beside it, in the order of the input's lines; `input` "-" is stdin. An
// existing output is replaced if it holds nothing but answers.
//
// Names each shard that has no file, or lacks the answer to a line, in a warning of its own, and then throws
// Error(bad_file) without writing anything. Throws Error(bad_file) also for answers that belong to another shard or input,
// Error(io) for a shard that is still being written, Error(usage) if there are no shards, or those of two divisions.
void merge_shards(const std::string& input, const std::string& output, bool sandbox);

}  // namespace tandem::tools
