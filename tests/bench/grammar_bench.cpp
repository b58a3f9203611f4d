// The cost of a grammar per token, over a vocabulary of 128,256 tokens in the shape of Llama 3's.
//
//   first_mask   checking all tokens in a new state, by walking the tree of the vocabulary
//   known_mask   the same in a cached state (without the sampler's chain over the allowed tokens)
//   one_token    checking and accepting the chosen token
//   copy         reading and writing the logits, the minimum cost of a mask
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>

#include "sample/grammar/filter.h"
#include "sample/json_schema/json_schema.h"
#include "text/vocab.h"
#include "text/vocab_gguf.h"
#include "tools/synth/random_vocab.h"

namespace tandem {
namespace {

constexpr int kVocab = 128256;

const Vocab& vocab() {
  static const Vocab made = [] {
    Metadata metadata{"synth"};
    tools::add_random_vocab(tools::VocabKind::bpe_llama3, kVocab, 1, metadata);
    return Vocab(read_vocab_data(metadata));
  }();
  return made;
}

std::shared_ptr<const TokenTrie> trie() {
  static const auto made = std::make_shared<const TokenTrie>(
      kVocab, [](int32_t id) { return vocab().token_to_piece(id); }, vocab().eog_ids());
  return made;
}

// A state within a text of the schema for any JSON.
GrammarFilter filter_behind(const std::string& text) {
  GrammarFilter filter(Grammar::parse(json_schema_to_gbnf("{}")), trie(), {});
  for (const char c : text) {
    for (int32_t id = 0; id < kVocab; ++id) {
      if (trie()->text(id) == std::string_view(&c, 1)) {
        filter.accept(id);
        break;
      }
    }
  }
  return filter;
}

const char* const kPlaces[] = {"", "{", "{\"a", "{\"a\":[1"};

void first_mask(benchmark::State& state) {
  const GrammarFilter fresh = filter_behind(kPlaces[state.range(0)]);
  std::vector<float> logits(kVocab, 0.0f);
  for (auto _ : state) {
    state.PauseTiming();
    GrammarFilter filter = fresh;
    state.ResumeTiming();
    benchmark::DoNotOptimize(filter.apply(logits));
  }
  state.SetLabel(kPlaces[state.range(0)]);
  state.counters["nodes"] = static_cast<double>(trie()->nodes().size());
  state.counters["allowed"] = static_cast<double>(std::count(logits.begin(), logits.end(), 0.0f));
}
BENCHMARK(first_mask)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond);

void known_mask(benchmark::State& state) {
  GrammarFilter filter = filter_behind(kPlaces[state.range(0)]);
  std::vector<float> logits(kVocab, 0.0f);
  filter.apply(logits);
  for (auto _ : state) benchmark::DoNotOptimize(filter.apply(logits));
}
BENCHMARK(known_mask)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond);

void one_token(benchmark::State& state) {
  GrammarFilter filter = filter_behind("{\"a");
  int32_t token = 0;
  while (trie()->text(token).size() < 6 || !filter.allows(token)) ++token;
  for (auto _ : state) {
    benchmark::DoNotOptimize(filter.allows(token));
    filter.accept(token);
  }
}
BENCHMARK(one_token)->Unit(benchmark::kNanosecond);

void build_tree(benchmark::State& state) {
  for (auto _ : state) {
    TokenTrie made(
        kVocab, [](int32_t id) { return vocab().token_to_piece(id); }, vocab().eog_ids());
    benchmark::DoNotOptimize(made.nodes().size());
  }
}
BENCHMARK(build_tree)->Unit(benchmark::kMillisecond);

void copy(benchmark::State& state) {
  std::vector<float> a(kVocab, 1.0f), b(kVocab);
  for (auto _ : state) {
    std::memcpy(b.data(), a.data(), kVocab * sizeof(float));
    benchmark::DoNotOptimize(b.data());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(copy)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem

BENCHMARK_MAIN();
