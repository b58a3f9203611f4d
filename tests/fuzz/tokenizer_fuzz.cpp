// Feeds arbitrary bytes to tiny vocabularies of both kinds, with every pre-tokenizer. Nothing may crash; and
// because the vocabularies have a token for every byte, detokenizing must restore the text.
//
// The first byte selects the vocabulary and whether control tokens in the text count.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "fuzz/fuzz_target.h"
#include "support/tiny_vocab.h"
#include "text/pretokenizer_table.h"
#include "text/spm.h"
#include "text/stream_detokenizer.h"
#include "text/vocab.h"

namespace tandem {
namespace {

struct Subject {
  std::unique_ptr<Vocab> vocab;
  bool gives_back;  // false if the text is normalized
};

std::vector<Subject> make_subjects() {
  std::vector<Subject> subjects;
  subjects.push_back({std::make_unique<Vocab>(test::tiny_spm()), true});
  VocabData crossing = test::tiny_spm();  // a merge across a space makes the whole text one word
  crossing.tokens.push_back({"o▁w", -1, TokenType::normal});
  crossing.add_space_prefix = Flag::off;
  subjects.push_back({std::make_unique<Vocab>(std::move(crossing)), true});
  VocabData stripping = test::tiny_spm();
  for (Token& token : stripping.tokens)
    token.strip_left = token.strip_right = token.type == TokenType::control;
  stripping.remove_extra_whitespaces = Flag::on;
  subjects.push_back({std::make_unique<Vocab>(std::move(stripping)), false});
  for (const PreTokenizerSpec& spec : all_pre_tokenizers()) {
    const std::string name(spec.names.substr(0, spec.names.find(' ')));
    subjects.push_back(
        {std::make_unique<Vocab>(test::tiny_bpe(name)), spec.normalization == Normalization::none});
  }
  return subjects;
}

// SPM writes a space as U+2581, so one that is in the text comes back as a space.
bool has_space_symbol(std::string_view text) {
  return text.find(kSpaceSymbol) != std::string_view::npos;
}

void check(const Subject& subject, std::string_view text, bool parse_special) {
  const Vocab& vocab = *subject.vocab;
  const auto ids = vocab.tokenize(text, {.add_special = false, .parse_special = parse_special});
  for (const int32_t id : ids) TANDEM_CHECK(id >= 0 && id < vocab.size());
  const std::string back = vocab.detokenize(ids, SpecialText::shown);
  const bool changed = !subject.gives_back || (vocab.kind() == TokenizerKind::spm && has_space_symbol(text));
  if (!changed) TANDEM_CHECK(back == text);

  StreamDetokenizer stream(vocab, SpecialText::shown);
  std::string streamed;
  for (const int32_t id : ids) {
    streamed += stream.add(id);
    TANDEM_CHECK(valid_utf8_prefix(streamed) == streamed.size());
  }
  streamed += stream.finish();
  TANDEM_CHECK(valid_utf8_prefix(streamed) == streamed.size());
  if (valid_utf8_prefix(back) == back.size()) TANDEM_CHECK(streamed == back);
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<tandem::Subject> subjects = tandem::make_subjects();
  tandem::fuzz::Input input(data, size);
  const size_t choice = input.byte();
  tandem::check(subjects[choice / 2 % subjects.size()], input.rest(), choice % 2 == 1);
  return 0;
}
