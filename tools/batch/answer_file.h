// AnswerFile: the output of `tandem batch`, one line of JSON per answer, each written in one call. Answers
// that the file already holds are kept; the incomplete line that a kill leaves is removed. One process at a
// time may write a file.
//
// Throws Error(io), and Error(bad_file) for a file with other contents, which it never modifies.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>

#include "tools/batch/shard.h"

namespace tandem::tools {

// What is remembered of an answer.
struct AnswerMark {
  uint64_t id;  // hash; 0: no id
  bool error;

  // Whether it belongs to a line with this id. (An error without an id matches any: the line's id could not be read.)
  bool is_of(const nlohmann::ordered_json& id) const;
};

struct Answer {
  int64_t index;  // of the line in the input, from 1
  AnswerMark mark;
};
// Nothing if the line is not an answer.
std::optional<Answer> parse_answer(const std::string& line);
// The line of an answer, without its newline.
std::string answer_line(const nlohmann::ordered_json& answer);
[[noreturn]] void throw_no_answer(const std::string& file_name, int64_t line);

class AnswerFile {
 public:
  // "-" is stdout. Stdout, and anything that is not a regular file, starts without answers. An answer that is there to a
  // line of another shard is an Error(bad_file).
  explicit AnswerFile(const std::string& path, const Shard& shard = {});
  ~AnswerFile();
  AnswerFile(const AnswerFile&) = delete;
  AnswerFile& operator=(const AnswerFile&) = delete;

  int64_t n_done() const { return static_cast<int64_t>(done_.size()); }
  int64_t n_errors() const { return n_errors_; }
  // Says what the file already holds, if anything.
  void log_done() const;
  bool has(int64_t index) const { return done_.contains(index); }
  bool is_of(int64_t index, const nlohmann::ordered_json& id) const { return done_.at(index).is_of(id); }

  // An answer_line().
  void write(std::string line);
  // Whether lines are seen on a terminal at once, where a line of progress would be in their way; or perhaps later, behind a pipe.
  bool is_on_terminal() const;
  bool is_piped() const;

 private:
  void open_file();
  void read_done();
  void add_done(const std::string& line, int64_t number);

  std::string path_, name_;
  Shard shard_;
  int fd_ = -1;
  std::unordered_map<int64_t, AnswerMark> done_;
  int64_t n_errors_ = 0;
};

}  // namespace tandem::tools
