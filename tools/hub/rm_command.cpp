// tandem rm: removes downloaded models.
#include <memory>
#include <set>

#include "base/log.h"
#include "plan/footprint.h"
#include "tools/command.h"
#include "tools/confirm.h"
#include "tools/hub/downloads.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

struct RmOptions {
  std::string name;
  bool yes = false;
};

std::string names_of(const std::vector<DownloadedModel>& models) {
  std::string names;
  for (const DownloadedModel& m : models) {
    names += (names.empty() ? "" : ", ") + printable(m.name, 300) + " (" + size_text(m.n_bytes) + ")";
  }
  return names;
}

void rm(const RmOptions& o) {
  const HubSettings settings = hub_settings();
  const Downloads downloads = list_downloads(settings);
  const std::vector<DownloadedModel> models = matching(downloads, o.name);
  std::set<std::string> repos;
  for (const DownloadedModel& m : models) {
    if (!m.repo.empty()) repos.insert(m.repo);
  }
  uint64_t n_partial = 0;
  for (const PartialDownload& p : downloads.partial) {
    if (p.repo != o.name) continue;
    repos.insert(p.repo);
    n_partial += p.n_bytes;
  }
  if (models.empty() && n_partial == 0) {
    throw_error(ErrorCode::io, "{}: no such model was downloaded; tandem list shows those that were",
                printable(o.name, 300));
  }
  const std::string what = models.empty() ? printable(o.name, 300) + " (incomplete)" : names_of(models);
  if (!o.yes && !confirmed(what)) return;
  uint64_t n_freed = 0;
  for (const DownloadedModel& m : models) n_freed += remove_model(settings, m);
  for (const std::string& repo : repos) n_freed += remove_rest(settings, repo);
  log_info("removed {}: {} are free again", what, size_text(n_freed));
}

}  // namespace

void add_rm(CLI::App& app) {
  CLI::App& command = add_command(app, "rm", "remove a downloaded model");
  const auto o = std::make_shared<RmOptions>();
  text(command, "name", o->name, "NAME[:QUANT]",
       "the model, as tandem list shows it; without :QUANT all of the repository")
      .required();
  flag(command, "-y,--yes", o->yes, "remove without asking");
  set_callback(command, [o] {
    set_log_level(LogLevel::info);
    rm(*o);
  });
}

}  // namespace tandem::tools
