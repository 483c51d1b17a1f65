"""Pairs that may share a request, by what their protocol splits."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest

from policies import ALONE, Pairing, Partners
from router.errors import NoWorker
from router.gateway.endpoints import Endpoint
from router.handover import Handover
from router.pairs.splitting import splitting

SLOTS = np.array([1, 2, 3, 4, 5])
"""Plain 1; prefill 2 and 3, whose partners are 7 and 8; prefill 4, whose partner is 9; plain 5."""

PAIRING = Pairing(
    SLOTS,
    np.array([ALONE, 0, 0, 1, ALONE]),
    (Partners("sglang", np.array([7, 8])), Partners("nixl", np.array([9]))),
)


class Splits:
    """A protocol that splits everything, or nothing."""

    def __init__(self, *, splits: bool) -> None:
        self._splits = splits

    def splits(self, _: object) -> bool:
        return self._splits


class Parsed:
    """The part of a request that counts."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint


def split(endpoint: Endpoint, slots: list[int], **protocols: bool) -> tuple[list[int], Pairing | None]:
    handovers = cast(Mapping[str, Handover], {name: Splits(splits=each) for name, each in protocols.items()})
    kept, pairing = splitting(np.array(slots), PAIRING, handovers, cast(Any, Parsed(endpoint)))
    return kept.tolist(), pairing


def test_pairs_that_cannot_share_a_request_are_left_out() -> None:
    every = SLOTS.tolist()
    assert split(Endpoint.CHAT, every, sglang=True, nixl=True) == (every, PAIRING)
    assert split(Endpoint.CHAT, every, sglang=True, nixl=False) == ([1, 2, 3, 5], PAIRING)
    assert split(Endpoint.CHAT, [2, 4], sglang=False, nixl=True) == ([4], PAIRING)
    assert split(Endpoint.CHAT, every, sglang=False, nixl=False) == ([1, 5], PAIRING)


@pytest.mark.parametrize("endpoint", [Endpoint.RERANK, Endpoint.SCORE_SHORT])
def test_ranks_and_scores_are_computed_by_one_worker(endpoint: Endpoint) -> None:
    """SGLang's prefill engine answers 400 to what comes without a room."""
    assert split(endpoint, SLOTS.tolist(), sglang=False, nixl=False) == ([1, 5], PAIRING)


def test_what_asks_for_no_prefill_may_go_to_either_half_of_a_pair() -> None:
    assert split(Endpoint.TOKENIZE, [2, 3], sglang=False, nixl=False) == ([2, 3], None)


def test_a_request_that_only_pairs_are_left_for_which_cannot_share_it_is_told_so() -> None:
    with pytest.raises(NoWorker, match=r"/v1/embeddings .* \(sglang, nixl\): they need a plain worker"):
        split(Endpoint.EMBEDDINGS, [2, 3, 4], sglang=False, nixl=False)
