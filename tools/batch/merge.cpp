#include "tools/batch/merge.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/open_file.h"
#include "base/output_file.h"
#include "gguf/mapped_file.h"
#include "tools/batch/answer_file.h"
#include "tools/batch/input.h"
#include "tools/batch/line_reader.h"
#include "tools/batch/request.h"
#include "tools/batch/shard.h"
#include "tools/confinement.h"
#include "tools/overwrite.h"

namespace tandem::tools {
namespace {

struct Place {
  int64_t index;  // of the line that it answers
  AnswerMark mark;
  std::span<const std::byte> line;  // without its newline
};

struct Missing {
  int64_t n_lines = 0, n_missing = 0, first = 0;
};

// A shard without lines has an empty file, which cannot be mapped.
MappedFile map_answers(const std::string& path) {
  struct stat info {};
  const bool is_empty = stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0;
  return is_empty ? MappedFile::view({}, path) : MappedFile::open(path, {.prefetch = false});
}

// The complete lines of a file of answers; a last line that a kill has cut is not one.
std::vector<Place> places_in(const MappedFile& file) {
  std::vector<Place> places;
  std::span<const std::byte> rest = file.bytes();
  for (int64_t number = 1;; ++number) {
    const auto end = std::ranges::find(rest, std::byte{'\n'});
    if (end == rest.end()) return places;
    const auto line = rest.first(static_cast<size_t>(end - rest.begin()));
    const std::optional<Answer> answer =
        line.size() > LineReader::kMaxBytes
            ? std::nullopt
            : parse_answer({reinterpret_cast<const char*>(line.data()), line.size()});
    if (!answer) throw_no_answer(printable(file.path(), 4096), number);
    places.push_back({answer->index, answer->mark, line});
    rest = rest.subspan(line.size() + 1);
  }
}

// A line that was answered twice counts with its last answer, as in a rerun. All answers to a line are in one file.
void sort_and_keep_last(std::vector<Place>& places) {
  std::ranges::sort(places, {}, [](const Place& place) { return std::pair(place.index, place.line.data()); });
  size_t n = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    if (i + 1 < places.size() && places[i + 1].index == places[i].index) continue;
    places[n++] = places[i];
  }
  places.resize(n);
}

void refuse_while_written(const std::string& path) {
  const int fd = open_for_reading(path, O_CLOEXEC);
  if (fd < 0) return;  // mapping it will say why
  const bool written = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  if (written) throw_error(ErrorCode::io, "{}: tandem batch is still writing it", printable(path, 4096));
}

class Merge {
 public:
  Merge(const std::string& input, const std::string& output)
      : output_(output),
        input_name_(input == "-" ? "stdin" : printable(input, 4096)),
        output_name_(printable(output, 4096)),
        shards_(shard_files(output)),
        input_(input, input_name_) {
    if (shards_.empty()) {
      throw_error(ErrorCode::usage, "{}: found no shards beside it, needed files such as {}", output_name_,
                  printable(shard_path(output, {1, 4}), 4096));
    }
    n_shards_ = shards_[0].shard.count;
    for (const ShardFile& file : shards_) {
      if (file.shard.count != n_shards_) {
        throw_error(ErrorCode::usage, "{} and {} are shards of different divisions; remove those that are not meant",
                    printable(shards_[0].path, 4096), printable(file.path, 4096));
      }
      refuse_while_written(file.path);
      files_.push_back(map_answers(file.path));
    }
    if (file_exists(output)) replaced_ = map_answers(output);
  }

  void run() {
    if (replaced_) places_in(*replaced_);  // throws if it holds anything else
    for (size_t i = 0; i < files_.size(); ++i) add(i);
    sort_and_keep_last(places_);
    match();
    report_missing();
    write();
  }

 private:
  void add(size_t i) {
    for (const Place& place : places_in(files_[i])) {
      if (!shards_[i].shard.has(place.index)) {
        throw_error(ErrorCode::bad_file, "{}: has an answer to line {}, which is not in shard {}",
                    printable(shards_[i].path, 4096), place.index, shards_[i].shard.text());
      }
      places_.push_back(place);
    }
  }

  // Compares the answers with the lines of the input.
  void match() {
    LineReader reader(input_.get(), input_name_);
    std::string line;
    auto next = places_.begin();
    while (reader.next(line) == LineReader::Result::line) {
      const int64_t number = reader.n_lines();
      if (!reader.too_long() && is_blank(line)) continue;
      if (next != places_.end() && next->index < number) break;
      Missing& missing = missing_[(number - 1) % n_shards_ + 1];
      ++missing.n_lines;
      if (next == places_.end() || next->index != number) {
        if (missing.n_missing++ == 0) missing.first = number;
      } else if (!(next++)->mark.is_of(id_of(line))) {
        throw_error(ErrorCode::bad_file,
                    "{}: line {} and its answer have different ids: the answers belong to another input", input_name_,
                    number);
      }
    }
    if (next != places_.end()) {
      throw_error(ErrorCode::bad_file, "{}: line {} is empty or not there, but has an answer: the answers belong to another "
                  "input", input_name_, next->index);
    }
  }

  void report_missing() const {
    int64_t n = 0;
    for (const auto& [number, missing] : missing_) {
      if (missing.n_missing == 0) continue;
      ++n;
      const Shard shard{number, n_shards_};
      const std::string path = printable(shard_path(output_, shard), 4096);
      const bool found = std::ranges::any_of(shards_, [&](const ShardFile& f) { return f.shard.number == shard.number; });
      if (!found) {
        log_warning("shard {}: {} is missing ({} lines)", shard.text(), path, missing.n_lines);
      } else {
        log_warning("shard {}: {} lacks the answers to {} of {} lines, the first of them line {}", shard.text(), path,
                    missing.n_missing, missing.n_lines, missing.first);
      }
    }
    if (n == 0) return;
    throw_error(ErrorCode::bad_file, "{}: {} of {} shards are incomplete; run them again with --shard I/{}, then merge again",
                output_name_, n, n_shards_, n_shards_);
  }

  void write() const {
    OutputFile file(output_);
    const std::byte newline{'\n'};
    int64_t n_errors = 0;
    for (const Place& place : places_) {
      file.write(place.line);
      file.write({&newline, 1});
      n_errors += place.mark.error;
    }
    file.publish();
    log_info("{}: {} answers of {} shards{}", output_name_, places_.size(), n_shards_,
             n_errors > 0 ? format(", {} of them with an error", n_errors) : "");
  }

  std::string output_, input_name_, output_name_;
  std::vector<ShardFile> shards_;  // that have a file
  int64_t n_shards_ = 0;           // also those that have none
  BatchInput input_;
  std::vector<MappedFile> files_;  // of shards_
  std::optional<MappedFile> replaced_;
  std::vector<Place> places_;
  std::map<int64_t, Missing> missing_;  // by the number of the shard
};

}  // namespace

void merge_shards(const std::string& input, const std::string& output, bool sandbox) {
  if (output == "-") {
    throw_error(ErrorCode::usage, "--merge needs -o FILE: the shards are the files beside it");
  }
  const std::string outputs[] = {output};
  if (input != "-") refuse_to_overwrite(input, outputs);
  Merge merge(input, output);
  Confinement confinement(sandbox);
  confinement.writes(output).begin();
  merge.run();
}

}  // namespace tandem::tools
