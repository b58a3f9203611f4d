#include "tools/synth/random_vocab.h"

#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tools/synth/random.h"

namespace tandem::tools {
namespace {

enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct Vocab {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  void add(std::string text, TokenType type) {
    tokens.push_back(std::move(text));
    types.push_back(type);
  }
  int size() const { return static_cast<int>(tokens.size()); }
};

// A piece and the two earlier pieces it is merged from, as plain text (spaces as ' ').
struct Merge {
  std::string left, right;
  std::string text() const { return left + right; }
};

bool is_vowel(char c) {
  return std::string_view("aeiouAEIOU").find(c) != std::string_view::npos;
}

// Grows a vocabulary as byte-pair training does: every new piece joins two existing ones.
class MergeBuilder {
 public:
  MergeBuilder(size_t n_merges, uint64_t seed) : n_merges_(n_merges), random_(seed) {}

  std::vector<Merge> build(int digit_run) {
    add_space_runs();
    add_letter_pairs();
    for (const char* pair :
         {"()", "):", "),", ").", "//", "==", "--", "..", "\",", "\".", "';", "->", "::", "[]"}) {
      add(std::string(1, pair[0]), std::string(1, pair[1]));
    }
    if (digit_run >= 2) add_digits(digit_run);
    while (merges_.size() < n_merges_) {
      const std::string left = pick();  // two statements: the order of evaluation must be fixed
      const std::string right = pick();
      if (sounds_right(left, right)) add_word_piece(left, right);
    }
    return std::move(merges_);
  }

 private:
  bool add(const std::string& left, const std::string& right) {
    if (merges_.size() == n_merges_ || !seen_.insert(left + right).second) return false;
    merges_.push_back({left, right});
    return true;
  }
  void add_word_piece(const std::string& left, const std::string& right) {
    if (add(left, right)) words_.push_back(left + right);
  }

  void add_space_runs() {
    for (int n = 2; n <= 16; ++n) add(std::string(static_cast<size_t>(n - 1), ' '), " ");
  }

  // " a", "ba", "ab", "Ba": the basis of all other pieces.
  void add_letter_pairs() {
    for (char c = 'a'; c <= 'z'; ++c) words_.push_back(std::string(1, c));
    for (char c = 'a'; c <= 'z'; ++c) add_word_piece(" ", std::string(1, c));
    for (char c = 'A'; c <= 'Z'; ++c) add_word_piece(" ", std::string(1, c));
    for (char a = 'a'; a <= 'z'; ++a) {
      for (char b = 'a'; b <= 'z'; ++b) {
        if (is_vowel(a) == is_vowel(b)) continue;
        add_word_piece(std::string(1, a), std::string(1, b));
        add_word_piece(std::string(1, static_cast<char>(a - 'a' + 'A')), std::string(1, b));
      }
    }
  }

  void add_digits(int run) {
    for (int length = 2; length <= run; ++length) {
      const int count = length == 2 ? 100 : 1000;
      for (int n = 0; n < count; ++n) {
        const std::string digits = std::to_string(count + n).substr(1);
        add(digits.substr(0, digits.size() - 1), digits.substr(digits.size() - 1));
      }
    }
  }

  // Returns an existing piece, preferring early (short) ones.
  std::string pick() {
    const double u = random_.uniform();
    return words_[u * u * static_cast<double>(words_.size())];
  }

  // Words may start with a space or a capital, are not too long, and never have three vowels or consonants in
  // a row.
  static bool sounds_right(const std::string& left, const std::string& right) {
    if (right[0] < 'a' || left.size() + right.size() > 14) return false;
    const std::string around = left.substr(left.size() > 2 ? left.size() - 2 : 0) + right.substr(0, 2);
    int run = 0;
    for (size_t i = 0; i < around.size(); ++i) {
      if (around[i] == ' ') continue;
      run = run > 0 && is_vowel(around[i]) == is_vowel(around[i - 1]) ? run + 1 : 1;
      if (run == 3) return false;
    }
    return true;
  }

  size_t n_merges_;
  Random random_;
  std::vector<Merge> merges_;
  std::vector<std::string> words_;  // letters and word pieces, perhaps after a space
  std::unordered_set<std::string> seen_;
};

std::string utf8(uint32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
  return {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)),
          static_cast<char>(0x80 | (c & 0x3f))};
}

