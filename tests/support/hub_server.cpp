#include "support/hub_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tools/hub/digest.h"
#include "tools/hub/url.h"

namespace tandem::test {
namespace {

using Json = nlohmann::json;
constexpr size_t kPiece = 64 * 1024;

int listen_on_loopback(int& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("cannot listen on the loopback");
  }
  port = ntohs(address.sin_port);
  return fd;
}

std::string object_id_of(const std::string& content, bool large) {
  tools::Digest digest(std::string(large ? 64 : 40, '0'), content.size());
  digest.add(std::as_bytes(std::span(content)));
  return digest.hex();
}

// Reads one request; false at the end of the connection. Requests have no body.
bool read_request(int fd, std::string& buffer, HubRequest& request) {
  size_t end;
  while ((end = buffer.find("\r\n\r\n")) == buffer.npos) {
    char piece[4096];
    const ssize_t n = recv(fd, piece, sizeof piece, 0);
    if (n <= 0) return false;
    buffer.append(piece, static_cast<size_t>(n));
  }
  const std::string head = buffer.substr(0, end);
  buffer.erase(0, end + 4);
  size_t line_end = std::min(head.find("\r\n"), head.size());
  const std::string first = head.substr(0, line_end);
  const size_t space = first.find(' '), last_space = first.rfind(' ');
  request.method = first.substr(0, space);
  const std::string target = first.substr(space + 1, last_space - space - 1);
  const size_t question = target.find('?');
  request.path = tools::decode_path(target.substr(0, question));
  request.query = question == target.npos ? "" : target.substr(question + 1);
  while (line_end < head.size()) {
    const size_t start = line_end + 2;
    line_end = std::min(head.find("\r\n", start), head.size());
    const std::string line = head.substr(start, line_end - start);
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    std::string name = line.substr(0, colon);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    request.headers[name] = line.substr(std::min(colon + 2, line.size()));
  }
  return true;
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Until the client closes the connection.
void wait_for_end(int fd) {
  char byte;
  while (recv(fd, &byte, 1, 0) > 0) {}
}

// False if the connection is not usable any more.
bool send_reply(int fd, const HubReply& reply) {
  std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " X\r\n";
  for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
  if (reply.with_length) head += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
  if (!send_all(fd, head + "\r\n")) return false;
  const size_t stop =
      std::min({reply.cut_after.value_or(SIZE_MAX), reply.stall_after.value_or(SIZE_MAX), reply.body.size()});
  for (size_t at = 0; at < stop; at += kPiece) {
    if (reply.delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(reply.delay_ms));
    if (!send_all(fd, std::string_view(reply.body).substr(at, std::min(kPiece, stop - at)))) return false;
  }
  if (reply.stall_after) wait_for_end(fd);
  return !reply.cut_after && !reply.stall_after && reply.with_length;
}

}  // namespace

HubServer::HubServer() {
  for (int i = 0; i < 2; ++i) listeners_[i] = listen_on_loopback(ports_[i]);
  for (int i = 0; i < 2; ++i) acceptors_[i] = std::thread([this, i] { accept_from(listeners_[i], i == 1); });
}

HubServer::~HubServer() {
  stop_ = true;
  for (const int listener : listeners_) shutdown(listener, SHUT_RDWR);
  for (std::thread& acceptor : acceptors_) acceptor.join();  // nobody adds connections after this
  for (const int connection : connections_) shutdown(connection, SHUT_RDWR);
  for (std::thread& thread : threads_) thread.join();
  for (const int fd : connections_) close(fd);
  for (const int fd : listeners_) close(fd);
}

std::string HubServer::url() const {
  return "http://127.0.0.1:" + std::to_string(ports_[0]);
}
std::string HubServer::storage_url() const {
  return "http://127.0.0.1:" + std::to_string(ports_[1]);
}

void HubServer::add(const std::string& repo, const std::string& path, const std::string& content,
                    bool large) {
  const std::lock_guard lock(mutex_);
  repos_[repo].files[path] = {content, object_id_of(content, large), large};
}

void HubServer::remove(const std::string& repo, const std::string& path) {
  const std::lock_guard lock(mutex_);
  repos_[repo].files.erase(path);
}

void HubServer::set_commit(const std::string& repo, const std::string& commit) {
  const std::lock_guard lock(mutex_);
  repos_[repo].commit = commit;
}

std::vector<HubRequest> HubServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

size_t HubServer::count(const std::string& part_of_path) const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(requests_.begin(), requests_.end(), [&](const HubRequest& r) {
    return r.path.find(part_of_path) != std::string::npos;
  }));
}

