// Shared by the tests of grammars: matching a text, and a vocabulary for sampling.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "sample/grammar/states.h"
#include "sample/sampler.h"

namespace tandem::test {

// The state after a text, and whether the text is complete.
inline uint32_t state_behind(GrammarStates& states, std::string_view text) {
  uint32_t state = states.start();
  for (const char c : text) state = states.advance(state, static_cast<uint8_t>(c));
  return state;
}
inline bool accepts(GrammarStates& states, std::string_view text) {
  return states.is_complete(state_behind(states, text));
}
inline bool accepts(const std::string& gbnf, std::string_view text) {
  GrammarStates states(Grammar::parse(gbnf));
  return accepts(states, text);
}

// Every byte, pieces of JSON, words with and without a space, digits, whole and cut multi-byte characters;
// then a control token and two end tokens.
struct GrammarVocab {
  std::vector<std::string> pieces;
  int32_t control, end_of_text, end_of_turn;

  SamplerModel model() const {
    SamplerModel m;
    m.n_vocab = static_cast<int32_t>(pieces.size());
    m.n_ctx = 4096;
    m.eog = {end_of_text, end_of_turn};
    m.piece = [this](int32_t id) { return pieces[static_cast<size_t>(id)]; };
    return m;
  }
};

inline GrammarVocab grammar_vocab(size_t n_words = 500) {
  GrammarVocab v;
  for (int byte = 0; byte < 256; ++byte) v.pieces.emplace_back(1, static_cast<char>(byte));
  for (const char* text :
       {"{\"",      "\":",      "\": ", "\": \"", "\",",  "\", \"", "\"}",   "\"]",  "},",       "}}",
        "]}",       "],",       "[]",   "{}",     "[{",   "[\"",    ", ",    ":",    "  ",       "\n",
        "\n  ",     "\\\"",     "\\n",  "\\u",    "\\\\", "true",   "false", "null", "tr",       "ue",
        " null",    "é",        "ä",    "ö",      "ü",    "中",     "文",    "🦙", "\xf0\x9f", "\xa6\x99",
        "\xe4\xb8", "\xad\xe6", "0.",   "1.",     "-1",   "e+",     "name",  "age",  "kind",     "next",
        "value",    "type",     "-0",   "00",     "T0",   "Z",      "@",     ".com", "http",     "://"}) {
    v.pieces.push_back(text);
  }
  for (int i = 0; i < 1000; i += 7) v.pieces.push_back(std::to_string(i));
  std::mt19937 random(7);
  for (size_t i = 0; i < n_words; ++i) {
    std::string word = i % 2 == 0 ? " " : "";
    for (size_t n = 1 + random() % 5; n > 0; --n)
      word += "etaoinshrdlucmfwypvbgkjqxz"[random() % (6 + random() % 20)];
    v.pieces.push_back(word);
  }
  const auto next_id = [&v] { return static_cast<int32_t>(v.pieces.size()); };
  v.control = next_id();
  v.pieces.emplace_back();
  v.end_of_text = next_id();
  v.pieces.emplace_back();
  v.end_of_turn = next_id();
  v.pieces.emplace_back("<|end|>");
  return v;
}

// Samples one text with random logits. The longer it gets, the more likely are tokens that close it.
inline std::string sample_text(const GrammarVocab& vocab, Sampler& sampler, std::mt19937& random,
                               size_t most_tokens = 3000) {
  std::vector<float> logits(vocab.pieces.size());
  std::string text;
  for (size_t n = 0; n < most_tokens && !sampler.is_finished(); ++n) {
    const float hurry = std::min(30.0f, static_cast<float>(n) * 0.3f);
    for (size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>(random() % 4096) / 400.0f;
      const std::string& piece = vocab.pieces[i];
      if (piece.size() == 1 && std::string_view("\"}]{[,:").find(piece[0]) != std::string_view::npos)
        logits[i] += 5.0f;
      if (piece == "\"" || piece == "}" || piece == "]") logits[i] += hurry;
      if (piece == "," || piece == "[" || piece == "{" || piece == ".") logits[i] -= hurry;
    }
    logits[static_cast<size_t>(vocab.control)] = 20.0f;
    logits[static_cast<size_t>(vocab.end_of_turn)] += 5.0f + hurry;
    const int32_t token = sampler.sample(logits);
    sampler.accept(token);
    if (token == vocab.end_of_text || token == vocab.end_of_turn) return text;
    text += vocab.pieces[static_cast<size_t>(token)];
  }
  return sampler.is_finished() ? text : "(not finished) " + text;
}

}  // namespace tandem::test
