#include "kv/block_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random_seed.h"

namespace tandem {
namespace {

constexpr const char* kLockName = "tandem-kv.lock";
constexpr std::string_view kTemporary = "tmp-";
constexpr size_t kMaxWaitingBytes = size_t{64} << 20;
constexpr int64_t kOldTemporary_ns = int64_t{600} * 1'000'000'000;
constexpr size_t kNameDigits = 64;

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

bool read_whole(int fd, std::span<std::byte> bytes, size_t from) {
  while (!bytes.empty()) {
    const ssize_t n = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(from));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
    from += static_cast<size_t>(n);
  }
  return true;
}

// False and errno.
bool write_whole(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

// The access time, which nobody reads, and the modification time.
std::array<timespec, 2> times_of(BlockStore::Use use) {
  const int64_t ns = use.time_ns - 1000 * use.block;
  return {timespec{0, UTIME_OMIT}, timespec{ns / 1'000'000'000, ns % 1'000'000'000}};
}

const char* suffix_of(BlockKind kind) {
  return kind == BlockKind::rows ? ".rows" : ".state";
}

// Of "NAME.rows" and "NAME.state"; none for other files.
std::optional<BlockKind> kind_of_file(std::string_view name) {
  if (name.size() < kNameDigits) return {};
  if (name.substr(0, kNameDigits).find_first_not_of("0123456789abcdef") != name.npos) return {};
  for (const BlockKind kind : {BlockKind::rows, BlockKind::state}) {
    if (name.substr(kNameDigits) == suffix_of(kind)) return kind;
  }
  return {};
}

std::string_view name_of(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

struct BlockStore::Entry {
  std::string path;
  uint64_t n_bytes = 0;
  int64_t used_ns = 0;
  bool is_temporary = false;
};

void prepare_block_store(const std::string& folder) {
  if (!file_exists(folder)) {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::path(folder + "/.").lexically_normal().parent_path();
    if (parent.has_parent_path()) std::filesystem::create_directories(parent.parent_path(), error);
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      throw_error(ErrorCode::io, "{}: cannot create this folder: {}", printable(folder, 4096), strerror(errno));
    }
  }
  if (!is_folder(folder)) {
    throw_error(ErrorCode::usage, "{}: not a folder; a store of computed blocks needs one of its own",
                printable(folder, 4096));
  }
  const std::string lock = folder + "/" + kLockName;
  if (file_exists(lock)) return;
  for (const std::string& path : files_in(folder)) {
    if (name_of(path) == kLockName) return;  // another process was faster
    throw_error(ErrorCode::usage,
                "{}: not a store of computed blocks: found {}, needed an empty folder or one that does not exist",
                printable(folder, 4096), printable(name_of(path), 300));
  }
  const File made(lock, O_RDWR | O_CREAT);
  if (!made.is_open()) {
    throw_error(ErrorCode::io, "{}: cannot create: {}", printable(lock, 4096), strerror(errno));
  }
}

BlockStore::BlockStore(std::string folder, uint64_t max_bytes)
    : folder_(std::move(folder)), max_bytes_(max_bytes), temporary_id_(random_seed()) {
  prepare_block_store(folder_);
}

BlockStore::~BlockStore() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string BlockStore::path_of(const Sha256& name, BlockKind kind) const {
  return folder_ + "/" + hex_text(name) + suffix_of(kind);
}

bool BlockStore::has(const Sha256& name, BlockKind kind) const {
  return access(path_of(name, kind).c_str(), R_OK) == 0;
}

std::optional<std::vector<std::byte>> BlockStore::read(const Sha256& name, BlockKind kind, size_t n_bytes) {
  const std::string path = path_of(name, kind);
  const File file(path, O_RDONLY);
  if (!file.is_open()) return {};
  struct stat info {};
  std::array<std::byte, BlockHeader::kBytes> head;
  std::vector<std::byte> bytes;
  const auto sound = [&] {
    if (fstat(file.get(), &info) != 0 || static_cast<uint64_t>(info.st_size) != head.size() + n_bytes)
      return false;
    if (!read_whole(file.get(), head, 0)) return false;
    const std::optional<BlockHeader> header = read_header(head);
    if (!header || header->kind != kind || header->name != name || header->n_bytes != n_bytes) return false;
    bytes.resize(n_bytes);
    return read_whole(file.get(), bytes, head.size()) && header->checksum == block_checksum(bytes);
  };
  const bool is_sound = sound();
  const std::lock_guard lock(mutex_);
  if (!is_sound) {
    unlink(path.c_str());
    if (counts_.n_damaged++ == 0)
      log_warning("{}: damaged; removed, and its tokens are computed", printable(path, 4096));
    return {};
  }
  ++counts_.n_read;
  counts_.read_bytes += n_bytes;
  return bytes;
}

int64_t BlockStore::now_ns() {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void BlockStore::touch(const Sha256& name, BlockKind kind, Use use) const {
  (void)utimensat(AT_FDCWD, path_of(name, kind).c_str(), times_of(use).data(), 0);  // a folder that is only read
}

bool BlockStore::takes_blocks() {
  const std::lock_guard lock(mutex_);
  return !failed_;
}

bool BlockStore::has_room(size_t n_bytes) {
  const std::lock_guard lock(mutex_);
  return jobs_.empty() || n_waiting_bytes_ + n_bytes <= kMaxWaitingBytes;
}

void BlockStore::write(BlockHeader header, std::vector<std::byte> bytes, Use use) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return failed_ || jobs_.empty() || n_waiting_bytes_ + bytes.size() <= kMaxWaitingBytes;
  });
  if (failed_) return;
  n_waiting_bytes_ += bytes.size();
  jobs_.push_back({std::move(header), std::move(bytes), use});
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { write_jobs(); });
    } catch (const std::system_error& e) {
      jobs_.clear();
      n_waiting_bytes_ = 0;
      failed_ = true;
      log_warning("{}: cannot start a thread to write blocks: {}", printable(folder_, 4096), e.what());
    }
  }
  changed_.notify_all();
}

