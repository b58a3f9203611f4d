#include "tools/rank_setup.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"
#include "ranks/gather.h"
#include "setup/backends.h"
#include "tools/command.h"
#include "tools/options/setting_flags.h"
#include "tools/output.h"

namespace tandem::tools {
namespace {

std::string named(const Ranks& ranks, const std::string& text) {
  return ranks.size() == 1 ? text : ranks.name_of(ranks.rank()) + ": " + text;
}

void end_all(Ranks& ranks, const std::string& text, ErrorCode code) {
  ranks.abort(text.empty() ? text : named(ranks, text), static_cast<int>(code));
}

void run_body(MpiRanks& ranks, const std::function<void(MpiRanks&)>& body) {
  try {
    body(ranks);
  } catch (const ClosedPipe& e) {
    end_all(ranks, "", e.code());
  } catch (const Error& e) {
    end_all(ranks, message_of(e), e.code());
  } catch (const std::bad_alloc&) {
    end_all(ranks, "out of memory", ErrorCode::out_of_memory);
  } catch (const std::exception& e) {
    end_all(ranks, std::string("internal error: ") + e.what(), ErrorCode::bug);
  }
}

struct Status {
  int32_t code = 0;  // 0: all is well
  char text[1020] = {};
};

template <size_t N>
void copy_text(const std::string& from, char (&to)[N]) {
  const size_t n = std::min(from.size(), N - 1);
  memcpy(to, from.data(), n);
  to[n] = 0;
}

}  // namespace

void run_ranks(LogOptions log, const std::function<void(MpiRanks& ranks)>& body) {
  const std::optional<Launch> launch = Launch::from_environment();
  if (launch) {
    if (const std::optional<int> exit_code = watch_rank(*launch)) {
      if (*exit_code != 0) throw ExitCode{*exit_code};
      return;
    }
  }
  std::optional<ExitCode> exit_code;
  {
    MpiRanks ranks(launch);
    if (ranks.rank() > 0) log.file.clear();
    run_body(ranks, [&](MpiRanks& all) {
      apply_log_options(log);
      if (all.rank() > 0 && !log.verbose && !log.disable) set_log_level(LogLevel::error);
      try {
        body(all);
      } catch (const ExitCode& e) {
        exit_code = e;
      }
      all.finish();
    });
  }
  if (exit_code) throw ExitCode{*exit_code};
}

void attempt(std::optional<Error>& failure, const std::function<void()>& work) {
  if (failure) return;
  try {
    work();
  } catch (const Error& e) {
    failure = e;
  } catch (const std::bad_alloc&) {
    failure.emplace(ErrorCode::out_of_memory, "out of memory");
  }
}

void agree(Ranks& ranks, const std::optional<Error>& failure) {
  Status mine;
  if (failure) {
    mine.code = static_cast<int32_t>(failure->code());
    copy_text(message_of(*failure), mine.text);
  }
  const std::vector<Status> all = gather(ranks, mine);
  const auto first = std::ranges::find_if(all, [](const Status& s) { return s.code != 0; });
  if (first == all.end()) return;
  if (ranks.rank() > 0) ranks.barrier();  // which rank 0 never reaches
  const bool all_the_same = std::ranges::all_of(
      all, [&](const Status& s) { return s.code == first->code && strcmp(s.text, first->text) == 0; });
  const std::string name = ranks.name_of(static_cast<int>(first - all.begin()));
  ranks.abort(all_the_same ? std::string(first->text) : name + ": " + first->text, first->code);
}

void agree_on(Ranks& ranks, const std::string& what, const std::string& text) {
  struct Text {
    char text[128] = {};
  } mine;
  copy_text(text, mine.text);
  const std::vector<Text> all = gather(ranks, mine);
  std::optional<Error> failure;
  if (strcmp(mine.text, all[0].text) != 0)
    failure.emplace(ErrorCode::usage, what + " differs from that of rank 0");
  agree(ranks, failure);
}

HostShare host_share(Ranks& ranks) {
  struct Place {
    char host[64] = {};
    cpu_set_t cpus = {};
  } mine;
  copy_text(host_name(), mine.host);
  sched_getaffinity(0, sizeof mine.cpus, &mine.cpus);
  const std::vector<Place> all = gather(ranks, mine);
  HostShare share{0, 0, 0, 0};
  std::vector<std::string> hosts;
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::find(hosts, all[i].host) == hosts.end()) hosts.emplace_back(all[i].host);
    if (strcmp(all[i].host, mine.host) != 0) continue;
    ++share.n_here;
    share.number_here += static_cast<int>(i) < ranks.rank();
    share.n_on_cores += CPU_EQUAL(&all[i].cpus, &mine.cpus) != 0;
  }
  share.n_hosts = static_cast<int>(hosts.size());
  return share;
}

void share_host(const HostShare& share, EngineOptions& options) {
  DeviceOptions& devices = options.devices;
  if (devices.n_threads <= 0 && share.n_on_cores > 1) {
    devices.n_threads = std::max(1, physical_core_count() / share.n_on_cores);
  }
  if (devices.no_gpus || !devices.gpus.empty() || share.n_here == 1) return;
  const auto found = backends(devices).find_gpus().devices;
  if (found.size() > 1) {
    devices.gpus = {found[static_cast<size_t>(share.number_here) % found.size()]->info().name};
  }
}

}  // namespace tandem::tools
