"""Ids of requests at their workers."""

import itertools
import re

from router.gateway.request_ids import DRAWN_AT_ONCE, request_ids


def test_no_id_comes_twice_nor_tells_the_next_one() -> None:
    """Two processes, and more ids than one draw has: what two neighbours share is not more than chance."""
    one, other = (list(itertools.islice(request_ids(), 3 * DRAWN_AT_ONCE)) for _ in range(2))
    assert len({*one, *other}) == len(one) + len(other)
    assert all(re.fullmatch(rb"req-[0-9a-f]{32}", name) for name in one)
    digits = [name[4:] for name in one]
    alike = [sum(a == b for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(digits)]
    assert max(alike) < 20  # of 32; each is alike by a chance of 1 in 16
    assert all(len({name[place] for name in digits}) == 16 for place in range(32))
