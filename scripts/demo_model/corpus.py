"""The training text as documents, and the tokenizer trained on it.

Documents are generated on demand. One in twenty, chosen by a checksum of its text, is held out: training never sees it,
and the held-out text consists only of these.

    python3 scripts/demo_model/corpus.py > models/heldout.txt
"""

import random
import zlib

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dialogues import converse
from stories import tell

TRAIN_SEED, TOKENIZER_SEED, HELD_OUT_SEED = 1, 2, 3
BOS, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Words, single digits, symbols, spaces: the pre-tokenizer named "qwen2" in GGUF files.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def chat_text(messages):
    return "".join(f"{IM_START}{m['role']}\n{m['content']}{IM_END}\n" for m in messages)


def documents(seed, held_out=False):
    """Endless (text, is_chat) pairs. About half of the tokens are stories, in conversations or on their own, and half
    are short questions and answers."""
    rng = random.Random(seed)
    while True:
        is_chat = rng.random() < 0.78
        text = chat_text(converse(rng)) if is_chat else tell(rng, opening=rng.random() < 0.85)[0]
        if (zlib.crc32(text.encode()) % 20 == 0) == held_out:
            yield text, is_chat


def held_out_stories(seed, n_bytes):
    """Held-out stories separated by blank lines, for measuring perplexity."""
    stories, size = [], 0
    for text, is_chat in documents(seed, held_out=True):
        if is_chat:
            continue
        size += len(text) + 2
        if size > n_bytes:
            return "\n\n".join(stories)
        stories.append(text)


def train_tokenizer(seed, vocab_size, n_documents=20000):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, IM_START, IM_END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    source = documents(seed)
    texts = (next(source)[0].replace(IM_START, "").replace(IM_END, "") for _ in range(n_documents))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return tokenizer


def rows(tokenizer, seed, length, held_out=False):
    """Endless rows of `length` token ids. A row is filled with whole documents, the last one cut off. Some conversations
    start without BOS, because some programs leave it out."""
    rng = random.Random(seed + 1)
    bos = tokenizer.token_to_id(BOS)
    source = documents(seed, held_out)
    while True:
        row, after_chat = [], True
        while len(row) < length:
            text, is_chat = next(source)
            if not (is_chat and after_chat and rng.random() < 0.3):
                row.append(bos)
            row += tokenizer.encode(text, add_special_tokens=False).ids
            after_chat = is_chat
        yield row[:length]


if __name__ == "__main__":
    print(held_out_stories(seed=HELD_OUT_SEED, n_bytes=60000))
