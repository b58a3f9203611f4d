// The parts of a URL that decide who is talked to and how.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::tools {

struct Url {
  std::string scheme, host, port,
      path;                    // lower-case scheme and host; the path starts with / and has no query
  std::string origin() const;  // "https://host:443"
  bool is_loopback() const;
};

// nullopt for anything but http and https, and for a URL with a user name in it.
std::optional<Url> parse_url(std::string_view text);

// Throws Error(io) that names `url` unless it is https, or http on this machine.
void require_secure(const std::string& url);

// Percent-encodes a path's special characters; slashes stay.
std::string encode_path(std::string_view path);
// Decodes %XX; leaves what is not hexadecimal.
std::string decode_path(std::string_view path);

}  // namespace tandem::tools
