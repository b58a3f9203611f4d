// Reading files past the page cache: every method gives the file's bytes, errors name the file and the
// offset, and on a system without a feature the fallback works and is reported.
#include "base/disk_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <random>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "support/gguf_bytes.h"
#include "support/text_files.h"

namespace tandem {
namespace {

using test::file_bytes;
using testing::HasSubstr;

// An inaccessible mapping of a file, to check that the reader does not use it.
class Mapping {
 public:
  explicit Mapping(const std::string& path, size_t n_bytes) : path_(path), n_bytes_(n_bytes) {
    address_ = static_cast<std::byte*>(
        mmap(nullptr, align_up(n_bytes, 4096), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Mapping() { munmap(address_, align_up(n_bytes_, 4096)); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  DiskFile file() const { return {path_, {address_, n_bytes_}}; }
  const std::byte* at(size_t offset) const { return address_ + offset; }

 private:
  std::string path_;
  size_t n_bytes_;
  std::byte* address_;
};

struct FreePages {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{4096}); }
};
using Pages = std::unique_ptr<std::byte[], FreePages>;
Pages pages(size_t n_bytes) {
  Pages p(static_cast<std::byte*>(::operator new[](align_up(n_bytes, 4096), std::align_val_t{4096})));
  std::fill_n(p.get(), align_up(n_bytes, 4096), std::byte{0xee});
  return p;
}

std::string random_bytes(size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

class Reader : public testing::TestWithParam<DiskOptions> {
 protected:
  std::unique_ptr<DiskReader> open(const std::vector<DiskFile>& files) {
    return open_disk_reader(files, GetParam());
  }
  std::string error_of(DiskReader& reader, DiskReader::Ticket ticket) {
    try {
      reader.wait(ticket);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      return e.what();
    }
    return "no error";
  }
  test::TempDir directory_;
};

TEST_P(Reader, GivesTheBytesOfTheFile) {
  const std::string path = directory_.path("file");
  const std::string bytes = random_bytes((5 << 20) + 777, 1);
  test::write_file(path, bytes);
  const Mapping mapping(path, bytes.size());
  const auto reader = open({mapping.file()});
  std::mt19937 random(2);
  for (int i = 0; i < 40; ++i) {
    const size_t begin = random() % (bytes.size() / 4096) * 4096;
    const size_t n = i == 0 ? bytes.size() : 1 + random() % (bytes.size() - begin);
    const size_t from = i == 0 ? 0 : begin;
    const Pages to = pages(n);
    const DiskRead read{mapping.at(from), align_up(n, 4096), to.get()};
    reader->wait(reader->start({&read, 1}));
    EXPECT_EQ(memcmp(to.get(), bytes.data() + from, n), 0) << from << " " << n;
  }
}

TEST_P(Reader, ManyReadsAtATime) {
  const std::string path = directory_.path("file");
  const std::string bytes = random_bytes(6 << 20, 3);
  test::write_file(path, bytes);
  const Mapping mapping(path, bytes.size());
  auto reader = open({mapping.file()});
  std::vector<Pages> to;
  std::vector<DiskReader::Ticket> tickets;
  for (size_t i = 0; i < 150; ++i) {
    to.push_back(pages(3 * 4096));
    std::vector<DiskRead> reads;
    for (size_t k : {0, 2, 1}) {
      reads.push_back({mapping.at((i * 7 + k * 11) * 4096), 4096, to.back().get() + k * 4096});
    }
    tickets.push_back(reader->start(reads));
  }
  for (size_t i = tickets.size(); i > 0; --i) {
    reader->wait(tickets[i - 1]);
    for (size_t k : {0, 1, 2}) {
      EXPECT_EQ(memcmp(to[i - 1].get() + k * 4096, bytes.data() + ((i - 1) * 7 + k * 11) * 4096, 4096), 0);
    }
  }
  // Reads without a wait end with the reader.
  const Pages big = pages(bytes.size());
  const DiskRead all{mapping.at(0), bytes.size(), big.get()};
  reader->start({&all, 1});
  reader.reset();
}

TEST_P(Reader, AReadMayCrossIntoTheNextFile) {
  std::vector<std::string> contents{random_bytes(3 * 4096 + 100, 4), random_bytes(2 * 4096 + 5, 5)};
  std::byte* both =
      static_cast<std::byte*>(mmap(nullptr, 8 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::vector<DiskFile> files;
  for (size_t i = 0; i < 2; ++i) {
    const std::string path = directory_.path("part" + std::to_string(i));
    test::write_file(path, contents[i]);
    files.push_back({path, {both + i * 4 * 4096, contents[i].size()}});
  }
  const auto reader = open(files);
  const Pages to = pages(6 * 4096);
  const DiskRead read{both + 4096, 6 * 4096, to.get()};
  reader->wait(reader->start({&read, 1}));
  EXPECT_EQ(memcmp(to.get(), contents[0].data() + 4096, contents[0].size() - 4096), 0);
  EXPECT_EQ(memcmp(to.get() + 3 * 4096, contents[1].data(), contents[1].size()), 0);
  munmap(both, 8 * 4096);
}

TEST_P(Reader, ATruncatedFileIsAnErrorWithItsOffset) {
  const std::string path = directory_.path("file");
  test::write_file(path, random_bytes(3 << 20, 6));
  const Mapping mapping(path, 3 << 20);
  const auto reader = open({mapping.file()});
  for (size_t n_left : {size_t{2} << 20, (size_t{1} << 20) + 4096, size_t{777}, size_t{0}}) {
    std::filesystem::resize_file(path, n_left);
    const Pages to = pages(3 << 20);
    const DiskRead read{mapping.at(0), 3 << 20, to.get()};
    const std::string message = error_of(*reader, reader->start({&read, 1}));
    EXPECT_THAT(message, AllOf(HasSubstr(path), HasSubstr("truncated")));
    // The first chunk that fails is reported; which one depends on the order of completion.
    const size_t at = message.find("at offset ");
    ASSERT_NE(at, std::string::npos);
    EXPECT_GE(std::stoull(message.substr(at + 10)), n_left / 4096 * 4096) << message;
  }
  test::write_file(path, random_bytes(3 << 20, 6));  // a restored file is readable again
  const Pages to = pages(4096);
  const DiskRead read{mapping.at(4096), 4096, to.get()};
  EXPECT_EQ(error_of(*reader, reader->start({&read, 1})), "no error");
}

TEST_P(Reader, AMissingFileIsAnError) {
  const Mapping mapping(directory_.path("nothing"), 4096);
  EXPECT_THROW(open({mapping.file()}), Error);
}

INSTANTIATE_TEST_SUITE_P(All, Reader,
                         testing::Values(DiskOptions{}, DiskOptions{.direct = false},
                                         DiskOptions{.uring = false},
                                         DiskOptions{.direct = false, .uring = false}),
                         [](const auto& p) {
                           return std::string(p.param.direct ? "direct" : "buffered") +
                                  (p.param.uring ? "_uring" : "_threads");
                         });

// Returns the messages on stderr when opening the file; checks that it can be read anyway.
std::string said(const DiskFile& file, const std::string& content) {
  const LogLevel level = log_level();
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  const auto reader = open_disk_reader({file});
  const std::string text = testing::internal::GetCapturedStderr();
  set_log_level(level);
  const Pages to = pages(content.size());
  const DiskRead read{file.mapped.data(), align_up(content.size(), 4096), to.get()};
  reader->wait(reader->start({&read, 1}));
  EXPECT_EQ(memcmp(to.get(), content.data(), content.size()), 0);
  return text;
}

TEST(DiskFallback, AFilesystemWithoutDirectReads) {
  const std::string path = "/proc/filesystems";  // opening it for direct reads fails
  const std::string content = file_bytes(path);
  if (content.empty()) GTEST_SKIP() << "there is no " << path;
  const Mapping mapping(path, content.size());
  const std::string text = said(mapping.file(), content);
  EXPECT_THAT(text, AllOf(HasSubstr(path), HasSubstr("page cache"), HasSubstr("O_DIRECT")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(DiskFallback, AFilesystemInMemory) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "there is no /dev/shm";
  char path[] = "/dev/shm/tandem-disk-XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  close(fd);
  const std::string content = random_bytes(123456, 7);
  test::write_file(path, content);
  const Mapping mapping(path, content.size());
  said(mapping.file(), content);  // with or without direct reads, depending on the kernel
  unlink(path);
}

// In a separate process, because it cannot be undone.
void forbid_io_uring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    fprintf(stderr, "io_uring is not available: neither is seccomp\n");
    _exit(0);
  }
}

TEST(DiskFallback, ASystemWithoutIoUring) {
  test::TempDir directory;
  const std::string path = directory.path("file");
  const std::string content = random_bytes(3 << 20, 8);
  test::write_file(path, content);
  const Mapping mapping(path, content.size());
  const auto read_all = [&] {
    forbid_io_uring();
    set_log_level(LogLevel::info);
    const auto reader = open_disk_reader({mapping.file()});
    const Pages to = pages(content.size());
    const DiskRead read{mapping.at(0), align_up(content.size(), 4096), to.get()};
    reader->wait(reader->start({&read, 1}));
    _exit(memcmp(to.get(), content.data(), content.size()) == 0 ? 0 : 1);
  };
  EXPECT_EXIT(read_all(), testing::ExitedWithCode(0), "io_uring is not available");
}

}  // namespace
}  // namespace tandem
