#include "tools/hub/http.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include "base/interrupt.h"
#include "base/log.h"
#include "tools/hub/curl_library.h"
#include "tools/hub/url.h"

namespace tandem::tools {
namespace {

constexpr int kMaxRedirects = 10;
constexpr size_t kMaxErrorText = 4096;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool is_unreachable(CURLcode code) {
  return code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY ||
         code == CURLE_COULDNT_CONNECT;
}

// Failures that another attempt may not have.
bool is_transient(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR: return true;
    default: return false;
  }
}

void wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (Clock::now() < end) {
    if (interrupted()) throw Error(ErrorCode::interrupted, "");
    const auto left = std::chrono::duration<double>(end - Clock::now());
    std::this_thread::sleep_for(std::min(left, std::chrono::duration<double>(0.05)));
  }
}

}  // namespace

const std::string& HttpResponse::header(const std::string& name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

// As a number of seconds; a date is not understood, and the usual waits apply.
std::optional<double> HttpResponse::retry_after_s() const {
  const std::string& value = header("retry-after");
  unsigned seconds = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  if (error != std::errc() || end != value.data() + value.size()) return std::nullopt;
  return seconds;
}

// What the callbacks of one request share. Exceptions must not pass through libcurl: they wait here.
struct HttpClient::Transfer {
  const HttpSink* sink = nullptr;
  HttpResponse response;
  bool begun = false, enough = false;
  std::exception_ptr thrown;

  bool succeeded() const { return response.status >= 200 && response.status < 300; }
  void begin() {
    if (begun || !succeeded()) return;
    begun = true;
    if (sink->begin) sink->begin(response);
  }
  bool add(std::span<const std::byte> bytes) {
    if (!succeeded()) {
      const size_t n = std::min(bytes.size(), kMaxErrorText - response.text.size());
      response.text.append(reinterpret_cast<const char*>(bytes.data()), n);
      return true;
    }
    begin();
    enough = !sink->data(bytes);
    return !enough;
  }
};

namespace {

// "HTTP/1.1 206 Partial Content" starts a response, and forgets the interim one before it.
void read_header(HttpResponse& response, std::string_view line) {
  if (line.starts_with("HTTP/")) {
    response.headers.clear();
    const size_t space = line.find(' ');
    response.status = 0;
    if (space != line.npos) {
      std::from_chars(line.data() + space + 1, line.data() + line.size(), response.status);
    }
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos || response.headers.size() > 1000) return;
  std::string name;
  for (const char c : line.substr(0, colon)) {
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  response.headers[name] = trimmed(line.substr(colon + 1));
}

}  // namespace

HttpClient::HttpClient(const HttpTimeouts& timeouts) : timeouts_(timeouts) {}

HttpClient::~HttpClient() {
  if (handle_ != nullptr) curl_library().easy_cleanup(handle_);
}

void HttpClient::perform(const std::string& url, const HttpRequest& request, bool with_token,
                         Transfer& transfer) {
  const CurlLibrary& curl = curl_library();
  if (handle_ == nullptr) handle_ = curl.easy_init();
  if (handle_ == nullptr) throw Error(ErrorCode::io, "libcurl cannot be initialized");
  curl.easy_reset(handle_);
  const auto set = [&](CURLoption option, auto value) { curl.easy_setopt(handle_, option, value); };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
  set(CURLOPT_FOLLOWLOCATION, 0L);  // get() does, by its own rules
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_SSL_VERIFYPEER, 1L);
  set(CURLOPT_SSL_VERIFYHOST, 2L);
  set(CURLOPT_CONNECTTIMEOUT, timeouts_.connect_s);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, timeouts_.stall_s);
  set(CURLOPT_BUFFERSIZE, 256L * 1024);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  set(CURLOPT_USERAGENT, "tandem");
  if (parse_url(url)->is_loopback()) set(CURLOPT_NOPROXY, "*");
  if (!request.range.empty()) set(CURLOPT_RANGE, request.range.c_str());

  std::unique_ptr<curl_slist, decltype(curl.slist_free_all)> headers(nullptr, curl.slist_free_all);
  const auto add_header = [&](const std::string& line) {
    headers.reset(curl.slist_append(headers.release(), line.c_str()));
  };
  if (with_token) add_header("Authorization: Bearer " + request.token);
  if (!request.if_range.empty()) add_header("If-Range: " + request.if_range);
  set(CURLOPT_HTTPHEADER, headers.get());

  using Callback = size_t (*)(char*, size_t, size_t, void*);
  const Callback on_header = [](char* text, size_t, size_t n, void* to) -> size_t {
    read_header(static_cast<Transfer*>(to)->response, {text, n});
    return n;
  };
  const Callback on_body = [](char* bytes, size_t, size_t n, void* to) -> size_t {
    auto& t = *static_cast<Transfer*>(to);
    try {
      return t.add(std::as_bytes(std::span(bytes, n))) ? n : 0;
    } catch (...) {
      t.thrown = std::current_exception();
      return 0;
    }
  };
  const curl_xferinfo_callback on_progress = [](void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return interrupted() ? 1 : 0;
  };
  set(CURLOPT_HEADERFUNCTION, on_header);
  set(CURLOPT_HEADERDATA, &transfer);
  set(CURLOPT_WRITEFUNCTION, on_body);
  set(CURLOPT_WRITEDATA, &transfer);
  set(CURLOPT_XFERINFOFUNCTION, on_progress);
  set(CURLOPT_NOPROGRESS, 0L);
  std::vector<char> detail(CURL_ERROR_SIZE, '\0');
  set(CURLOPT_ERRORBUFFER, detail.data());

  const CURLcode code = curl.easy_perform(handle_);
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  if (interrupted()) throw Error(ErrorCode::interrupted, "");
  if (code == CURLE_OK || transfer.enough) return;
  std::string why = detail[0] != '\0' ? detail.data() : curl.easy_strerror(code);
  if (why.find("too slow") != why.npos) why = format("no data for {} seconds", timeouts_.stall_s);
  const std::string message = format("{}: {}", parse_url(url)->host, printable(why, 300));
  if (is_unreachable(code)) throw UnreachableError(message);
  if (is_transient(code)) throw TransientError(message);
  throw Error(ErrorCode::io, message);
}

