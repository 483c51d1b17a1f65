"""CPU and delay that exact token identity adds to one request, by size of the prompt.

    python -m loadtest.bench.tokenizing [--tokenizer FOLDER] [--repeats 5] [--parts]

Chats go through `router.tokenizing.Tokenizing` three times: ``cold``, ``next turn`` (an answer and a question
of 400 bytes each more) and ``repeat``. ``CPU`` is of all threads, ``loop`` of the event loop's thread,
``delay`` from `begin` until the request goes on; medians of the repeats; ``--parts`` splits the time within a
thread. Without a folder a byte-level BPE of 8,192 tokens is trained on Python's own library, with the
expression and template of current models.
"""

import argparse
import asyncio
import inspect
import json
import random
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from router.gateway.endpoints import Endpoint
from router.gateway.identity import Identity
from router.gateway.parsing import Identifier, ParsedRequest
from router.metric_families import TOKENIZED_PROMPTS
from router.metrics import Metrics
from router.tokenizing.conversation import conversation_of
from router.tokenizing.local import LocalTokenizer
from router.tokenizing.lru import Remembered
from router.tokenizing.segments import split
from router.tokenizing.tokenizing import Key, Tokenizing

SIZES = {"1 KB": 1 << 10, "64 KB": 64 << 10, "400 KB": 400 << 10, "4 MB": 4 << 20}
TURN_BYTES = 2 << 10
CACHE_BYTES = 256 << 20

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n' }}"
    "{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Split expression of Qwen's tokenizers (``pre_tokenizer`` of its tokenizer.json)."""


def trained(folder: Path) -> None:
    """Write a tokenizer's folder."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(WORDS), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = ByteLevelDecoder()
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    trainer = BpeTrainer(
        vocab_size=8192, special_tokens=special, show_progress=False, initial_alphabet=ByteLevel.alphabet()
    )
    sources = sorted(Path(inspect.getfile(json)).parent.parent.glob("*.py"))[:60]
    tokenizer.train_from_iterator((file.read_text(errors="replace") for file in sources), trainer=trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": SPECIAL[2], "pad_token": SPECIAL[0]})
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def chat(size: int, rng: random.Random) -> list[dict[str, str]]:
    """A conversation of ``size`` bytes: a long first message, then turns."""
    source = inspect.getsource(argparse) + inspect.getsource(asyncio.base_events)
    at = rng.randrange(len(source))
    text = (source[at:] + source * (size // len(source) + 1))[: max(size // 2, 1)]
    # Words that no other conversation has, so that nothing of it was seen before.
    words = "".join(f"{rng.getrandbits(32):x} " for _ in range(4))
    messages = [{"role": "system", "content": words + text}]
    while (left := size - sum(len(message["content"]) for message in messages)) > 0:
        at = rng.randrange(len(source) - TURN_BYTES)
        role = ("user", "assistant")[len(messages) % 2 - 1]
        messages.append(
            {"role": role, "content": f"{rng.getrandbits(32):x}" + source[at : at + min(left, TURN_BYTES)]}
        )
    return messages


class Bench:
    """Begins requests, and waits for them."""

    def __init__(self, local: LocalTokenizer, loop: asyncio.AbstractEventLoop) -> None:
        self._identifier = Identifier("bench")
        self._identifier.finds_roots = True
        metrics = Metrics("bench")
        self.how = metrics.counts[TOKENIZED_PROMPTS].events
        self._tokenizing = Tokenizing(
            {"m": local},
            self._identifier.hasher,
            loop,
            limit_s=60.0,
            threads=1,
            remembered=Remembered[Key, Identity](CACHE_BYTES),
            metrics=metrics,
        )

    async def one(self, messages: list[dict[str, str]]) -> tuple[float, float, float, ParsedRequest]:
        """CPU, CPU of the loop's thread, and delay of one request, in milliseconds."""
        body = json.dumps({"model": "m", "messages": messages}).encode()
        parsed = self._identifier.parse(Endpoint.CHAT, body)
        cpu_s, loop_s, began_s = time.process_time(), time.thread_time(), time.perf_counter()
        found = await self._tokenizing.now(parsed, body)
        took = (time.process_time() - cpu_s, time.thread_time() - loop_s, time.perf_counter() - began_s)
        return 1e3 * took[0], 1e3 * took[1], 1e3 * took[2], found


async def table(local: LocalTokenizer, repeats: int) -> None:
    """Print how long requests take."""
    bench, rng = Bench(local, asyncio.get_running_loop()), random.Random(1)
    await bench.one(chat(4096, rng))
    print(f"{'prompt':>8} {'tokens':>10} {'':10} {'CPU ms':>9} {'loop ms':>9} {'delay ms':>9}  how")
    for name, size in SIZES.items():
        found: dict[str, list[tuple[float, float, float]]] = {"cold": [], "next turn": [], "repeat": []}
        how = {}
        tokens = 0
        for _ in range(repeats):
            messages = chat(size, rng)
            more = [{"role": role, "content": chat(400, rng)[0]["content"]} for role in ("assistant", "user")]
            for case, conversation in (
                ("cold", messages),
                ("next turn", messages + more),
                ("repeat", messages + more),
            ):
                *took, parsed = await bench.one(conversation)
                found[case].append((took[0], took[1], took[2]))
                (how[case],), tokens = bench.how[-1], parsed.prompt_token_ids
        for case, rows in found.items():
            cpu, loop, delay = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"{name:>8} {tokens:10,} {case:10} {cpu:9.3f} {loop:9.3f} {delay:9.3f}  {how[case]}")


def parts(local: LocalTokenizer, repeats: int) -> None:
    """Print where the time of the next turn goes, in a thread."""
    rng = random.Random(2)
    identifier = Identifier("bench")
    root = identifier.hasher.engine_root("m", "")
    template = local._templates["default"]
    for name, size in SIZES.items():
        body = json.dumps({"model": "m", "messages": chat(size, rng)}).encode()
        (packed,) = local.packed(Endpoint.CHAT, body)
        fields = msgspec.json.decode(body)
        text = local._rendered(fields)
        (whole,) = local.packed(Endpoint.CHAT, body)
        steps: dict[str, Callable[[], object]] = {
            "decode": lambda: msgspec.json.decode(body),  # noqa: B023
            "conversation": lambda: conversation_of(fields, template),  # noqa: B023
            "conversation, render": lambda: local._rendered(fields),  # noqa: B023
            "split": lambda: split(text, local.texts.boundaries),  # noqa: B023
            "ids, all seen": lambda: local.texts.packed(text, add_special_tokens=False),  # noqa: B023
            "chain": lambda: identifier.hasher.identify_packed(root, [packed]),  # noqa: B023
            "tokenize, nothing seen": lambda: array(
                "I",
                local.texts._tokenizer.encode(text, add_special_tokens=False).ids,  # noqa: B023
            ),
        }
        print(f"{name}: {len(whole) // 4:,} tokens")
        for step, run in steps.items():
            samples = []
            for _ in range(repeats):
                began_ns = time.thread_time_ns()
                run()
                samples.append((time.thread_time_ns() - began_ns) / 1e6)
            print(f"  {step:24} {statistics.median(samples):9.3f} ms")


def main() -> None:
    """Print the tables."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--tokenizer", type=Path)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--parts", action="store_true")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if given.tokenizer is None:
            trained(Path(scratch))
        local = LocalTokenizer(given.tokenizer or Path(scratch), Remembered(CACHE_BYTES))
    if given.parts:
        parts(local, given.repeats)
    else:
        asyncio.run(table(local, given.repeats))


if __name__ == "__main__":
    main()
