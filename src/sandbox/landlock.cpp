#include "sandbox/landlock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace tandem::sandbox {
namespace {

// The kernel's interface, written here because headers are often older than the kernel. The numbers of the system calls
// are the same on all architectures.
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr uint32_t kCreateRulesetVersion = 1;
constexpr int kRulePathBeneath = 1;

constexpr uint64_t kWriteFile = 1u << 1, kReadFile = 1u << 2, kReadDir = 1u << 3;
constexpr uint64_t kRemoveFile = 1u << 5, kMakeReg = 1u << 8;
constexpr uint64_t kTruncate = 1u << 14, kIoctlDevice = 1u << 15;

constexpr uint64_t kBindTcp = 1u << 0, kConnectTcp = 1u << 1;
constexpr uint64_t kScopeAbstractSockets = 1u << 0, kScopeSignals = 1u << 1;

struct RulesetAttr {
  uint64_t files, tcp, scoped;
};
struct [[gnu::packed]] PathBeneathAttr {
  uint64_t allowed;
  int32_t parent;
};

// All rights of files that this version knows.
uint64_t file_rights(int abi) {
  if (abi >= 5) return (1u << 16) - 1;
  if (abi >= 3) return (1u << 15) - 1;
  if (abi >= 2) return (1u << 14) - 1;
  return (1u << 13) - 1;
}

size_t attr_bytes(int abi) {
  return abi >= 6 ? 24 : abi >= 4 ? 16 : 8;
}

uint64_t rights_of(Access access, bool folder) {
  constexpr uint64_t kRead = kReadFile | kReadDir;
  constexpr uint64_t kWrite = kRead | kWriteFile | kTruncate | kMakeReg | kRemoveFile;
  constexpr uint64_t kDevice = kRead | kWriteFile | kIoctlDevice;
  const uint64_t rights = access == Access::read ? kRead : access == Access::write ? kWrite : kDevice;
  return folder ? rights : rights & ~(kReadDir | kMakeReg | kRemoveFile);
}

void add_rule(int ruleset, int abi, const PathRule& rule) {
  // Stays open: the rule is for this inode, and some filesystems (procfs, 9p) make another one for the same name when the
  // name has left the kernel's cache.
  const int path = open(rule.path.c_str(), O_PATH | O_CLOEXEC);
  struct stat info {};
  if (path < 0 || fstat(path, &info) != 0) return;
  const PathBeneathAttr attr{rights_of(rule.access, S_ISDIR(info.st_mode)) & file_rights(abi), path};
  // Fails for pipes and the like, which Landlock does not limit.
  if (syscall(kAddRule, ruleset, kRulePathBeneath, &attr, 0) != 0) close(path);
}

}  // namespace

int landlock_abi() {
  const long abi = syscall(kCreateRuleset, nullptr, size_t{0}, kCreateRulesetVersion);
  return abi > 0 ? static_cast<int>(abi) : 0;
}

int restrict_files(int abi, std::span<const PathRule> rules, Network network) {
  const bool closed = network == Network::closed;
  const RulesetAttr attr{file_rights(abi), abi >= 4 && closed ? kBindTcp | kConnectTcp : 0,
                         abi >= 6 ? kScopeSignals | (closed ? kScopeAbstractSockets : 0) : 0};
  const auto ruleset = static_cast<int>(syscall(kCreateRuleset, &attr, attr_bytes(abi), 0));
  if (ruleset < 0) return errno;
  for (const PathRule& rule : rules) add_rule(ruleset, abi, rule);
  const int error = syscall(kRestrictSelf, ruleset, 0) == 0 ? 0 : errno;
  close(ruleset);
  return error;
}

}  // namespace tandem::sandbox