void HubServer::accept_from(int listener, bool at_storage) {
  while (!stop_) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const int on = 1;  // a body behind its head does not wait for the client to acknowledge that
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::lock_guard lock(mutex_);
    connections_.push_back(fd);
    threads_.emplace_back([this, fd, at_storage] { serve(fd, at_storage); });
  }
}

void HubServer::serve(int connection, bool at_storage) {
  std::string buffer;
  HubRequest request;
  while (read_request(connection, buffer, request)) {
    request.at_storage = at_storage;
    HubReply reply;
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
      reply = reply_to(request);
      if (change.change_) change.change_(request, reply);
    }
    if (!send_reply(connection, reply)) break;
    request = {};
  }
  shutdown(connection, SHUT_RDWR);
}

HubReply HubServer::reply_to(const HubRequest& request) {
  const auto after = [&](const std::string& prefix) -> std::optional<std::string> {
    if (!request.path.starts_with(prefix)) return std::nullopt;
    return request.path.substr(prefix.size());
  };
  for (auto& [name, repo] : repos_) {
    if (after("/api/models/" + name + "/revision/main")) return revision(name);
    if (after("/api/models/" + name + "/tree/" + repo.commit)) return listing(request, name);
    if (const auto path = after("/" + name + "/resolve/" + repo.commit + "/"))
      return resolve(request, name, *path);
    if (const auto path = after("/" + name + "/resolve/main/")) return resolve(request, name, *path);
    for (const auto& [path, file] : repo.files) {
      if (request.at_storage && request.path == "/storage/" + file.object_id) return content(request, file);
    }
  }
  return {.status = 404, .headers = {}, .body = "{\"error\":\"Repository not found\"}"};
}

HubReply HubServer::revision(const std::string& repo) {
  return {.headers = {}, .body = Json{{"id", repo}, {"sha", repos_[repo].commit}}.dump()};
}

HubReply HubServer::listing(const HubRequest& request, const std::string& repo) {
  const size_t cursor = request.query.find("cursor=");
  const size_t start = cursor == std::string::npos ? 0 : std::stoul(request.query.substr(cursor + 7));
  Json list = Json::array();
  size_t at = 0;
  for (const auto& [path, file] : repos_[repo].files) {
    if (at++ < start || list.size() == page_size) continue;
    Json entry = {
        {"type", "file"}, {"path", path}, {"size", file.content.size()}, {"oid", std::string(40, 'a')}};
    if (file.large) {
      entry["lfs"] = {{"oid", file.object_id}, {"size", file.content.size()}, {"pointerSize", 130}};
    } else {
      entry["oid"] = file.object_id;
    }
    list.push_back(entry);
  }
  HubReply reply{.headers = {}, .body = list.dump()};
  if (start + page_size < repos_[repo].files.size()) {
    const std::string next =
        url() + request.path + "?recursive=true&cursor=" + std::to_string(start + page_size);
    reply.headers["Link"] = "<" + next + ">; rel=\"next\"";
  }
  return reply;
}

HubReply HubServer::resolve(const HubRequest& request, const std::string& repo, const std::string& path) {
  const auto found = repos_[repo].files.find(path);
  if (found == repos_[repo].files.end()) return {.status = 404, .headers = {}, .body = "Entry not found"};
  const File& file = found->second;
  if (!redirects) return content(request, file);
  return {.status = 302,
          .headers = {{"Location", storage_url() + "/storage/" + file.object_id + "?signature=x"},
                      {"X-Repo-Commit", repos_[repo].commit},
                      {"X-Linked-Size", std::to_string(file.content.size())},
                      {"X-Linked-Etag", "\"" + file.object_id + "\""}},
          .body = "Found"};
}

HubReply HubServer::content(const HubRequest& request, const File& file) {
  HubReply reply{.headers = {{"ETag", "\"" + file.object_id + "\""}, {"Accept-Ranges", "bytes"}},
                 .body = file.content};
  const std::string range = request.header("range"), condition = request.header("if-range");
  if (!range.starts_with("bytes=") || (!condition.empty() && condition != reply.headers["ETag"]))
    return reply;
  const size_t dash = range.find('-');
  const size_t first = std::stoul(range.substr(6, dash - 6)), size = file.content.size();
  const size_t last =
      dash + 1 < range.size() ? std::min<size_t>(std::stoul(range.substr(dash + 1)), size - 1) : size - 1;
  if (first >= size) return {.status = 416, .headers = {}, .body = ""};
  reply.status = 206;
  reply.headers["Content-Range"] =
      "bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" + std::to_string(size);
  reply.body = file.content.substr(first, last - first + 1);
  return reply;
}

}  // namespace tandem::test
