"""A fleet parted by the length of requests."""

from dataclasses import replace

from fakes.study import cell

from loadtest.simulator.workload import Session, SimRequest, Workload
from loadtest.study.buckets import opened, simulated_in_buckets
from loadtest.study.runs import configured


def request(tokens: int, delay_s: float = 0.0, *after: int, output_tokens: int = 50) -> SimRequest:
    blocks = b"".join(number.to_bytes(8, "little") for number in range(1, 1 + tokens // 64))
    return SimRequest(blocks, tokens, output_tokens, delay_s=delay_s, after=after)


def test_requests_of_a_session_come_when_the_answers_before_them_would_be_there() -> None:
    """An answer of 50 tokens takes 2 + 50·0.02 = 3 s; the second session begins when its user is free."""
    first = Session(None, (request(5, 1.0), request(6, 5.0, 0)))
    workload = Workload("w", (first, Session(None, (request(7),))), users=1)

    found = opened(workload)

    found.check()
    assert [(session.start_s, session.requests[0].tokens) for session in found.sessions] == [
        (1.0, 5),
        (9.0, 6),
        (9.0, 7),
    ]


def test_every_request_is_served_in_the_bucket_of_its_length() -> None:
    lengths = [1_000, 100_000, 2_000, 300_000, 3_000]
    sessions = tuple(Session(float(at), (request(tokens),)) for at, tokens in enumerate(lengths))
    config = replace(configured(cell(traffic="conversation")), workers=4)

    records = simulated_in_buckets(Workload("w", sessions), config)

    assert [one.prompt_tokens.tolist() for one in records] == [[1_000, 2_000, 3_000], [100_000], [300_000]]
