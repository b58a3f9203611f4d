// Caches of grouped types (gguf/kivi.h) on a GPU: rows are stored into open blocks, blocks are closed with the host's bytes,
// and attention reads both, against the scalar reference.
#include "cpu/cpu_device.h"
#include "gpu/attention_scene.h"
#include "graph/hadamard.h"

namespace tandem::gpu_test {
namespace {

constexpr DType kGrouped[] = {DType::KIVI4, DType::KIVI2};

class GpuGroupedCache : public GpuTest {
 protected:
  void check(const AttentionCase& c) {
    SCOPED_TRACE(c.text());
    OpCase op(random_, c.shape());
    const AttentionScene scene(random_, c);
    scene.give(op);
    op.builder.set_layer(0);
    op.finish(op.builder.attention(op.activation(c.n_head * c.head_dim_k, 2.0f), c.op(),
                                   c.sinks ? op.vector(random_.normals(c.n_head, 2.0f)) : nullptr));
    op.expect_match(*device_, {c.n_tokens(), 1}, kRounded);
  }

  // A layer's pools on a device.
  struct Layer {
    Layer(Device& d, const KvLayer& shape, CacheBytes b) : device(d), kv(shape), bytes(std::move(b)) {
      const auto put = [&](std::vector<std::byte>& from) -> DevicePtr {
        if (from.empty()) return nullptr;
        const DevicePtr to = device.alloc(from.size());
        device.copy_in(to, from.data(), from.size());
        return to;
      };
      kv.k = put(bytes.k);
      kv.v = put(bytes.v);
      kv.k_open = put(bytes.k_open);
      kv.v_open = put(bytes.v_open);
      device.wait(device.record());
    }
    ~Layer() {
      for (const DevicePtr pool : {kv.k, kv.v, kv.k_open, kv.v_open}) {
        if (pool) device.free(pool);
      }
    }
    Layer(const Layer&) = delete;
    CacheBytes read() {
      CacheBytes now = bytes;
      device.copy_out(now.k.data(), kv.k, now.k.size());
      device.copy_out(now.v.data(), kv.v, now.v.size());
      if (kv.k_open) device.copy_out(now.k_open.data(), kv.k_open, now.k_open.size());
      if (kv.v_open) device.copy_out(now.v_open.data(), kv.v_open, now.v_open.size());
      device.wait(device.record());
      return now;
    }
    Device& device;
    KvLayer kv;
    CacheBytes bytes;
  };

  std::vector<std::byte> half_floats(int64_t n) {
    std::vector<float> x = random_.normals(n, 3.0f);
    for (int64_t i = 0; i < n; i += 1 + random_.below(400)) x[static_cast<size_t>(i)] = 0.0f;
    for (int64_t i = 0; i < n; i += 1 + random_.below(900)) x[static_cast<size_t>(i)] *= 500.0f;
    std::vector<std::byte> bytes(row_bytes(DType::F16, n));
    quantize_row(DType::F16, x.data(), bytes.data(), n);
    return bytes;
  }

