"""Linear states that SGLang keeps, by its own code and by hand."""

import pytest
from fakes.sglang_cache import drawn, reused_by_model, reused_by_sglang
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.rules import CacheRules
from radix import chain_token_ids

PAGE = 64


def states(cache: KvCache) -> list[int]:
    """Boundaries of all states, in tokens."""
    return sorted(node.end * PAGE for node in cache.tree.nodes() if node.state is not None)


def serve(cache: KvCache, prompt: list[int], answer: list[int]) -> int:
    """Run a whole request in chunks of 512 tokens; return its reused tokens."""
    lease = cache.open(chain_token_ids(prompt, 7, PAGE), len(prompt), len(answer), 0.0)
    assert cache.admit(lease, 0.0)
    for at in range(lease.matched_tokens + 512, len(prompt), 512):
        cache.computed(lease, at, 0.0)
    cache.computed(lease, len(prompt), 0.0)
    computed = len(prompt) + len(answer) - 1
    cache.close(lease, chain_token_ids([*prompt, *answer][:computed], 7, PAGE), computed, 0.0)
    return lease.matched_tokens


def linear(slots: int = 1000) -> KvCache:
    return KvCache(CacheRules(full_tokens=10**6, attention="linear", state_slots=slots, chunk_tokens=512))


def test_states_are_kept_at_chunk_ends_and_of_an_answer_at_multiples_of_256() -> None:
    """The prompt ends in the 11th page, at 700; its answer passes 768 and ends before 1024."""
    cache = linear()
    serve(cache, list(range(700)), list(range(1000, 1200)))

    assert states(cache) == [512, 640, 768]


def test_an_answer_that_passes_no_multiple_leaves_nothing() -> None:
    cache = linear()
    serve(cache, list(range(700)), list(range(1000, 1060)))

    assert states(cache) == [512, 640]


def test_the_branch_takes_the_place_of_its_chunks_end() -> None:
    """The second prompt leaves the first at 600, in the page behind 576."""
    cache = linear()
    serve(cache, list(range(700)), [1])
    assert serve(cache, [*range(600), *range(2000, 2200)], [1]) == 512
    assert states(cache) == [512, 576, 640]
    assert serve(cache, [*range(600), *range(3000, 3200)], [1]) == 576


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 900), st.integers(1, 300)), max_size=25))
def test_of_too_many_states_the_one_used_longest_ago_goes(asked: list[tuple[int, int, int]]) -> None:
    """There are never more states than slots, and a match ends at one of the states."""
    cache = linear(slots=3)
    for topic, length, answer in asked:
        held = {0, *states(cache)}
        prompt = [topic * 10_000 + at for at in range(length)]
        assert serve(cache, prompt, [topic] * answer) in held
        assert len(states(cache)) <= 3


class Naive:
    """Held sequences of pages, one letter each, and those with a state."""

    def __init__(self) -> None:
        self.held, self.states = {""}, {""}

    def put(self, text: str) -> int:
        self.held |= {text[:end] for end in range(len(text) + 1)}
        self.states.add(text)
        return len(text)

    def serve(self, text: str, tail: int, answer: int) -> int:
        """Serve so many tokens behind whole pages, in chunks of eight, and an answer of pages."""
        prompt = len(text) * PAGE + tail
        pages = (prompt - 1) // PAGE
        found = max(end for end in range(pages + 1) if text[:end] in self.held)
        usable = max(end for end in range(found + 1) if text[:end] in self.states)
        branch, inserted, at = found if found > usable else 0, usable, usable * PAGE
        while at < prompt:
            end = min(at + 512, prompt)
            if end - at >= PAGE:
                reached = end // PAGE
                inserted = self.put(text[: branch if inserted < branch < reached else reached])
            at = end
        total = prompt + answer * PAGE - 1
        if total // 256 * 256 > prompt:
            self.put((text + "-" * answer)[: total // 256 * 4])
        return usable * PAGE


@given(
    st.lists(
        st.tuples(st.text("ab", min_size=1, max_size=20), st.integers(0, PAGE - 1), st.integers(1, 9)),
        max_size=12,
    )
)
def test_the_model_does_what_the_naive_one_does(asked: list[tuple[str, int, int]]) -> None:
    """Answers begin with the tail's page, so that each tail has a page of its own."""
    cache, naive = linear(), Naive()
    for text, tail, answer in asked:
        prompt = [ord(letter) for letter in text for _ in range(PAGE)] + [ord("-")] * tail
        assert serve(cache, prompt, [ord("-")] * (answer * PAGE)) == naive.serve(text, tail, answer)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_sglangs_own_cache_reuses_the_same(seed: int) -> None:
    requests = drawn(seed, PAGE, 1500)
    rules = CacheRules(full_tokens=10**8, attention="linear", state_slots=10**5, chunk_tokens=512)

    assert reused_by_model(requests, rules) == reused_by_sglang(
        requests, page=PAGE, window=0, chunk=512, released=128, linear=True, track=256
    )
