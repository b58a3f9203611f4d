#include "support/rank_checks.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace tandem::test {
namespace {

constexpr size_t kSizes[] = {0, 1, 2, 3, 7, 64, 1000, 4099, 300'001};

std::vector<std::byte> pattern(size_t n, int seed) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + static_cast<size_t>(seed) * 17 + 5) & 255);
  return bytes;
}

class Checks {
 public:
  explicit Checks(Ranks& ranks) : ranks_(ranks), rank_(ranks.rank()), n_(ranks.size()) {}

  std::string run() {
    rings();
    order();
    everyone_to_one();
    to_itself();
    lengths();
    for (const size_t n : kSizes) {
      all_reduce(n);
      all_gather(n);
      uneven_all_gather(n);
      for (int root = 0; root < n_; ++root) broadcast(root, n);
    }
    ranks_.barrier();
    expect(!ranks_.try_receive(kAnyRank, 3), "no message is left");
    return problem_;
  }

 private:
  void expect(bool holds, const std::string& what) {
    if (!holds && problem_.empty()) problem_ = format("rank {} of {}: {}", rank_, n_, what);
  }

  // To the next rank and from the one before, all at once.
  void rings() {
    for (const size_t n : kSizes) {
      ranks_.send((rank_ + 1) % n_, 3, pattern(n, rank_));
      const int before = (rank_ + n_ - 1) % n_;
      std::vector<std::byte> got(n);
      ranks_.receive_into(before, 3, got);
      expect(got == pattern(n, before), format("a ring of {} bytes", n));
    }
  }

  // Large ones do not arrive after small ones; another tag may be received first.
  void order() {
    const int next = (rank_ + 1) % n_, before = (rank_ + n_ - 1) % n_;
    for (int i = 0; i < 20; ++i) ranks_.send(next, i % 2, pattern(i % 3 == 0 ? 200'000 : 5, i));
    for (const int odd : {1, 0}) {
      for (int i = odd; i < 20; i += 2) {
        const RankMessage m = ranks_.receive(before, odd);
        expect(m.from == before && m.tag == odd && m.bytes == pattern(i % 3 == 0 ? 200'000 : 5, i),
               format("message {}", i));
      }
    }
  }

  void everyone_to_one() {
    for (int i = 0; i < 10; ++i) ranks_.send(n_ - 1, 7, pattern(8, rank_ * 10 + i));
    if (rank_ != n_ - 1) return;
    std::vector<int> n_got(static_cast<size_t>(n_));
    for (int i = 0; i < 10 * n_; ++i) {
      const RankMessage m = i % 2 == 0 ? ranks_.receive(kAnyRank, 7) : wait_for(7);
      const int number = n_got[static_cast<size_t>(m.from)]++;
      expect(m.bytes == pattern(8, m.from * 10 + number), format("message {} of rank {}", number, m.from));
    }
    expect(std::ranges::all_of(n_got, [](int n) { return n == 10; }), "ten messages of each rank");
  }
  RankMessage wait_for(int tag) {
    for (;;) {
      if (auto m = ranks_.try_receive(kAnyRank, tag, std::chrono::milliseconds(5))) return std::move(*m);
    }
  }

  void to_itself() {
    ranks_.send(rank_, 2, bytes_of("mine"));
    expect(text_of(ranks_.receive(rank_, 2)) == "mine", "a message to itself");
  }

  void lengths() {
    ranks_.send(rank_, 2, pattern(5, 1));
    std::vector<std::byte> room(4);
    try {
      ranks_.receive_into(rank_, 2, room);
      expect(false, "a message of another length is an error");
    } catch (const Error& e) {
      expect(std::string(e.what()).find("5 bytes") != std::string::npos, e.what());
    }
  }

  // Whole numbers, whose sums are exact in any order.
  void all_reduce(size_t n) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i)
      values[i] = static_cast<float>(i % 100) + 1000.0f * static_cast<float>(rank_);
    ranks_.all_reduce(values);
    const float ranks = static_cast<float>(n_ * (n_ - 1) / 2) * 1000.0f;
    for (size_t i = 0; i < n; ++i) {
      if (values[i] == static_cast<float>(i % 100) * static_cast<float>(n_) + ranks) continue;
      return expect(false, format("all-reduce of {}: value {} is {}", n, i, values[i]));
    }
  }

  void gather(std::span<const size_t> n_bytes, const std::string& what) {
    std::vector<std::byte> expected;
    for (int i = 0; i < n_; ++i) {
      const auto share = pattern(n_bytes[static_cast<size_t>(i)], i);
      expected.insert(expected.end(), share.begin(), share.end());
    }
    std::vector<std::byte> all(expected.size());
    ranks_.all_gather(pattern(n_bytes[static_cast<size_t>(rank_)], rank_), n_bytes, all);
    expect(all == expected, what);
  }
  void all_gather(size_t n) {
    gather(std::vector<size_t>(static_cast<size_t>(n_), n), format("all-gather of {} bytes each", n));
  }
  // Of every third rank nothing.
  void uneven_all_gather(size_t n) {
    std::vector<size_t> n_bytes;
    for (size_t i = 0; i < static_cast<size_t>(n_); ++i) n_bytes.push_back(i % 3 == 1 ? 0 : n + i * 13);
    gather(n_bytes, format("uneven all-gather from {} bytes on", n));
  }

  void broadcast(int root, size_t n) {
    std::vector<std::byte> bytes = pattern(n, rank_ == root ? 99 : rank_);
    ranks_.broadcast(root, bytes);
    expect(bytes == pattern(n, 99), format("broadcast of {} bytes from rank {}", n, root));
  }

  Ranks& ranks_;
  int rank_, n_;
  std::string problem_;
};

}  // namespace

std::string check_ranks(Ranks& ranks) {
  return Checks(ranks).run();
}

}  // namespace tandem::test