  void check_closing(DType k, DType v, int64_t n_head, int64_t hd_k, int64_t hd_v, int64_t n_closed,
                     int64_t n_key_sets = 1) {
    SCOPED_TRACE(std::string(dtype_name(k)) + "/" + std::string(dtype_name(v)) + " " +
                 std::to_string(n_head) + " heads of " + std::to_string(hd_k) + "/" + std::to_string(hd_v) +
                 ", closes " + std::to_string(n_closed));
    KvLayer layer{nullptr, nullptr, k, v, n_head, hd_k, hd_v, kKiviGroup, n_closed + 3};
    layer.n_open = n_closed + 2;
    layer.n_key_sets = n_key_sets;
    const int64_t n = layer.n_blocks * kKiviGroup * n_head, n_open = layer.n_open * kKiviGroup * n_head;
    CacheBytes bytes;
    bytes.k.assign(row_bytes(k, n * hd_k * n_key_sets), std::byte{0x25});
    bytes.v.assign(row_bytes(v, n * hd_v), std::byte{0x25});
    if (is_kivi(k)) bytes.k_open = half_floats(n_open * hd_k * n_key_sets);
    if (is_kivi(v)) bytes.v_open = half_floats(n_open * hd_v);
    const auto some = [&](int64_t of) {
      std::vector<int32_t> all;
      for (int32_t i = 0; i < of; ++i) all.push_back(i);
      random_.shuffle(all);
      return all;
    };
    const std::vector<int32_t> blocks = some(layer.n_blocks), places = some(layer.n_open);
    std::vector<OpenBlock> closed;
    for (size_t i = 0; i < static_cast<size_t>(n_closed); ++i) closed.push_back({blocks[i], places[i]});
    const auto host = cpu::make_cpu_device({1, 1});
    Layer got(*device_, layer, bytes), wanted(*host, layer, bytes);
    device_->close_groups(got.kv, closed);
    host->close_groups(wanted.kv, closed);
    const CacheBytes a = got.read(), b = wanted.read();
    EXPECT_TRUE(a.k == b.k);
    EXPECT_TRUE(a.v == b.v);
    EXPECT_TRUE(a.k_open == bytes.k_open);
    EXPECT_TRUE(a.v_open == bytes.v_open);
    EXPECT_FALSE(b == bytes);
  }
};

TEST_F(GpuGroupedCache, ClosedBlocksHaveTheHostsBytes) {
  struct Heads {
    int64_t n, k, v;
  };
  for (const Heads& h :
       {Heads{1, 32, 32}, {2, 64, 64}, {8, 128, 128}, {3, 96, 32}, {1, 256, 288}, {2, 512, 64}}) {
    for (const DType dtype : kGrouped) check_closing(dtype, dtype, h.n, h.k, h.v, 1 + random_.below(4));
  }
  check_closing(DType::KIVI4, DType::F16, 2, 64, 64, 2);
  check_closing(DType::Q8_0, DType::KIVI2, 2, 64, 64, 2);
  check_closing(DType::KIVI2, DType::KIVI4, 2, 64, 96, 2);
  check_closing(DType::KIVI2, DType::KIVI2, 1, 32, 32, 70);  // more than a launch takes
  check_closing(DType::KIVI4, DType::KIVI4, 3, 64, 96, 3, 2);
  check_closing(DType::KIVI2, DType::F16, 2, 64, 64, 2, 2);
}

// Every byte: new rows are in their open blocks, and nothing else has changed.
TEST_F(GpuGroupedCache, NewRowsGoToOpenBlocks) {
  for (const DType k : {DType::KIVI4, DType::KIVI2, DType::Q8_0}) {
    for (const DType v : {DType::KIVI4, DType::F16}) {
      if (!is_kivi(k) && !is_kivi(v)) continue;
      for (const int64_t n : {1, 5, 40}) {
        const int64_t n_head = 1 + random_.below(4), hd_k = 64, hd_v = 96;
        const bool rotates = random_.below(2) == 0;
        SCOPED_TRACE(std::string(dtype_name(k)) + "/" + std::string(dtype_name(v)) + " " + std::to_string(n) +
                     " tokens" + (rotates ? ", after rope" : ""));
        KvLayer layer{nullptr, nullptr, k, v, n_head, hd_k, hd_v, kKiviGroup, 9};
        layer.n_open = 4;
        const std::vector<int32_t> open_of{-1, 2, -1, 0, -1, -1, 3, 1, -1};
        layer.open_of = open_of.data();
        std::vector<int32_t> slots;
        for (const int32_t block : {1, 3, 6, 7}) {
          for (int32_t i = 0; i < 32; ++i) slots.push_back(32 * block + i);
        }
        random_.shuffle(slots);
        slots.resize(static_cast<size_t>(n));
        const int64_t rows = 9 * 32 * n_head, open_rows = 4 * 32 * n_head;
        CacheBytes bytes;
        bytes.k.assign(row_bytes(k, rows * hd_k), std::byte{0x25});
        bytes.v.assign(row_bytes(v, rows * hd_v), std::byte{0x25});
        if (is_kivi(k)) bytes.k_open.assign(row_bytes(DType::F16, open_rows * hd_k), std::byte{0x25});
        if (is_kivi(v)) bytes.v_open.assign(row_bytes(DType::F16, open_rows * hd_v), std::byte{0x25});
        ShapeClass shape;
        shape.max_tokens = n;
        OpCase c(random_, shape);
        c.set_cache(layer, bytes);
        c.set_input(Input::slots, slots);
        c.set_input(Input::positions, std::vector<int32_t>(static_cast<size_t>(n), 0));  // turns by 0
        c.builder.set_layer(0);
        TensorId q = c.activation(2 * n_head * hd_k), keys = c.activation(n_head * hd_k);
        const TensorId values = c.activation(n_head * hd_v);
        if (rotates) {
          q = c.builder.rope(q, {RopeStyle::pair, 2 * n_head, hd_k, hd_k});
          keys = c.builder.rope(keys, {RopeStyle::pair, n_head, hd_k, hd_k});
        }
        c.builder.kv_write(keys, values);
        c.finish(q);
        ASSERT_EQ(c.why_unsupported(*device_), "");
        const CacheBytes got = c.run(*device_, {n, 1}).front().cache, wanted = c.reference({n, 1}).cache;
        EXPECT_TRUE(got == wanted);
        EXPECT_FALSE(got == bytes);
      }
    }
  }
}

TEST_F(GpuGroupedCache, AttentionOfOneQuery) {
  for (const DType dtype : kGrouped) {
    for (const int64_t length : some_of<int64_t>({1, 31, 33, 2, 257, 32, 1000, 100, 4099}, 2)) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.lengths = {length};
      check(c);
    }
  }
}

TEST_F(GpuGroupedCache, AttentionOfManyQueries) {
  for (const DType dtype : kGrouped) {
    using Size = std::pair<int64_t, int64_t>;
    for (const auto& [length, n] :
         some_of<Size>({{5, 5}, {2, 2}, {300, 65}, {64, 64}, {70, 3}, {130, 130}, {513, 17}}, 2)) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.lengths = {length};
      c.n_queries = {n};
      check(c);
    }
  }
}

