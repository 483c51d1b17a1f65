"""Accuracy of a price that replicas learn together, and the loss when their words cross.

    python -m loadtest.bench.shared_learning

Each replica answers 5 requests a second, whose prefill times scatter by 0.35, and hears the others' words
late. A word goes on from the newest one that its author had heard; the observations in a word without a
successor are lost.
"""

import random
from collections import deque
from typing import NamedTuple

from policies import Feedback, Fitted, FleetState, Op, OpLog, ServiceModel

S = 1_000_000
TRUE = ServiceModel(0.2, 1 / 1500, 140_000.0)
"""Ten times slower than the profile."""

ANSWERS_PER_S = 5

Word = tuple[int, str]


class Learned(NamedTuple):
    """Learned values of the replicas.

    Attributes:
        words_per_s: Words of all replicas per second.
        in_newest_word: Share of all observations.
        prices: Price of 4,000 tokens over the true one, at one replica, once a second in the second half.
        last_prices: The same at each replica, at the end.
    """

    words_per_s: float
    in_newest_word: float
    prices: list[float]
    last_prices: list[float]


def learn(replicas: int, delay_us: int, answers: int) -> Learned:
    """Let replicas learn from a number of answers."""
    chance, now_us, begun_us = random.Random(1), 1000 * S, 1000 * S
    fleets = [FleetState() for _ in range(replicas)]
    under_way: deque[tuple[int, int, Op]] = deque()
    contents: dict[Word, tuple[Word | None, int]] = {}
    going_on: tuple[Word | None, int] = None, 0

    def learner(number: int) -> Feedback:
        def publish(op: Op) -> None:
            assert isinstance(op, Fitted)
            contents[op.at_us, op.replica] = going_on
            fleets[number].apply(op)
            under_way.append((now_us + delay_us, number, op))

        return Feedback(fleets[number], OpLog(f"r{number}", publish, lambda: now_us), bytes_per_token=4.0)

    learners, prices = [learner(number) for number in range(replicas)], list[float]()
    for _ in range(answers):
        now_us += round(chance.expovariate(ANSWERS_PER_S * replicas) * S)
        while under_way and under_way[0][0] <= now_us:
            _, author, op = under_way.popleft()
            for number, fleet in enumerate(fleets):
                if number != author:
                    fleet.apply(op)
        number = chance.randrange(replicas)
        uncached, cached = chance.choice([500, 2000, 8000, 20_000]), chance.choice([0, 0, 10_000, 50_000])
        took_s = TRUE.service_s(uncached, cached) * chance.lognormvariate(-0.06, 0.35)
        share = learners[number]._fits.get("default")
        going_on = _newest(fleets[number]), 1 if share is None else min(len(share.unsaid) + 1, 64)
        learners[number]._learn_service("default", uncached + cached, cached, took_s, now_us)
        if len(prices) < (now_us - begun_us) / S:
            prices.append(_price(fleets[0]))
    kept, word = 0, _newest(fleets[0])
    while word is not None:
        word, added = contents[word]
        kept += added
    seconds = (now_us - begun_us) / S
    return Learned(
        len(contents) / seconds, kept / answers, prices[len(prices) // 2 :], list(map(_price, fleets))
    )


def _newest(fleet: FleetState) -> Word | None:
    word = fleet.registers.newest(Fitted, "default")
    return None if word is None else (word.at_us, word.replica)


def _price(fleet: FleetState) -> float:
    return fleet.service_model("default").service_s(4000, 0) / TRUE.service_s(4000, 0)


def main() -> None:
    """Print a table."""
    print(
        "| replicas | log's delay | words a second | observations in the newest word | price, from and to |"
    )
    print("|--:|--:|--:|--:|--:|")
    for replicas in (1, 8, 50):
        for delay_ms in (3, 100):
            found = learn(replicas, 1000 * delay_ms, 200 * ANSWERS_PER_S * replicas)
            spread = f"{min(found.prices):.2f} to {max(found.prices):.2f}"
            rate, kept = f"{found.words_per_s:.1f}", f"{found.in_newest_word:.0%}"
            print(f"| {replicas} | {delay_ms} ms | {rate} | {kept} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
