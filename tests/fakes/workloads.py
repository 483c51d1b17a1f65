"""Small seeded workloads for the simulator."""

from random import Random

from loadtest.simulator.workload import Session, SimRequest, Workload
from radix import chain_bytes

BLOCK_TOKENS = 64


def request(
    prompt: bytes, tokens: int, output_tokens: int, *, delay_s: float = 0.0, after: tuple[int, ...] = ()
) -> SimRequest:
    """A request whose prompt is the start of a text of one byte per token."""
    held = chain_bytes(prompt[: tokens + output_tokens - 1], 1, BLOCK_TOKENS)
    full = tokens // BLOCK_TOKENS * 8
    return SimRequest(held[:full], tokens, output_tokens, held[full:], delay_s, after)


def conversations(
    *,
    sessions: int,
    turns: int,
    users: int = 0,
    rate_per_s: float = 1.0,
    seed: int = 1,
    gap_s: float = 5.0,
    output_tokens_max: int = 200,
) -> Workload:
    """Sessions of growing prompts behind one of three system prompts."""
    chance = Random(seed)
    systems = [chance.randbytes(1500) for _ in range(3)]
    start_s = 0.0
    made = []
    for _ in range(sessions):
        start_s += chance.expovariate(rate_per_s)
        text, requests = chance.choice(systems), []
        for turn in range(turns):
            text += chance.randbytes(chance.randrange(50, 2000))
            output_tokens = chance.randint(1, output_tokens_max)
            tokens = len(text)
            text += chance.randbytes(output_tokens)
            requests.append(
                request(
                    text,
                    tokens,
                    output_tokens,
                    delay_s=chance.uniform(0.0, gap_s) if turn else 0.0,
                    after=(turn - 1,) if turn else (),
                )
            )
        made.append(Session(None if users else start_s, tuple(requests)))
    return Workload("conversations", tuple(made), users, BLOCK_TOKENS)


def arrivals(times_s: list[float], *, tokens: int, output_tokens: int = 1, seed: int = 1) -> Workload:
    """Prompts that have nothing in common."""
    chance = Random(seed)
    return Workload(
        "arrivals",
        tuple(
            Session(at_s, (request(chance.randbytes(tokens + output_tokens), tokens, output_tokens),))
            for at_s in times_s
        ),
    )