TEST_F(GpuGroupedCache, KeysAndValuesOfOtherTypes) {
  for (const DType grouped : kGrouped) {
    for (const DType other :
         {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::IQ4_NL, DType::KIVI2}) {
      for (const int64_t n : {1, 33}) {
        AttentionCase c;
        c.k_dtype = grouped;
        c.v_dtype = other;
        c.lengths = {150 + random_.below(64)};
        c.n_queries = {n};
        check(c);
        std::swap(c.k_dtype, c.v_dtype);
        check(c);
      }
    }
  }
}

TEST_F(GpuGroupedCache, HeadsOfManyShapes) {
  for (const AttentionCase& heads : {AttentionCase{1, 1, 32, 32},
                                     {8, 8, 64, 64},
                                     {32, 8, 128, 128},
                                     {28, 4, 128, 128},
                                     {24, 3, 96, 96},
                                     {8, 4, 256, 256},
                                     {4, 2, 192, 128},
                                     {2, 1, 288, 512},
                                     {16, 2, 64, 160}}) {
    for (const int64_t n : {1, 4, 50}) {
      AttentionCase c = heads;
      c.k_dtype = c.v_dtype = kGrouped[random_.below(2)];
      c.lengths = {177};
      c.n_queries = {n};
      check(c);
    }
  }
}

// Several sequences, windows, capped scores and sinks.
TEST_F(GpuGroupedCache, SequencesWindowsAndCaps) {
  for (const DType dtype : kGrouped) {
    for (const int64_t n : {1, 20}) {
      AttentionCase c;
      c.k_dtype = c.v_dtype = dtype;
      c.n_head = 8;
      c.lengths = {200, 70, 33, 331};
      c.n_queries = {n, 1, 2, n};
      check(c);
      c.window = 50;
      check(c);
      c.softcap = 3.0f;
      c.sinks = true;
      check(c);
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_test