// SentencePiece writes a space as U+2581.
std::string spm_text(std::string_view plain) {
  std::string text;
  for (const char c : plain) text += c == ' ' ? utf8(0x2581) : std::string(1, c);
  return text;
}

// Byte-level BPE writes every byte as a printable character: the 188 printable Latin-1 bytes as themselves,
// the others, in order, as U+0100 and up.
std::vector<std::pair<int, std::string>> byte_characters() {
  const auto printable = [](int b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad); };
  std::vector<std::pair<int, std::string>> characters;
  for (int b = 0; b < 256; ++b) {
    if (printable(b)) characters.emplace_back(b, utf8(static_cast<uint32_t>(b)));
  }
  uint32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    if (!printable(b)) characters.emplace_back(b, utf8(next++));
  }
  return characters;
}

void add_byte_tokens(Vocab& vocab) {
  for (int b = 0; b < 256; ++b) vocab.add(format("<0x{:02X}>", b), kByte);
}

// Characters with a token of their own; others become byte tokens.
std::vector<uint32_t> spm_characters() {
  std::vector<uint32_t> characters = {0x2581, 0x2013, 0x2014, 0x2018, 0x2019, 0x201c, 0x201d, 0x2026, 0x20ac};
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {{0x21, 0x7e},    {0xa1, 0xac},   {0xae, 0x17f},
                                                       {0x391, 0x3a1},  {0x3a3, 0x3c9}, {0x410, 0x44f},
                                                       {0x4e00, 0x51ff}};
  for (const auto& [first, last] : kRanges) {
    for (uint32_t c = first; c <= last; ++c) characters.push_back(c);
  }
  return characters;
}

// Fills a SentencePiece vocabulary: pieces in the order of their merges, then single characters. The
// tokenizer merges by score: earlier is better.
void add_spm_pieces(Vocab& vocab, int n_vocab, uint64_t seed, Metadata& metadata) {
  const std::vector<uint32_t> characters = spm_characters();
  const int n_special = vocab.size();
  const auto n_pieces = static_cast<size_t>(n_vocab - n_special) - characters.size();
  for (const Merge& merge : MergeBuilder(n_pieces, seed).build(1)) vocab.add(spm_text(merge.text()), kNormal);
  for (const uint32_t c : characters) vocab.add(utf8(c), kNormal);
  std::vector<float> scores(vocab.tokens.size(), 0.0f);
  for (int id = n_special; id < n_vocab; ++id) scores[id] = static_cast<float>(n_special - id);
  metadata.set("tokenizer.ggml.model", Value("llama"));
  metadata.set("tokenizer.ggml.pre", Value("default"));
  metadata.set("tokenizer.ggml.scores", Value(scores));
}

// Adds 256 byte tokens and the pieces merged from them, up to n_base tokens.
void add_bpe_pieces(Vocab& vocab, int n_base, int digit_run, uint64_t seed, const char* pre,
                    Metadata& metadata) {
  std::vector<std::string> of_byte(256);
  for (const auto& [byte, text] : byte_characters()) {
    of_byte[byte] = text;
    vocab.add(text, kNormal);
  }
  const auto encoded = [&](std::string_view plain) {
    std::string text;
    for (const char c : plain) text += of_byte[static_cast<unsigned char>(c)];
    return text;
  };
  std::vector<std::string> merges;
  for (const Merge& merge : MergeBuilder(static_cast<size_t>(n_base - vocab.size()), seed).build(digit_run)) {
    merges.push_back(encoded(merge.left) + " " + encoded(merge.right));
    vocab.add(encoded(merge.text()), kNormal);
  }
  metadata.set("tokenizer.ggml.model", Value("gpt2"));
  metadata.set("tokenizer.ggml.pre", Value(pre));
  metadata.set("tokenizer.ggml.merges", Value(merges));
}

struct SpecialIds {
  int bos, eos, unknown = -1, padding = -1;
  bool add_bos;
};

SpecialIds add_llama_tokens(Vocab& vocab, int n_vocab, uint64_t seed, Metadata& metadata) {
  vocab.add("<unk>", kUnknown);
  vocab.add("<s>", kControl);
  vocab.add("</s>", kControl);
  add_byte_tokens(vocab);
  add_spm_pieces(vocab, n_vocab, seed, metadata);
  return {.bos = 1, .eos = 2, .unknown = 0, .add_bos = true};
}

