// First inputs of the targets that run a tiny model, read options or compute: saved sessions, requests and answers, configuration
// files, options, recipes, kept blocks of a cache, blocks of weights.
#include <iterator>
#include <random>

#include "fuzz/seeds.h"
#include "fuzz/session_input.h"
#include "kv/block_file.h"
#include "support/dtypes.h"
#include "support/linear_problem.h"

namespace tandem::fuzz {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class Text>
std::string selected(int which, const Text& rest) {
  return static_cast<char>(which) + std::string(rest);
}

}  // namespace

void seed_session(SeedFolder& folder) {
  const test::TempDir directory;
  const std::string path = directory.path("saved");
  TinySession tiny;
  save_session(tiny.session(), path);
  folder.add(selected(1, contents(path)));
  Conversation conversation = tiny.conversation();
  conversation.set_system("S");
  conversation.ask("a b", {});
  for (const Saved what : {Saved::all, Saved::transcript}) {
    conversation.save(path, what);
    for (const int which : {0, 1}) folder.add(selected(which, contents(path)));
  }
  const GgufFile file(path);
  folder.add(selected(2, file.metadata().get<std::string>("session.transcript")));
  folder.add(selected(
      2, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"c"}],
"n_left_out":2,"n_answers":1,"prompt":"","prompt_user":[],"prompt_ids":[],"prompt_cuts":[],"answer":"","answer_ids":[]})"));
}

void seed_kv_block(SeedFolder& folder) {
  for (const BlockKind kind : {BlockKind::rows, BlockKind::state}) {
    BlockHeader header;
    header.kind = kind;
    header.name = sha256("block");
    header.root = sha256("root");
    header.n_tokens = 32;
    header.model = "llama 2 layers, keys F16, values F16";
    const std::string bytes = "keys and values";
    header.n_bytes = bytes.size();
    header.checksum = block_checksum(std::as_bytes(std::span(bytes)));
    const auto head = header_bytes(header);
    const std::string file = std::string(reinterpret_cast<const char*>(head.data()), head.size()) + bytes;
    for (int mended = 0; mended < 8; ++mended)
      folder.add(selected(mended + (kind == BlockKind::state ? 8 : 0), file));
  }
}

void seed_batch(SeedFolder& folder) {
  folder.add(selected(0,
                      "{\"prompt\": \"a b\"}\n\n{\"id\": 7, \"prompt\": \"c\", \"temperature\": 0.5, "
                      "\"top_k\": 3, \"seed\": 1}\n"));
  folder.add(selected(
      0,
      R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}], "max_tokens": 2}
{"prompt": "x", "stop": ["a", "b"], "logprobs": 3, "min_p": 0.1, "top_p": 0.9, "typical_p": 0.9, "repeat_penalty": 1.1}
)"));
  folder.add(selected(0, R"({"id": "g", "prompt": "x", "grammar": "root ::= [ab]+"}
{"id": null, "prompt": "x", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
{"prompt": "x", "unknown": [1], "presence_penalty": 0.5, "frequency_penalty": -0.5})"));
  folder.add(selected(1, R"({"index":1,"text":"a","stop":"eos","n_prompt":2,"n_generated":1}
{"index":2,"id":"a","error":"the prompt is empty"}
{"index":3,"id":7,"text":"cut)"));
}

void seed_config(SeedFolder& folder) {
  folder.add(
      "# general\nthreads = 8\n[chat]\ntemp=0.5   # warm\r\ntop_k = 7\n[model *qwen3*]\nctx-size = 4096\n");
  folder.add(
      "\xef\xbb\xbfno-mmap = yes\n--prompt = \" two # words ; \"\n; x\n[run]\ngrammar = root ::= "
      "\"a\"\nlogit-bias = 15+1\n");
  folder.add(
      "[model ~/m.gguf]\noverride-tensor = blk\\.1\\.=CPU\noverride-kv = a=int:1,b=str:x\nmax-vram = "
      "8GiB\nsampler-seq = kp\n");
  folder.add(
      "[run] # comment\nreverse-prompt = 'a'\nreverse-prompt = \"b\"\nfit = off\njson-schema = "
      "{}\ncache-type-k = q8_0\nlog-file = x\n");
}

void seed_options(SeedFolder& folder) {
  for (const char* overrides :
       {"blk\\.1\\..*=CPU", "ffn_(up|down)=CPU,^output\\.=CPU", "(?!.*attn)=GPU0", "=CPU,a="}) {
    folder.add(selected(0, overrides));
  }
  for (const char* rule : {"blk\\.[0-9]+\\.attn_.*=q6_k", "a=b = Q4_0", "(?i)OUTPUT$=f16"}) {
    folder.add(selected(1, rule));
  }
  folder.add(selected(2, "-ub\n512\n-ctk=q8_0\n-ngl\n99\n--temp\n0.5\n-ot\na=CPU\n--tensor-split\n3,1\n"));
  folder.add(selected(
      2,
      "--max-vram\n8GiB\n--gpu-rows=40%\n--logit-bias\n15043-0.5\n--override-kv\na=int:1,b=str:x\\,y\n-e"));
  folder.add(selected(2,
                      "--samplers\ntop_k;temperature\n--seed\n1\n--rope-scaling\nyarn\n-fa\n--kv-offload="
                      "prefetch\n--help\n"));
  folder.add(selected(2, "--grammar\nroot ::= \"a\"\n-j\n{}\n--numa\ndistribute\n-p\nhello\n--\nx"));
}

void seed_recipe(SeedFolder& folder) {
  folder.add("# a comment\nblk\\.[0-9]+\\.attn_.*=q6_k\n\n  a=b = Q4_0 \r\n(?i)OUTPUT$=f16\n");
  folder.add("\\.ffn_(up|gate)\\.=IQ4_XS");
  test::RawGguf file;
  file.pairs = {test::kv_string("general.architecture", "llama")};
  file.tensors = {test::tensor_info("blk.0.attn_q.weight", {32, 2}, static_cast<uint32_t>(DType::Q8_0), 0),
                  test::tensor_info("output_norm.weight", {4}, static_cast<uint32_t>(DType::F32), 96)};
  file.data.resize(112);
  folder.add(file.bytes());
}

// As KernelsCheck reads them: of every dtype a product and the block that it starts with; rows; attention.
void seed_kernels(SeedFolder& folder) {
  std::mt19937 rng(1);
  const auto bytes = [&](size_t n) {
    std::string text(n, '\0');
    for (char& c : text) c = static_cast<char>(rng());
    return text;
  };
  const auto n_dtypes = test::quantizable_dtypes().size();
  for (size_t i = 0; i < n_dtypes; ++i) {
    const DTypeInfo& info = dtype_info(test::quantizable_dtypes()[i]);
    std::string block(4 * info.block_bytes, '\0');
    if (info.block_elements > 1) {
      cpu::test::random_block(info, reinterpret_cast<std::byte*>(block.data()), rng);
    }
    const std::string dtype(1, static_cast<char>(i));
    folder.add(selected(0, selected(0, bytes(2) + dtype + bytes(6) + block)));
    folder.add(selected(0, selected(3, bytes(2) + dtype + block)));
  }
  for (int kernel = 0; kernel < 60; ++kernel) {
    folder.add(selected(0, selected(2, bytes(2) + static_cast<char>(kernel) + bytes(1) + bytes(20))));
  }
  for (int i = 0; i < 40; ++i) folder.add(selected(0, selected(4, bytes(40))));
}

}  // namespace tandem::fuzz
