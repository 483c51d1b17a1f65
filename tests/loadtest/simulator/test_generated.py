"""Sessions of agents drawn from a seed."""

import numpy as np

from loadtest.simulator.bounds import hit_ratio, infinite_hit_tokens
from loadtest.simulator.generated import AgenticShape, Lengths, generate_agentic

FORKING = AgenticShape(turns=Lengths(6, 0.1, 8), agents_ratio=0.5)


def test_the_seed_alone_decides_and_a_longer_workload_begins_with_the_shorter() -> None:
    ten = generate_agentic(sessions=10, seed=3)

    ten.check()
    assert ten.sessions == generate_agentic(sessions=12, seed=3).sessions[:10]
    assert ten.sessions != generate_agentic(sessions=10, seed=4).sessions


def test_lengths_are_those_of_recorded_agents() -> None:
    """Medians of 24K for first prompts and 217 for answers, and most of a prompt was seen before."""
    workload = generate_agentic(sessions=150)

    firsts = [session.requests[0].tokens for session in workload.sessions]
    outputs = [request.output_tokens for request in workload.requests()]
    order = workload.in_order()
    assert 18_000 < np.median(firsts) < 30_000
    assert 190 < np.median(outputs) < 250
    assert 0.93 < hit_ratio(order, infinite_hit_tokens(order)) < 0.99


def test_every_prompt_extends_what_was_held_of_the_one_before() -> None:
    for session in generate_agentic(sessions=5, shape=AgenticShape(agents_ratio=0.0)).sessions:
        for before, after in zip(session.requests, session.requests[1:], strict=False):
            assert after.blocks.startswith(before.held)


def test_a_parent_waits_for_its_sub_agents_and_they_for_it() -> None:
    """If a request waits for several, all of them began behind the same request of the parent."""
    workload = generate_agentic(sessions=10, shape=FORKING)
    workload.check()

    joins = 0
    for session in workload.sessions:
        for request in session.requests:
            if len(request.after) > 1:
                joins += 1
                begins = set()
                for last in request.after:
                    first = last
                    while session.requests[first].blocks[:8] == session.requests[last].blocks[:8]:
                        (first,) = session.requests[first].after
                    begins.add(first)
                assert len(begins) == 1
    assert joins


def test_sessions_of_a_product_share_its_start_and_no_conversation_exceeds_the_context() -> None:
    workload = generate_agentic(sessions=60, shape=AgenticShape(products=3, context_tokens_max=60_000))

    assert len({session.requests[0].blocks[:8] for session in workload.sessions}) == 3
    longest = max(request.tokens + request.output_tokens for request in workload.requests())
    assert 55_000 < longest <= 60_000
