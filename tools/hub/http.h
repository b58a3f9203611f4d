// HTTP GET: the one place that talks to the network.
//
// Allowed are https, and http on this machine. Redirects are followed, under the same rule, and an access token goes
// only to the origin (scheme, host and port) of the request: never along a redirect to another. TLS certificates are
// verified; proxies come from the environment, as for every program that uses libcurl.
//
// Not thread-safe. Ctrl-C (base/interrupt.h) ends a request with Error(interrupted).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"

namespace tandem::tools {

struct HttpRequest {
  std::string url;
  std::string token = {};     // of the origin; empty: none
  std::string range = {};     // "0-99", "100-"
  std::string if_range = {};  // an etag: the range is only for the file with it
};

struct HttpResponse {
  int status = 0;
  std::string url;                             // the last one, after redirects
  std::map<std::string, std::string> headers;  // lower-case names
  std::string text;                            // the start of the body, if the status is not 2xx

  // "" if there is none.
  const std::string& header(const std::string& lower_case_name) const;
  // The wait that a busy server asks for.
  std::optional<double> retry_after_s() const;
};

// What happens with the body of a 2xx response. May throw; the exception leaves HttpClient::get().
struct HttpSink {
  std::function<void(const HttpResponse&)> begin;              // once, before the first bytes
  std::function<bool(std::span<const std::byte> bytes)> data;  // false: enough, end the request
};

// A failure that may be over the next time: no connection, a cut or stalled one, a busy server.
class TransientError : public Error {
 public:
  TransientError(const std::string& message, std::optional<double> retry_after_s = {})
      : Error(ErrorCode::io, message), retry_after_s_(retry_after_s) {}
  std::optional<double> retry_after_s() const { return retry_after_s_; }

 private:
  std::optional<double> retry_after_s_;
};

// No connection at all.
class UnreachableError : public TransientError {
 public:
  using TransientError::TransientError;
};

struct HttpTimeouts {
  long connect_s = 15;
  long stall_s = 30;  // without a byte
};

class HttpClient {
 public:
  // Needs libcurl from the first request on.
  explicit HttpClient(const HttpTimeouts& timeouts = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Returns the response, whatever its status. Throws TransientError, Error(io) for a failure that stays, and
  // Error(interrupted).
  HttpResponse get(const HttpRequest& request, const HttpSink& sink);

 private:
  struct Transfer;
  void perform(const std::string& url, const HttpRequest& request, bool with_token, Transfer& transfer);

  HttpTimeouts timeouts_;
  void* handle_ = nullptr;  // CURL*; made for the first request, keeps connections open
};

// How often, and after which waits, a request is repeated.
struct RetryPolicy {
  int max_attempts = 5;
  double first_wait_s = 1;  // doubled each time
  double max_wait_s = 60;   // a server that asks for more is not waited for
};

// Counts attempts and waits between them.
class Retries {
 public:
  // Whether to wait for a server that cannot be reached: it is worth it in the middle of a download.
  enum class Unreachable { fails, is_waited_for };
  explicit Retries(const RetryPolicy& policy, Unreachable unreachable = Unreachable::fails)
      : policy_(policy), unreachable_(unreachable) {}
  void reset() { n_failed_ = 0; }  // after progress
  // Waits, with a line that says why; throws the failure again when it was the last attempt.
  void wait_or_throw(const TransientError& failure);

 private:
  RetryPolicy policy_;
  Unreachable unreachable_;
  int n_failed_ = 0;
};

}  // namespace tandem::tools