SpecialIds add_gemma_tokens(Vocab& vocab, int n_vocab, uint64_t seed, Metadata& metadata) {
  for (const char* text : {"<pad>", "<eos>", "<bos>"}) vocab.add(text, kControl);
  vocab.add("<unk>", kUnknown);
  for (const char* text : {"<mask>", "<2mass>", "[@BOS@]"}) vocab.add(text, kControl);
  for (int i = 0; i < 99; ++i) vocab.add(format("<unused{}>", i), kUnused);
  vocab.add("<start_of_turn>", kControl);
  vocab.add("<end_of_turn>", kControl);
  for (size_t n = 1; n <= 31; ++n) vocab.add(std::string(n, '\n'), kUserDefined);
  for (int i = 99; vocab.size() < 217; ++i) vocab.add(format("<unused{}>", i), kUnused);
  add_byte_tokens(vocab);
  add_spm_pieces(vocab, n_vocab, seed, metadata);
  metadata.set("tokenizer.ggml.add_space_prefix", Value(false));
  return {.bos = 2, .eos = 1, .unknown = 3, .padding = 0, .add_bos = true};
}

SpecialIds add_llama3_tokens(Vocab& vocab, int n_vocab, uint64_t seed, Metadata& metadata) {
  constexpr int kSpecial = 256;  // the last ids
  const int n_base = n_vocab < 128000 + kSpecial ? n_vocab - kSpecial : 128000;
  add_bpe_pieces(vocab, n_base, 3, seed, "llama-bpe", metadata);
  int reserved = 0;
  const auto reserve = [&] { vocab.add(format("<|reserved_special_token_{}|>", reserved++), kControl); };
  for (const char* text :
       {"<|begin_of_text|>", "<|end_of_text|>", "", "", "<|finetune_right_pad_id|>", "",
        "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"}) {
    if (*text != 0) {
      vocab.add(text, kControl);
    } else {
      reserve();
    }
  }
  while (vocab.size() < n_vocab) reserve();
  return {.bos = n_base, .eos = n_base + 9, .add_bos = true};
}

SpecialIds add_qwen_tokens(Vocab& vocab, int n_vocab, uint64_t seed, Metadata& metadata) {
  add_bpe_pieces(vocab, 151643, 1, seed, "qwen2", metadata);
  for (const char* text :
       {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
        "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
        "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"}) {
    vocab.add(text, kControl);
  }
  for (const char* text : {"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
                           "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}) {
    vocab.add(text, kUserDefined);
  }
  while (vocab.size() < n_vocab) vocab.add(format("[PAD{}]", vocab.size()), kUnused);
  return {.bos = 151643, .eos = 151645, .padding = 151643, .add_bos = false};
}

SpecialIds add_tokens(VocabKind kind, Vocab& vocab, int n_vocab, uint64_t seed, Metadata& metadata) {
  switch (kind) {
    case VocabKind::spm_llama: return add_llama_tokens(vocab, n_vocab, seed, metadata);
    case VocabKind::spm_gemma: return add_gemma_tokens(vocab, n_vocab, seed, metadata);
    case VocabKind::bpe_llama3: return add_llama3_tokens(vocab, n_vocab, seed, metadata);
    case VocabKind::bpe_qwen: return add_qwen_tokens(vocab, n_vocab, seed, metadata);
  }
  check_failed(__FILE__, __LINE__, "a kind of vocabulary");
}

}  // namespace

void add_random_vocab(VocabKind kind, int n_vocab, uint64_t seed, Metadata& metadata) {
  Vocab vocab;
  const SpecialIds ids = add_tokens(kind, vocab, n_vocab, seed, metadata);
  TANDEM_CHECK(vocab.size() == n_vocab);
  metadata.set("tokenizer.ggml.tokens", Value(vocab.tokens));
  metadata.set("tokenizer.ggml.token_type", Value(vocab.types));
  const auto set_id = [&](const char* key, int id) {
    if (id >= 0) metadata.set(key, Value(static_cast<uint32_t>(id)));
  };
  set_id("tokenizer.ggml.bos_token_id", ids.bos);
  set_id("tokenizer.ggml.eos_token_id", ids.eos);
  set_id("tokenizer.ggml.unknown_token_id", ids.unknown);
  set_id("tokenizer.ggml.padding_token_id", ids.padding);
  metadata.set("tokenizer.ggml.add_bos_token", Value(ids.add_bos));
  metadata.set("tokenizer.ggml.add_eos_token", Value(false));
}

}  // namespace tandem::tools