void BlockStore::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty(); });
}

// Of the thread: writes until there is nothing left and the object goes.
void BlockStore::write_jobs() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stops_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job& job = jobs_.front();  // stays where it is while others come
    lock.unlock();
    try {
      write_file(job);
    } catch (const std::exception& e) {
      stop_writing(e.what());
    }
    lock.lock();
    n_waiting_bytes_ -= job.bytes.size();
    jobs_.pop_front();
    if (failed_) {
      jobs_.clear();
      n_waiting_bytes_ = 0;
    }
    changed_.notify_all();
  }
}

void BlockStore::stop_writing(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!failed_) log_warning("{}: {}; no more computed blocks are kept there", printable(folder_, 4096), why);
  failed_ = true;
}

void BlockStore::write_file(const Job& job) {
  const std::string path = path_of(job.header.name, job.header.kind);
  const uint64_t n_bytes = BlockHeader::kBytes + job.bytes.size();
  if (access(path.c_str(), F_OK) == 0 || n_bytes > max_bytes_) return;
  make_room(n_bytes);
  BlockHeader header = job.header;
  header.n_bytes = job.bytes.size();
  header.checksum = block_checksum(job.bytes);
  const std::string temporary = format("{}/{}{:016x}-{}", folder_, kTemporary, temporary_id_, n_files_++);
  const File file(temporary, O_WRONLY | O_CREAT | O_EXCL);
  bool done = file.is_open();
  done = done && write_whole(file.get(), header_bytes(header)) && write_whole(file.get(), job.bytes);
  if (done) futimens(file.get(), times_of(job.use).data());
  done = done && rename(temporary.c_str(), path.c_str()) == 0;
  if (!done) {
    const int error = errno;
    if (file.is_open()) unlink(temporary.c_str());
    return stop_writing(std::string("cannot write: ") + strerror(error));
  }
  n_bytes_ += n_bytes;
  n_since_look_ += n_bytes;
  const std::lock_guard lock(mutex_);
  ++counts_.n_written;
  counts_.written_bytes += n_bytes;
}

