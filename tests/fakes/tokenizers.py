"""Tiny tokenizers in folders, as models have them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.trainers import BpeTrainer

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|bos|>")

_TEXT = (
    "the quick brown fox jumps over the lazy dog and says hello to the world, over and over again. "
    "def tokens(text): return [token for token in text.split() if token]\n"
)


def tokenizer(
    *, like_sentencepiece: bool = False, special: tuple[str | AddedToken, ...] = SPECIAL
) -> Tokenizer:
    """A BPE of some 400 tokens.

    Args:
        like_sentencepiece: Blanks are letters, and one stands before the first word of a text.
        special: Its special tokens.
    """
    made = Tokenizer(BPE(unk_token=None, byte_fallback=False))
    made.pre_tokenizer = (
        Metaspace(prepend_scheme="first") if like_sentencepiece else ByteLevel(add_prefix_space=False)
    )
    made.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        show_progress=False,
        initial_alphabet=ByteLevel.alphabet(),
    )
    made.train_from_iterator([_TEXT] * 3, trainer=trainer)
    return made


def write(
    folder: Path, *, template: str | None = TEMPLATE, made: Tokenizer | None = None, **config: Any
) -> Path:
    """Write a folder: a tokenizer, its configuration, and a chat template unless there is none."""
    folder.mkdir(exist_ok=True)
    (made or tokenizer()).save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, **config}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
