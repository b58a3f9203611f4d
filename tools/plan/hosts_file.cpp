#include "tools/plan/hosts_file.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "tools/options/offload.h"
#include "tools/options/suggest.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t start = text.find_first_not_of(kBlank);
  if (start == std::string_view::npos) return {};
  return text.substr(start, text.find_last_not_of(kBlank) - start + 1);
}

class HostsParser {
 public:
  explicit HostsParser(const std::string& path) : path_(path) {}

  std::vector<PlannedHost> parse(std::string_view text) {
    if (valid_utf8_prefix(text) != text.size()) fail("found bytes that are not UTF-8");
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      ++line_;
      add(trimmed(text.substr(0, end)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    end_host();
    if (hosts_.empty()) fail("found no host, needed [[host]] with ram and ram_bw");
    return std::move(hosts_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ErrorCode::bad_file, "{}:{}: {}", printable(path_, 4096), line_, what);
  }

  void add(std::string_view line) {
    if (line.empty() || line[0] == '#') return;
    if (line[0] == '[') {
      const std::string_view name = trimmed(line.substr(0, line.find('#')));
      if (name != "[[host]]") fail(format("found '{}', needed [[host]]", printable(name)));
      end_host();
      hosts_.push_back({.name = format("host{}", hosts_.size() + 1)});
      given_.clear();
      return;
    }
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos)
      fail(format("'{}' is not a line such as ram = \"64G\"", printable(line)));
    if (hosts_.empty()) fail("found a value before the first [[host]]");
    const std::string key(trimmed(line.substr(0, equals)));
    if (std::ranges::find(given_, key) != given_.end()) fail(format("{} is there twice", printable(key)));
    set(key, trimmed(line.substr(equals + 1)));
    given_.push_back(key);
  }

  void set(const std::string& key, std::string_view value) {
    PlannedHost& h = hosts_.back();
    const std::map<std::string, std::function<void()>> keys = {
        {"name", [&] { h.name = text(value); }},
        {"ranks", [&] { h.n_ranks = whole(key, value); }},
        {"ram", [&] { h.ram_bytes = size(key, value); }},
        {"ram_bw", [&] { h.ram_bytes_per_s = 1e9 * number(key, value); }},
        {"gpu", [&] { h.gpu = text(value); }},
        {"gpus", [&] { h.n_gpus = whole(key, value); }},
        {"vram", [&] { h.vram = size(key, value); }},
        {"vram_bw", [&] { h.vram_bytes_per_s = 1e9 * number(key, value); }},
        {"pcie_bw", [&] { h.pcie_bytes_per_s = 1e9 * number(key, value); }},
        {"peer_bw", [&] { h.peer_bytes_per_s = 1e9 * number(key, value); }},
        {"link", [&] { h.link_bytes_per_s = 1e9 / 8 * number(key, value); }},
        {"link_us", [&] { h.link_s = 1e-6 * number(key, value); }},
    };
    const auto found = keys.find(key);
    if (found == keys.end()) {
      std::vector<std::string> known;
      for (const auto& [name, unused] : keys) known.push_back(name);
      fail(format("unknown key '{}'{}", printable(key), did_you_mean(key, known)));
    }
    found->second();
  }

  // A value without the comment behind it.
  std::string text(std::string_view value) const {
    if (value.size() < 2 || value[0] != '"')
      fail(format("found {}, needed a text in double quotes", printable(value)));
    const size_t end = value.find('"', 1);
    if (end == std::string_view::npos) fail("a quote is not closed");
    const std::string_view after = trimmed(value.substr(end + 1));
    if (!after.empty() && after[0] != '#') fail(format("found {} behind a text", printable(after)));
    return std::string(value.substr(1, end - 1));
  }
  std::string bare(std::string_view value) const {
    return std::string(trimmed(value.substr(0, value.find('#'))));
  }

  template <class Parse>
  auto parsed(const Parse& parse) const {
    try {
      return parse();
    } catch (const Error& e) {
      fail(e.message());
    }
  }
  double number(const std::string& key, std::string_view value) const {
    const double x = parsed([&] { return parse_real(key, bare(value), 0); });
    if (!(x > 0) || std::isinf(x))
      fail(format("{}: found {}, needed a number above 0", key, printable(value)));
    return x;
  }
  int64_t whole(const std::string& key, std::string_view value) const {
    return parsed([&] { return parse_integer(key, bare(value), 1, 4096); });
  }
  size_t size(const std::string& key, std::string_view value) const {
    const std::string size = text(value);
    return parsed([&] { return parse_bytes(key, size); });
  }

  void end_host() {
    if (hosts_.empty()) return;
    PlannedHost& h = hosts_.back();
    const std::string in = format("host {}: ", printable(h.name));
    if (h.ram_bytes == 0 || h.ram_bytes_per_s == 0) fail(in + "ram and ram_bw are needed");
    if (!h.gpu.empty() && h.vram) fail(in + "gpu and vram are two ways to describe a GPU: give one");
    const bool has_gpus = !h.gpu.empty() || h.vram;
    if (!has_gpus && (h.n_gpus > 0 || h.vram_bytes_per_s || h.pcie_bytes_per_s || h.peer_bytes_per_s))
      fail(in + "a GPU needs its name (gpu) or its memory (vram)");
    if (has_gpus && h.n_gpus == 0) h.n_gpus = 1;
  }

  const std::string& path_;
  int line_ = 0;
  std::vector<PlannedHost> hosts_;
  std::vector<std::string> given_;  // keys of the last host
};

}  // namespace

std::vector<PlannedHost> parse_hosts(std::string_view text, const std::string& path) {
  return HostsParser(path).parse(text);
}

}  // namespace tandem::tools
