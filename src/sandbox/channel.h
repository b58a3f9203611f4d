// A channel between two processes: messages in order, each with a descriptor if need be. A stream socket below, so that
// a message may have any size.
//
// Owns its end of the socket. Calls that a signal interrupts continue. send() and receive() return false when the other
// end has gone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace tandem::sandbox {

struct Message {
  uint32_t kind = 0;
  int64_t number = 0;
  std::string text;
  int fd = -1;  // of the receiver, who closes it; send() leaves it open
};

class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  ~Channel();
  Channel(Channel&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Channel& operator=(Channel&&) = delete;

  // Both ends; nullopt if the system refuses.
  static std::optional<std::pair<Channel, Channel>> make_pair();

  bool send(const Message& message);
  bool receive(Message& message);
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace tandem::sandbox
