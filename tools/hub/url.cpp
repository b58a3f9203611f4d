#include "tools/hub/url.h"

#include <cctype>
#include <charconv>

#include "base/error.h"

namespace tandem::tools {
namespace {

std::string lower(std::string_view text) {
  std::string out;
  for (const char c : text) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// "host", "host:8080", "[::1]:8080". False if there is no host, or more than that.
bool read_authority(std::string_view text, Url& url) {
  if (text.empty() || text.find('@') != text.npos) return false;
  size_t host_end = text.find(':');
  if (text[0] == '[') {
    host_end = text.find(']');
    if (host_end == text.npos) return false;
    ++host_end;
  }
  if (host_end > text.size()) host_end = text.size();
  url.host = lower(text.substr(0, host_end));
  url.port = url.scheme == "https" ? "443" : "80";
  if (host_end < text.size()) {
    if (text[host_end] != ':') return false;
    if (host_end + 1 < text.size()) url.port = text.substr(host_end + 1);
  }
  return !url.host.empty() && url.port.find_first_not_of("0123456789") == url.port.npos;
}

}  // namespace

std::string Url::origin() const {
  return scheme + "://" + host + ":" + port;
}

bool Url::is_loopback() const {
  if (host == "localhost" || host == "[::1]") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos;
}

std::optional<Url> parse_url(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == text.npos) return std::nullopt;
  Url url;
  url.scheme = lower(text.substr(0, colon));
  if (url.scheme != "http" && url.scheme != "https") return std::nullopt;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '\\') return std::nullopt;
  }
  text.remove_prefix(colon + 3);
  const size_t authority_end = std::min(text.find_first_of("/?#"), text.size());
  if (!read_authority(text.substr(0, authority_end), url)) return std::nullopt;
  text.remove_prefix(authority_end);
  url.path = text.substr(0, text.find_first_of("?#"));
  if (url.path.empty()) url.path = "/";
  return url;
}

void require_secure(const std::string& text) {
  const std::optional<Url> url = parse_url(text);
  if (!url) {
    throw_error(ErrorCode::io, "{}: not a URL that can be downloaded, needed https://HOST/...",
                printable(text, 300));
  }
  if (url->scheme == "http" && !url->is_loopback()) {
    throw_error(ErrorCode::io, "{}: http is not safe for another machine, needed https",
                printable(text, 300));
  }
}

std::string encode_path(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 || std::string_view("-._~/").find(c) != std::string_view::npos;
    out += byte < 0x80 && plain ? std::string(1, c) : format("%{:02X}", byte);
  }
  return out;
}

std::string decode_path(std::string_view path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    unsigned value = 0;
    const char* digits = path.data() + i + 1;
    if (path[i] == '%' && i + 2 < path.size() &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += path[i];
    }
  }
  return out;
}

}  // namespace tandem::tools
