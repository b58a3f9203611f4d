#include "tools/kv_store.h"

#include "base/error.h"
#include "base/log.h"
#include "plan/footprint.h"
#include "tools/options/command_line.h"
#include "tools/options/offload.h"
#include "tools/options/setting_flags.h"
#include "tools/statistics.h"

namespace tandem::tools {

void add_kv_store_folder(CLI::App& app, KvStoreOptions& o) {
  text(app, "--kv-store", o.folder, "DIR|off",
       "keep what is computed of texts in this folder, and load it when a later text begins alike, in any run")
      .group("Prompt cache");
}

void add_kv_store_options(CLI::App& app, KvStoreOptions& o) {
  const char* group = "Prompt cache";
  add_kv_store_folder(app, o);
  choice(app, "--kv-store-size", "SIZE", "largest size of the folder; what was not used for longest goes first",
         "10GiB",
         [&o](const std::string& value) { o.max_bytes = parse_bytes("--kv-store-size", value); })
      .group(group);
  flag(app, "--kv-store-info", o.info, "say at the end what was loaded and written, and what the folder holds")
      .group(group);
}

void prepare_kv_store(KvStoreOptions& o, Confinement& confinement) {
  if (!o.is_on()) return;
  try {
    prepare_block_store(o.folder);
    confinement.changes_folder(o.folder);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::io) throw;
    log_warning("{}; nothing is loaded or kept", message_of(e));
    o.folder = "off";
  }
}

std::unique_ptr<BlockStore> open_kv_store(const KvStoreOptions& o) {
  return o.is_on() ? std::make_unique<BlockStore>(o.folder, o.max_bytes) : nullptr;
}

void log_loaded(const BlockStore* store, int64_t n_loaded, int64_t n_prompt) {
  if (store == nullptr || n_loaded <= 0) return;
  log_info("kv store: {} of the prompt's {} loaded from {}", n_loaded, n_tokens_text(n_prompt),
           printable(store->folder(), 4096));
}

void log_store(const KvStoreOptions& o, BlockStore* store) {
  if (store == nullptr || !o.info) return;
  store->flush();
  const BlockStore::Counts c = store->counts();
  int64_t n_files = 0;
  uint64_t n_bytes = 0;
  try {
    for (const StoredModel& m : store->contents()) {
      n_files += m.n_blocks + m.n_states;
      n_bytes += m.n_bytes;
    }
  } catch (const Error& e) {
    return log_warning("{}", message_of(e));
  }
  std::string more;
  if (c.n_removed > 0) more += format(", removed {} old ones", c.n_removed);
  if (c.n_damaged > 0) more += format(", {} damaged", c.n_damaged);
  log_info("kv store {}: loaded {} ({}), wrote {} ({}){}; holds {}, {} of {}", printable(store->folder(), 4096),
           counted(c.n_read, "block"), size_text(c.read_bytes), c.n_written, size_text(c.written_bytes), more,
           counted(n_files, "block"), size_text(n_bytes), size_text(store->max_bytes()));
}

}  // namespace tandem::tools
