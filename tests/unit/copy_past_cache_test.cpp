// Copies past the caches against the bytes that they copy: sizes around whole lines, and places that lie on no boundary.
#include "base/copy_past_cache.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tandem {
namespace {

TEST(CopyPastCache, CopiesTheBytesAndNoOthers) {
  std::mt19937 random(std::random_device{}());
  for (const size_t n_bytes : {0, 1, 15, 16, 63, 64, 65, 127, 128, 1000, 4096, 100001}) {
    for (const size_t to_at : {0, 1, 16, 40}) {
      for (const size_t from_at : {0, 3, 16}) {
        SCOPED_TRACE(testing::Message() << n_bytes << " bytes from " << from_at << " to " << to_at);
        std::vector<std::byte> from(from_at + n_bytes), to(to_at + n_bytes + 64);
        for (std::byte& b : from) b = static_cast<std::byte>(random());
        for (std::byte& b : to) b = static_cast<std::byte>(random());
        std::vector<std::byte> expected = to;
        for (size_t i = 0; i < n_bytes; ++i) expected[to_at + i] = from[from_at + i];
        copy_past_cache(to.data() + to_at, from.data() + from_at, n_bytes);
        ASSERT_EQ(to, expected);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
