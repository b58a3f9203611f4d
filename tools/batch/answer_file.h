// AnswerFile: the output of `tandem batch`, one line of JSON per answer, each written in one call. Answers
// that the file already holds are kept; the incomplete line that a kill leaves is removed. One process at a
// time may write a file.
//
// Throws Error(io), and Error(bad_file) for a file with other contents, which it never modifies.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

namespace tandem::tools {

class AnswerFile {
 public:
  // "-" is stdout. Stdout, and anything that is not a regular file, starts without answers.
  explicit AnswerFile(const std::string& path);
  ~AnswerFile();
  AnswerFile(const AnswerFile&) = delete;
  AnswerFile& operator=(const AnswerFile&) = delete;

  int64_t n_done() const { return static_cast<int64_t>(done_.size()); }
  int64_t n_errors() const { return n_errors_; }
  bool has(int64_t index) const { return done_.contains(index); }
  // Whether the answer with this index belongs to a line with this id. (An error without an id matches any:
  // the line's id could not be read.)
  bool is_of(int64_t index, const nlohmann::ordered_json& id) const;

  void write(const nlohmann::ordered_json& answer);

 private:
  struct Done {
    uint64_t id;  // hash; 0: no id
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
