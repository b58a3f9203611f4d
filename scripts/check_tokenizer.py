#!/usr/bin/env python3
"""Converts tokenizers of every common kind and compares the ids with those of their own libraries.

    scripts/check_tokenizer.py [--tandem build/bin/tandem] [--lines 2000] [NAME ...]
    scripts/check_tokenizer.py --fixtures tests/golden/tokenizers      writes the reference data of the tests

Needs the Python packages tokenizers and sentencepiece. The script trains a tokenizer of each kind on generated lines in
many languages; `tandem convert --vocab-only` converts it to a GGUF vocabulary, and `tandem tokenize` must give the same
ids as `tokenizers` (or `sentencepiece`) for every line.
"""

import argparse
import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                            trainers)
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit(0)
    sys.exit(f"check_tokenizer.py: the Python package {error.name} is missing")

SEPARATOR = "<|separator|>"
SPECIAL = ["<unk>", "<s>", "</s>", SEPARATOR]
SPACE = "\u2581"

SENTENCES = """
The quick brown fox jumps over the lazy dog, doesn't it? We'll see; they've said I'm late, and he'd agree.
ONE'S COMPANY, TWO'S A CROWD: I'LL GO. Don't PANIC!! HTML5Parser camelCaseWord snake_case_word
Der Bär aß süße Äpfel über der Straße, während 1234567 Fische schwammen.
L'été dernier, j'ai visité l'île où naît le cœur; ça coûte 12,50 €.
El niño comió piñas y cigüeñas volaron. ¿Cuándo? ¡Ahora mismo!
Быстрая коричневая лиса прыгает через ленивую собаку, и это всё.
Η γρήγορη αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.
敏捷的棕色狐狸跳过了懒狗。今天是2024年5月17日,天气很好!
すばしっこい茶色の狐はのろまな犬を飛び越える。カタカナ、ひらがな、漢字。
빠른 갈색 여우가 게으른 개를 뛰어넘습니다. 안녕하세요?
السلام عليكم ورحمة الله، كيف حالك اليوم؟ ١٢٣٤٥
שלום עולם, מה שלומך היום?
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। १२३
สวัสดีชาวโลก วันนี้อากาศดีมาก
Chú cáo nâu nhanh nhẹn nhảy qua con chó lười biếng.
Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy. Árvíztűrő tükörfúrógép.
def main(argc: int = 0x1F) -> None:\\n    return {"key": [1, 2.5e-3, None]}  # comment
for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }  // ==> done!
https://example.com/path?q=1&r=%20two#frag user.name+tag@mail.example.org
x = (a + b) / (c - d) ** 2 != 3.14159265 && !flag || y <= 10_000
😀 🎉👩‍👩‍👧‍👦 ❤️ 🇫🇷 ½ ² Ⅷ ① ﬁ ﷺ
e\u0301 vs \u00e9, a\u0308 vs \u00e4, \u1112\u1161\u11ab vs \ud55c
\\t tabs\\tand  double  spaces   and trailing   \\n\\n\\nnew lines \\r\\n
"quoted" 'single' `code` «guillemets» “curly” — dash – en… #hash @at $100 50% ^caret ~tilde
""".strip().split("\n")

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORDS = r"[^\r\n\p{L}\p{N}]?"
GPT4O = "|".join([f"{WORDS}{UPPER}*{LOWER}+{CONTRACTIONS}?", f"{WORDS}{UPPER}+{LOWER}*{CONTRACTIONS}?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
TEKKEN = "|".join([f"{WORDS}{UPPER}*{LOWER}+", f"{WORDS}{UPPER}+{LOWER}*", r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                   r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def bytes_only():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def gpt2_bytes():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


# NAME: (pre-tokenizer, normalizer, ignore_merges, puts BOS before a text)
BYTE_LEVEL = {
    "gpt2": (gpt2_bytes(), None, False, False),
    "llama3": (sequence(split(LLAMA3), bytes_only()), None, True, True),
    "smaug": (sequence(split(LLAMA3), bytes_only()), None, False, True),
    "qwen2": (sequence(split(QWEN2), bytes_only()), normalizers.NFC(), False, False),
    "starcoder": (sequence(pre_tokenizers.Digits(individual_digits=True), gpt2_bytes()), None, False, False),
    "gpt4o": (sequence(split(GPT4O), bytes_only()), None, False, False),
    "tekken": (sequence(split(TEKKEN), bytes_only()), None, True, True),
    "deepseek3": (sequence(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK3), bytes_only()),
                  None, False, False),
}
SENTENCEPIECE = ("llama_spm", "gemma_spm", "llama_model", "gemma_model")  # tokenizer.json, and tokenizer.model


def make_lines(n, seed):
    """Lines of random words from all sentences, and some of random characters."""
    rng = random.Random(seed)
    sentences = [s.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r") for s in SENTENCES]
    words = [w for s in sentences for w in s.split(" ")]
    characters = sorted({c for s in sentences for c in s})
    lines = list(sentences)
    while len(lines) < n:
        kind = rng.random()
        if kind < 0.6:
            lines.append(rng.choice([" ", " ", "  "]).join(rng.choices(words, k=rng.randint(1, 14))))
        elif kind < 0.8:
            lines.append("".join(rng.choices(characters, k=rng.randint(1, 40))))
        else:
            start = rng.choice(sentences)
            cut = rng.randrange(len(start))
            lines.append(rng.choice(["", " ", "\n", "   "]) + start[cut:] + str(rng.randrange(10**9)))
    return lines[:n]


def train_byte_level(name, n_tokens, corpus):
    pre, normalizer, ignore_merges, bos = BYTE_LEVEL[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=n_tokens, special_tokens=SPECIAL, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def train_sentencepiece(name, n_tokens, corpus):
    import sentencepiece
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=out, model_type="bpe", vocab_size=n_tokens, byte_fallback=True,
        character_coverage=0.99, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=name.startswith("llama"), split_digits=True, control_symbols=[SEPARATOR],
        allow_whitespace_only_pieces=True, hard_vocab_limit=False, minloglevel=2, num_threads=1)
    return out.getvalue()


def tokenizer_of_model(name, proto):
    """The tokenizer.json of a SentencePiece model: its merges are the pairs of pieces that form a piece, best first."""
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    ids = {p: i for i, p in enumerate(pieces)}
    normal = [i for i in range(len(pieces)) if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))]
    merges = []
    for i in sorted(normal, key=model.get_score, reverse=True):
        p = pieces[i]
        cuts = [(p[:k], p[k:]) for k in range(1, len(p)) if p[:k] in ids and p[k:] in ids]
        merges += sorted(cuts, key=lambda c: (ids[c[0]], ids[c[1]]))
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", SPACE)
    if name.startswith("llama"):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
    else:
        tokenizer.normalizer = replace
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_special_tokens([pieces[model.unk_id()], "<s>", "</s>", SEPARATOR])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", model.bos_id())])
    return tokenizer


def make_tokenizer(name, n_tokens, corpus):
    """({file name: bytes}, encode(text) -> ids including BOS and EOS)"""
    if name in BYTE_LEVEL:
        tokenizer = train_byte_level(name, n_tokens, corpus)
        return {"tokenizer.json": tokenizer.to_str().encode()}, lambda text: tokenizer.encode(text).ids
    proto = train_sentencepiece(name, n_tokens + 300, corpus)
    if name.endswith("_spm"):
        tokenizer = tokenizer_of_model(name, proto)
        return {"tokenizer.json": tokenizer.to_str().encode()}, lambda text: tokenizer.encode(text).ids
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    return {"tokenizer.model": proto}, lambda text: [model.bos_id()] + model.encode(text)


CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8000, "hidden_size": 64,
          "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-5}
TOKENIZER_CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def check(name, tandem, lines, corpus):
    """One line of text for each line whose ids differ."""
    files, encode = make_tokenizer(name, 2000, corpus)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
        for file, data in files.items():
            (folder / file).write_bytes(data)
        gguf, text = folder / "vocab.gguf", folder / "text"
        subprocess.run([tandem, "convert", folder, "-o", gguf, "--vocab-only", "--log-disable"], check=True)
        text.write_bytes(SEPARATOR.join(lines).encode())  # one run for all: text restarts after a special token
        out = subprocess.run([tandem, "tokenize", "-m", gguf, "-f", text, "--ids"], check=True, capture_output=True)
    ids = json.loads(out.stdout)
    expected = [encode(line) for line in lines]
    bos = [expected[0][0]] if all(e[:1] == expected[0][:1] == [1] for e in expected) else []
    separator = encode(SEPARATOR)[-1] if name not in ("llama_model", "gemma_model") else 3
    found, current = [], []
    for i in ids[len(bos):] + [separator]:
        if i == separator:
            found.append(bos + current)
            current = []
        else:
            current.append(i)
    if len(found) != len(expected):
        return [f"found {len(found)} lines, needed {len(expected)}"]
    return [f"{line!r}: found {f}, needed {e}" for line, f, e in zip(lines, found, expected) if f != e]


def write_fixture(name, folder, corpus):
    files, encode = make_tokenizer(name, 420, corpus)
    if "tokenizer.json" not in files:
        return
    texts = make_lines(60, 7)[:60]
    data = {"name": name, "tokenizer": json.loads(files["tokenizer.json"]), "texts": texts,
            "ids": [encode(t) for t in texts]}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n")
    print(f"{path}: {path.stat().st_size} bytes")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="kinds to check (default: all)")
    parser.add_argument("--tandem", default=root / "build" / "bin" / "tandem", help="the program")
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--fixtures", type=pathlib.Path, help="write the reference data of the tests to this folder")
    options = parser.parse_args()
    corpus = make_lines(3000, 1)
    failed = 0
    for name in options.names or [*BYTE_LEVEL, *SENTENCEPIECE]:
        if options.fixtures:
            write_fixture(name, options.fixtures, corpus)
            continue
        different = check(name, options.tandem, make_lines(options.lines, 2), corpus)
        print(f"{name}: {options.lines - len(different)} of {options.lines} lines have the same ids")
        for line in different[:3]:
            print("  " + line)
        failed += bool(different)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
