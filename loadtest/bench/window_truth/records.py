"""Reports of an engine on a script, kept so that rules can be judged without an engine.

The seed of the script draws prompts again, and answers in place of the engine's (`Script.answer`): only that
they are unforeseen counts.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from loadtest.bench.window_truth.asking import Truth
from loadtest.bench.window_truth.judges import History, Simulated, attention_of, rules_of
from loadtest.bench.window_truth.script import Script


class Record(msgspec.Struct, frozen=True):
    """One run: its script, the engine's cache size and longest prefill step, and reused tokens per prompt."""

    kind: str
    seed: int
    kv_blocks: int
    step_tokens: int
    cached_tokens: list[int]


def write(folder: Path, record: Record) -> None:
    """Keep a run in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{record.kind}-{record.kv_blocks}.json").write_bytes(msgspec.json.encode(record) + b"\n")


def read(path: Path) -> Record:
    """A run that was kept."""
    return msgspec.json.decode(path.read_bytes(), type=Record)


def replayed(record: Record) -> Iterator[Truth]:
    """The truths of a run again, with the fold in the place of a gateway."""
    script = Script(record.seed)
    history = History(attention_of(record.kind))
    rules = rules_of(record.kind, kv_blocks=record.kv_blocks, step_tokens=record.step_tokens)
    simulated = Simulated(rules)
    for cached_tokens in record.cached_tokens:
        asked = script.draw()
        truth = Truth(asked, history.predict(asked.prompt), simulated.predict(asked.prompt), cached_tokens)
        answer = script.answer()
        for judge in (history, simulated):
            judge.answered(asked.prompt, answer)
        script.answered(answer)
        yield truth