HttpResponse HttpClient::get(const HttpRequest& request, const HttpSink& sink) {
  require_secure(request.url);
  const std::string origin = parse_url(request.url)->origin();
  bool with_token = !request.token.empty();
  std::string url = request.url;
  for (int n = 0; n <= kMaxRedirects; ++n) {
    Transfer transfer;
    transfer.sink = &sink;
    perform(url, request, with_token, transfer);
    transfer.response.url = url;
    const char* next = nullptr;
    curl_library().easy_getinfo(handle_, CURLINFO_REDIRECT_URL, &next);
    if (!is_redirect(transfer.response.status) || next == nullptr) {
      transfer.begin();  // for a body of no bytes
      return std::move(transfer.response);
    }
    url = next;
    require_secure(url);
    // Out of the internet, no way leads back to this machine.
    if (parse_url(url)->is_loopback() && !parse_url(request.url)->is_loopback()) {
      throw_error(ErrorCode::io, "{}: redirected to this machine ({}), refused", printable(request.url, 300),
                  printable(url, 300));
    }
    with_token = with_token && parse_url(url)->origin() == origin;
  }
  throw_error(ErrorCode::io, "{}: more than {} redirects", printable(request.url, 300), kMaxRedirects);
}

void Retries::wait_or_throw(const TransientError& failure) {
  const auto* unreachable = dynamic_cast<const UnreachableError*>(&failure);
  if (unreachable != nullptr && unreachable_ == Unreachable::fails) throw *unreachable;
  ++n_failed_;
  const double wait_s =
      failure.retry_after_s().value_or(policy_.first_wait_s * static_cast<double>(1 << (n_failed_ - 1)));
  if (n_failed_ >= policy_.max_attempts) {
    if (policy_.max_attempts == 1) throw failure;
    throw TransientError(format("{} (tried {} times)", failure.message(), policy_.max_attempts));
  }
  if (wait_s > policy_.max_wait_s) {
    throw TransientError(format("{}; it asks to wait {:.0f} seconds", failure.message(), wait_s));
  }
  log_info("{}; trying again in {:.0f} s", failure.message(), wait_s);
  wait(wait_s);
}

}  // namespace tandem::tools
