#include "sandbox/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tandem::sandbox {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

struct Header {
  uint64_t n_bytes;
  int64_t number;
  uint32_t kind;
  uint32_t has_fd;
};

bool send_all(int fd, const char* bytes, size_t n) {
  while (n > 0) {
    const ssize_t done = ::send(fd, bytes, n, MSG_NOSIGNAL);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes += done;
    n -= static_cast<size_t>(done);
  }
  return true;
}

bool receive_all(int fd, char* bytes, size_t n) {
  while (n > 0) {
    const ssize_t done = recv(fd, bytes, n, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes += done;
    n -= static_cast<size_t>(done);
  }
  return true;
}

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr alignment;
};

}  // namespace

Channel::~Channel() {
  if (fd_ >= 0) close(fd_);
}

std::optional<std::pair<Channel, Channel>> Channel::make_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return std::nullopt;
  return std::pair(Channel(ends[0]), Channel(ends[1]));
}

bool Channel::send(const Message& message) {
  Header header{message.text.size(), message.number, message.kind, message.fd >= 0 ? 1u : 0u};
  iovec part{&header, sizeof header};
  msghdr envelope{};
  envelope.msg_iov = &part;
  envelope.msg_iovlen = 1;
  Control control{};
  if (message.fd >= 0) {
    envelope.msg_control = control.bytes;
    envelope.msg_controllen = sizeof control.bytes;
    cmsghdr* rights = CMSG_FIRSTHDR(&envelope);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &message.fd, sizeof(int));
  }
  ssize_t done;
  do done = sendmsg(fd_, &envelope, MSG_NOSIGNAL);
  while (done < 0 && errno == EINTR);
  if (done <= 0) return false;
  const auto n_sent = static_cast<size_t>(done);
  return send_all(fd_, reinterpret_cast<const char*>(&header) + n_sent, sizeof header - n_sent) &&
         send_all(fd_, message.text.data(), message.text.size());
}

bool Channel::receive(Message& message) {
  Header header{};
  iovec part{&header, sizeof header};
  msghdr envelope{};
  envelope.msg_iov = &part;
  envelope.msg_iovlen = 1;
  Control control{};
  envelope.msg_control = control.bytes;
  envelope.msg_controllen = sizeof control.bytes;
  ssize_t done;
  do done = recvmsg(fd_, &envelope, MSG_CMSG_CLOEXEC);
  while (done < 0 && errno == EINTR);
  if (done <= 0) return false;
  message.fd = -1;
  const cmsghdr* rights = CMSG_FIRSTHDR(&envelope);
  if (rights != nullptr && rights->cmsg_type == SCM_RIGHTS)
    memcpy(&message.fd, CMSG_DATA(rights), sizeof(int));
  const auto n_received = static_cast<size_t>(done);
  if (!receive_all(fd_, reinterpret_cast<char*>(&header) + n_received, sizeof header - n_received))
    return false;
  if (header.n_bytes > kMaxTextBytes) return false;
  message.kind = header.kind;
  message.number = header.number;
  message.text.resize(header.n_bytes);
  return receive_all(fd_, message.text.data(), message.text.size());
}

}  // namespace tandem::sandbox
