// tandem kv: shows and removes what --kv-store has kept.
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "plan/footprint.h"
#include "tools/ago.h"
#include "tools/command.h"
#include "tools/confirm.h"
#include "tools/kv_store.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/statistics.h"
#include "tools/text_table.h"

namespace tandem::tools {
namespace {

constexpr size_t kIdDigits = 12, kMinIdDigits = 4;

struct KvCommandOptions {
  KvStoreOptions store;
  std::string action;
  std::vector<std::string> ids;
  bool sandbox = true, yes = false, json = false;
};

std::string id_of(const StoredModel& m) {
  return hex_text(m.root).substr(0, kIdDigits);
}

void print_table(const std::string& folder, const std::vector<StoredModel>& models, Output& out) {
  if (models.empty()) return out.write("nothing is kept in " + printable(folder, 4096) + "\n");
  using enum TextTable::Side;
  TextTable table({{"ID", left}, {"BLOCKS"}, {"SIZE"}, {"MODEL", left}, {"LAST USED", left}});
  for (const StoredModel& m : models) {
    table.add({id_of(m), format("{}", m.n_blocks + m.n_states), size_text(m.n_bytes), printable(m.model, 300),
               time_ago(m.used_s)});
  }
  out.write(table.text());
}

void print_json(const std::string& folder, const std::vector<StoredModel>& models, Output& out) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const StoredModel& m : models) {
    list.push_back({{"id", hex_text(m.root)},
                    {"model", m.model},
                    {"n_blocks", m.n_blocks},
                    {"n_states", m.n_states},
                    {"n_bytes", m.n_bytes},
                    {"last_used", m.used_s}});
  }
  const nlohmann::ordered_json page = {{"folder", folder}, {"models", list}};
  out.write_text(page.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

// The models that an ID of the list names, or the beginning of one.
std::vector<Sha256> roots_of(const std::vector<StoredModel>& models, const std::vector<std::string>& ids) {
  std::vector<Sha256> roots;
  for (const std::string& id : ids) {
    std::vector<Sha256> found;
    for (const StoredModel& m : models) {
      if (id.size() >= kMinIdDigits && hex_text(m.root).starts_with(id)) found.push_back(m.root);
    }
    if (found.size() != 1) {
      throw_error(ErrorCode::usage, "{}: found {} with this ID, needed one; tandem kv ls shows them",
                  printable(id, 300), counted(static_cast<int64_t>(found.size()), "model"));
    }
    roots.push_back(found.front());
  }
  return roots;
}

void remove_blocks(const KvCommandOptions& o, BlockStore& store, const std::vector<StoredModel>& models) {
  const std::vector<Sha256> roots = roots_of(models, o.ids);
  const std::string what = roots.empty()
                               ? "all that is kept in " + printable(o.store.folder, 4096)
                               : "what is kept of " + counted(static_cast<int64_t>(roots.size()), "model");
  if (!o.yes && !confirmed(what)) return;
  log_info("removed {}: {} are free again", what, size_text(store.remove(roots)));
}

void kv(const KvCommandOptions& o) {
  if (!o.store.is_on()) throw Error(ErrorCode::usage, "no folder: name it with --kv-store DIR");
  if (!file_exists(o.store.folder)) {
    throw_error(ErrorCode::io, "{}: no such folder", printable(o.store.folder, 4096));
  }
  Confinement confinement(o.sandbox);
  prepare_block_store(o.store.folder);
  confinement.changes_folder(o.store.folder).begin();
  BlockStore store(o.store.folder);
  const std::vector<StoredModel> models = store.contents();
  if (o.action == "rm") return remove_blocks(o, store, models);
  Output out;
  o.json ? print_json(o.store.folder, models, out) : print_table(o.store.folder, models, out);
  out.flush();
}

}  // namespace

void add_kv(CLI::App& app) {
  CLI::App& command = add_command(app, "kv", "show or remove what --kv-store has kept");
  const auto o = std::make_shared<KvCommandOptions>();
  choice(command, "action", "ls|rm", "ls: show what is kept, by model; rm: remove it", "",
         [o](const std::string& value) {
           o->action = one_of<const char*>("action", value, {{"ls", "ls"}, {"rm", "rm"}});
         })
      .required();
  texts(command, "ids", o->ids, "ID", "rm: only of the models with these IDs, as ls shows them");
  add_kv_store_folder(command, o->store);
  add_sandbox_option(command, o->sandbox);
  flag(command, "-y,--yes", o->yes, "rm: remove without asking");
  flag(command, "--json", o->json, "ls: print everything as one JSON object, sizes in bytes");
  set_footer(command, "Example: tandem kv ls --kv-store ~/.cache/tandem/kv");
  set_callback(command, [o] {
    set_log_level(LogLevel::info);
    kv(*o);
  });
}

}  // namespace tandem::tools
