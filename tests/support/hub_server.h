// A hub of models on the loopback: speaks the endpoints of the Hugging Face hub that downloads need, and misbehaves as a
// test asks. Each connection has a thread of its own; the destructor ends all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tandem::test {

struct HubRequest {
  std::string method, path, query;             // "GET", "/USER/REPO/resolve/...", "recursive=true"
  std::map<std::string, std::string> headers;  // lower-case names
  bool at_storage = false;                     // came to the second port
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct HubReply {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::string body;
  bool with_length = true;            // Content-Length
  std::optional<size_t> cut_after;    // close the connection after so many bytes of the body
  std::optional<size_t> stall_after;  // send nothing more after so many, until the client goes away
  int delay_ms = 0;                   // before each 64 KiB
};

class HubServer {
  using ChangeReply = std::function<void(const HubRequest&, HubReply&)>;

 public:
  HubServer();
  ~HubServer();
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  std::string url() const;          // "http://127.0.0.1:PORT", for HF_ENDPOINT
  std::string storage_url() const;  // where contents are redirected to

  // Adds or replaces a file of a repository, stored as a large one (sha256) or as git does (sha1).
  void add(const std::string& repo, const std::string& path, const std::string& content, bool large = true);
  void remove(const std::string& repo, const std::string& path);
  void set_commit(const std::string& repo, const std::string& commit);

  // Before the first request: files of the listing per page; redirect contents to the second port.
  std::atomic<size_t> page_size = 1000;
  std::atomic<bool> redirects = true;
  // Changes replies. Called from the threads of connections, one at a time. Once another has been assigned, or null, it is
  // not called any more.
  class Change {
   public:
    explicit Change(HubServer& server) : server_(server) {}
    void operator=(ChangeReply reply) {
      const std::lock_guard lock(server_.mutex_);
      change_ = std::move(reply);
    }

   private:
    friend class HubServer;
    HubServer& server_;
    ChangeReply change_;
  };
  Change change{*this};

  std::vector<HubRequest> requests() const;  // so far
  size_t count(const std::string& part_of_path) const;

 private:
  struct File {
    std::string content, object_id;
    bool large = true;
  };
  struct Repo {
    std::string commit = "0123456789abcdef0123456789abcdef01234567";
    std::map<std::string, File> files;
  };

  void accept_from(int listener, bool at_storage);
  void serve(int connection, bool at_storage);
  HubReply reply_to(const HubRequest& request);
  HubReply revision(const std::string& repo);
  HubReply listing(const HubRequest& request, const std::string& repo);
  HubReply content(const HubRequest& request, const File& file);
  HubReply resolve(const HubRequest& request, const std::string& repo, const std::string& path);

  int listeners_[2] = {-1, -1};
  int ports_[2] = {0, 0};
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::map<std::string, Repo> repos_;
  std::vector<HubRequest> requests_;
  std::vector<int> connections_;
  std::thread acceptors_[2];
  std::vector<std::thread> threads_;
};

}  // namespace tandem::test
