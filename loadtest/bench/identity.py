"""CPU cost of parsing and identifying one request, by size and kind of body.

    python -m loadtest.bench.identity [--repeats 7]

One row is one request body; times are process CPU, median of the repeats. ``code`` is Python source,
whose quotes and line breaks are escapes in JSON; ``plain`` has none; ``agent`` has 40 tools and a
conversation of many turns.
"""

import argparse
import inspect
import json
import random
import statistics
import time

from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier

WORDS = {
    "plain": ["the ", "quick ", "brown ", "fox ", "jumps ", "over "],
    "cjk": ["漢字", "かな", "、", "です", "x "],
}
KINDS = ("plain", "code", "cjk")


def text(kind: str, size: int, rng: random.Random) -> str:
    """Text of about ``size`` bytes in UTF-8."""
    if kind == "code":
        source = inspect.getsource(argparse)
        return (source * (size // len(source) + 1))[:size]
    words = WORDS[kind]
    mean = sum(len(word.encode()) for word in words) / len(words)
    return "".join(rng.choices(words, k=int(size / mean)))


def tools() -> list[object]:
    """Forty tools of an agent, some 28 KB."""
    properties = {
        f"argument_{number}": {"type": "string", "description": "What the tool is to do. " * 2}
        for number in range(6)
    }
    return [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": "Does one thing well. " * 6,
                "parameters": {"type": "object", "properties": properties, "required": ["argument_0"]},
            },
        }
        for number in range(40)
    ]


def bodies() -> dict[str, tuple[Endpoint, bytes]]:
    """The rows of the table."""
    rng = random.Random(1)
    found: dict[str, tuple[Endpoint, bytes]] = {}
    for size, name in ((1 << 10, "1 KB"), (64 << 10, "64 KB"), (512 << 10, "512 KB"), (4 << 20, "4 MB")):
        for kind in KINDS:
            body = {
                "model": "m",
                "messages": [
                    {"role": "system", "content": text(kind, size // 4, rng)},
                    {"role": "user", "content": text(kind, size - size // 4, rng)},
                ],
                "max_tokens": 128,
                "stream": True,
            }
            found[f"chat {kind} {name}"] = Endpoint.CHAT, json.dumps(body, ensure_ascii=False).encode()
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text("code", 1 << 10, rng)}
        for number in range(128)
    ]
    body = {"model": "m", "messages": turns, "tools": tools(), "stream": True}
    found["chat agent 128 turns, tools"] = Endpoint.CHAT, json.dumps(body).encode()
    for count in (1 << 10, 1 << 14, 1 << 17, 1 << 20):
        ids = [rng.randrange(150_000) for _ in range(count)]
        found[f"completions {count} ids"] = (
            Endpoint.COMPLETIONS,
            json.dumps({"model": "m", "prompt": ids}).encode(),
        )
    return found


def cost_us(endpoint: Endpoint, body: bytes, repeats: int) -> float:
    """Median CPU of one parse, microseconds."""
    identifier = Identifier("bench")
    identifier.parse(endpoint, body)
    loops = max(3, min(20_000, (8 << 20) // len(body)))
    samples = []
    for _ in range(repeats):
        began_ns = time.process_time_ns()
        for _ in range(loops):
            identifier.parse(endpoint, body)
        samples.append((time.process_time_ns() - began_ns) / loops / 1000)
    return statistics.median(samples)


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=7)
    repeats = arguments.parse_args().repeats
    print(f"{'request':32} {'body bytes':>12} {'CPU us':>12}")
    for name, (endpoint, body) in bodies().items():
        print(f"{name:32} {len(body):12,} {cost_us(endpoint, body, repeats):12,.1f}")


if __name__ == "__main__":
    main()
