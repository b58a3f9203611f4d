#include "tools/hub/settings.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "base/text_input.h"
#include "tools/hub/url.h"

namespace tandem::tools {
namespace {

constexpr const char* kEndpoint = "https://huggingface.co";

// "" if it is not set.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string home_folder() {
  if (std::string home = variable("HOME"); !home.empty()) return home;
  const passwd* user = getpwuid(getuid());
  if (user != nullptr && user->pw_dir != nullptr && *user->pw_dir != '\0') return user->pw_dir;
  throw Error(ErrorCode::io, "there is no home folder to keep models in: set HF_HOME to a folder");
}

// HF_HOME may start with "~/".
std::string expanded(const std::string& path) {
  return path == "~" || path.starts_with("~/") ? home_folder() + path.substr(1) : path;
}

std::string user_cache_folder() {
  const std::string folder = variable("XDG_CACHE_HOME");
  return folder.empty() ? home_folder() + "/.cache" : folder;
}

std::string hf_home() {
  const std::string folder = variable("HF_HOME");
  return folder.empty() ? user_cache_folder() + "/huggingface" : expanded(folder);
}

std::string cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string folder = variable(name); !folder.empty()) return expanded(folder);
  }
  return hf_home() + "/hub";
}

std::string token() {
  if (const std::string text = variable("HF_TOKEN"); !text.empty()) return checked_token("HF_TOKEN", text);
  std::string path = variable("HF_TOKEN_PATH");
  if (path.empty()) path = hf_home() + "/token";
  return checked_token(path, read_optional_file(path, 4096));
}

bool is_true(std::string word) {
  for (char& c : word) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return word == "1" || word == "ON" || word == "YES" || word == "TRUE";
}

}  // namespace

std::string checked_token(const std::string& source, const std::string& text) {
  const size_t start = text.find_first_not_of(" \t\r\n");
  if (start == text.npos) return "";
  const std::string inner = text.substr(start, text.find_last_not_of(" \t\r\n") + 1 - start);
  for (const char c : inner) {
    if (c > ' ' && c < 0x7f) continue;
    throw_error(ErrorCode::usage, "{}: not an access token: found byte 0x{:02x}, needed letters and digits",
                source, static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return inner;
}

HubSettings hub_settings() {
  HubSettings s;
  s.endpoint = variable("HF_ENDPOINT");
  if (s.endpoint.empty()) s.endpoint = kEndpoint;
  while (s.endpoint.ends_with("/")) s.endpoint.pop_back();
  if (!parse_url(s.endpoint)) {
    throw_error(ErrorCode::usage, "HF_ENDPOINT: '{}' is not a URL, needed https://HOST",
                printable(s.endpoint));
  }
  s.token = token();
  s.cache_folder = cache_folder();
  s.url_folder = user_cache_folder() + "/tandem/models";
  if (is_true(variable("HF_HUB_OFFLINE"))) {
    s.offline = true;
    s.offline_why = "HF_HUB_OFFLINE";
  }
  return s;
}

}  // namespace tandem::tools
