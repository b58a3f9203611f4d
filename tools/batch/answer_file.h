// AnswerFile: the output of `tandem batch`, a line of JSON an answer, each written whole as it is complete.
// What a file holds already is done; the torn line that a kill leaves is dropped. One process at a time
// writes it.
//
// Throws Error(io), and Error(bad_file) for a file that holds something else: that is never written to.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

namespace tandem::tools {

class AnswerFile {
 public:
  // "-" is stdout, where nothing is done already; so is whatever is no regular file.
  explicit AnswerFile(const std::string& path);
  ~AnswerFile();
  AnswerFile(const AnswerFile&) = delete;
  AnswerFile& operator=(const AnswerFile&) = delete;

  int64_t n_done() const { return static_cast<int64_t>(done_.size()); }
  int64_t n_errors() const { return n_errors_; }
  bool has(int64_t index) const { return done_.contains(index); }
  // Whether the answer there is one to a line of this id (an error may be one to a line whose id could not be
  // read).
  bool is_of(int64_t index, const nlohmann::ordered_json& id) const;

  void write(const nlohmann::ordered_json& answer);

 private:
  struct Done {
    uint64_t id;  // a hash; 0: none
    bool error;
  };
  void open_file();
  void read_done();
  void add_done(const std::string& line, int64_t number);

  std::string path_, name_;
  int fd_ = -1;
  std::unordered_map<int64_t, Done> done_;
  int64_t n_errors_ = 0;
};

}  // namespace tandem::tools