// The store's files, without the lock. Files that nobody here would have made are left alone.
std::vector<BlockStore::Entry> BlockStore::entries() const {
  std::vector<Entry> found;
  for (std::string& path : files_in(folder_)) {
    const std::string_view name = name_of(path);
    const bool is_temporary = name.starts_with(kTemporary);
    struct stat info {};
    if (!is_temporary && !kind_of_file(name)) continue;
    if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    const int64_t used_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    found.push_back({std::move(path), static_cast<uint64_t>(info.st_size), used_ns, is_temporary});
  }
  return found;
}

// Removes the oldest blocks if n_bytes more would be too much. While another process does that, there is nothing to do.
void BlockStore::make_room(uint64_t n_bytes) {
  const bool is_full = n_bytes_ + n_bytes > max_bytes_;
  if (has_looked_ && !is_full && n_since_look_ <= max_bytes_ / 16) return;
  const File lock(folder_ + "/" + kLockName, O_RDWR | O_CREAT);
  const bool is_mine = lock.is_open() && flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
  std::vector<Entry> all = entries();
  has_looked_ = true;
  n_bytes_ = n_since_look_ = 0;
  for (const Entry& e : all) n_bytes_ += e.n_bytes;
  if (!is_mine) return;
  std::ranges::sort(all, {}, &Entry::used_ns);
  const bool is_too_much = n_bytes_ + n_bytes > max_bytes_;
  const uint64_t enough = max_bytes_ / 10 * 9;
  const int64_t now = now_ns();
  int64_t n_removed = 0;
  for (const Entry& e : all) {
    const bool is_stale = e.is_temporary && e.used_ns < now - kOldTemporary_ns;
    const bool is_surplus = !e.is_temporary && is_too_much && n_bytes_ > 0 && n_bytes_ + n_bytes > enough;
    if ((!is_stale && !is_surplus) || unlink(e.path.c_str()) != 0) continue;
    n_bytes_ -= e.n_bytes;
    n_removed += e.is_temporary ? 0 : 1;
  }
  const std::lock_guard guard(mutex_);
  counts_.n_removed += n_removed;
}

BlockStore::Counts BlockStore::counts() {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<StoredModel> BlockStore::contents() const {
  std::map<Sha256, StoredModel> models;
  for (const Entry& e : entries()) {
    const File file(e.path, O_RDONLY);
    std::array<std::byte, BlockHeader::kBytes> head;
    if (e.is_temporary || !file.is_open() || !read_whole(file.get(), head, 0)) continue;
    const std::optional<BlockHeader> header = read_header(head);
    if (!header) continue;
    StoredModel& m = models[header->root];
    m.root = header->root;
    m.model = header->model;
    (header->kind == BlockKind::rows ? m.n_blocks : m.n_states) += 1;
    m.n_bytes += e.n_bytes;
    m.used_s = std::max(m.used_s, e.used_ns / 1'000'000'000);
  }
  std::vector<StoredModel> list;
  for (auto& [root, model] : models) list.push_back(std::move(model));
  std::ranges::sort(list, std::greater<>(), &StoredModel::used_s);
  return list;
}

uint64_t BlockStore::remove(const std::vector<Sha256>& roots) {
  const File lock(folder_ + "/" + kLockName, O_RDWR | O_CREAT);
  if (lock.is_open()) (void)flock(lock.get(), LOCK_EX);
  uint64_t n_freed = 0;
  for (const Entry& e : entries()) {
    if (!roots.empty()) {
      const File file(e.path, O_RDONLY);
      std::array<std::byte, BlockHeader::kBytes> head;
      const bool is_read = !e.is_temporary && file.is_open() && read_whole(file.get(), head, 0);
      const std::optional<BlockHeader> header = is_read ? read_header(head) : std::nullopt;
      if (!header || std::ranges::find(roots, header->root) == roots.end()) continue;
    }
    if (unlink(e.path.c_str()) == 0) n_freed += e.n_bytes;
  }
  return n_freed;
}

}  // namespace tandem
