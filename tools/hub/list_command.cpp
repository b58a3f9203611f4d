// tandem list: shows the models that were downloaded.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "plan/footprint.h"
#include "tools/ago.h"
#include "tools/command.h"
#include "tools/hub/downloads.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/output.h"

namespace tandem::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct ListOptions {
  bool json = false, verbose = false;
};

void print_table(const Downloads& downloads, bool verbose, Output& out) {
  size_t width = 4;
  for (const DownloadedModel& m : downloads.models) width = std::max(width, printable(m.name, 300).size());
  for (const PartialDownload& p : downloads.partial) width = std::max(width, printable(p.repo, 300).size());
  out.write(format("{:<{}}  {:>10}  {}\n", "NAME", width, "SIZE", "LAST USED"));
  for (const DownloadedModel& m : downloads.models) {
    out.write(format("{:<{}}  {:>10}  {}{}\n", printable(m.name, 300), width, size_text(m.n_bytes),
                     time_ago(m.used), m.complete ? "" : " (parts are missing)"));
    if (!verbose) continue;
    for (const std::string& path : m.paths) out.write("    " + printable(path, 4096) + "\n");
  }
  for (const PartialDownload& p : downloads.partial) {
    out.write(
        format("{:<{}}  {:>10}  {}\n", printable(p.repo, 300), width, size_text(p.n_bytes),
               p.n_bytes > 0 ? "incomplete: pull it again to continue" : "nothing is kept: pull it again"));
    if (verbose) out.write("    " + printable(p.path, 4096) + "\n");
  }
}

void print_json(const Downloads& downloads, Output& out) {
  OrderedJson models = OrderedJson::array(), partial = OrderedJson::array();
  for (const DownloadedModel& m : downloads.models) {
    models.push_back({{"name", m.name},
                      {"n_bytes", m.n_bytes},
                      {"last_used", m.used},
                      {"complete", m.complete},
                      {"path", m.paths.front()},
                      {"paths", m.paths}});
  }
  for (const PartialDownload& p : downloads.partial) {
    partial.push_back({{"repo", p.repo}, {"n_bytes", p.n_bytes}, {"path", p.path}});
  }
  const OrderedJson page = {{"models", models}, {"incomplete", partial}};
  out.write_text(page.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

void list(const ListOptions& o) {
  const HubSettings settings = hub_settings();
  const Downloads downloads = list_downloads(settings);
  Output out;
  if (o.json) {
    print_json(downloads, out);
  } else if (downloads.models.empty() && downloads.partial.empty()) {
    out.write("no models in " + printable(settings.cache_folder, 4096) +
              "; tandem pull USER/REPO downloads one\n");
  } else {
    print_table(downloads, o.verbose, out);
  }
  out.flush();
}

}  // namespace

void add_list(CLI::App& app) {
  CLI::App& command = add_command(app, "list", "show the downloaded models");
  const auto o = std::make_shared<ListOptions>();
  flag(command, "-v,--verbose", o->verbose, "also show the paths");
  flag(command, "--json", o->json, "print everything as one JSON object, sizes in bytes");
  set_callback(command, [o] { list(*o); });
}

}  // namespace tandem::tools
