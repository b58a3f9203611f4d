// --kv-store: where a command keeps what it computes of texts, and finds what others have kept (src/kv/block_store.h).
#pragma once

#include <memory>
#include <string>

#include "kv/block_store.h"
#include "tools/confinement.h"

namespace CLI {
class App;
}

namespace tandem::tools {

struct KvStoreOptions {
  std::string folder = "off";
  size_t max_bytes = BlockStore::kDefaultBytes;
  bool info = false;  // --kv-store-info

  bool is_on() const { return !folder.empty() && folder != "off"; }
};
void add_kv_store_options(CLI::App& app, KvStoreOptions& options);
// --kv-store alone, for commands that manage the folder.
void add_kv_store_folder(CLI::App& app, KvStoreOptions& options);

// Makes the folder and lets the confined program change what is in it. If it cannot be made, warns and turns the store off.
// Throws Error(usage) for a folder of something else.
void prepare_kv_store(KvStoreOptions& options, Confinement& confinement);
// Null if it is off.
std::unique_ptr<BlockStore> open_kv_store(const KvStoreOptions& options);

// Says what was loaded of a prompt, if anything was.
void log_loaded(const BlockStore* store, int64_t n_loaded, int64_t n_prompt);
// At the end, with --kv-store-info: what was loaded and written, and what the folder holds now.
void log_store(const KvStoreOptions& options, BlockStore* store);

}  // namespace tandem::tools
