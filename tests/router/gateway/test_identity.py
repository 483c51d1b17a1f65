from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix import chain_bytes, chain_token_ids, root_hash
from router.gateway import identity
from router.gateway.identity import PATHS_MAX, ROOT_BYTES_MAX, ROOTS_MAX, Identity, PromptHasher

SCOPE = (b"tenant", b"", b"model")


def hasher(namespace: str = "test") -> PromptHasher:
    return PromptHasher(namespace, block_tokens=4, block_bytes=16)


def identify(*prompts: bytes | str | list[int], scope: tuple[bytes, ...] = SCOPE) -> Identity:
    return hasher().identify(scope, prompts)


def test_a_path_is_the_chain_of_the_prompts_full_blocks() -> None:
    """40 bytes are two full blocks of 16; 9 ids are two full blocks of 4."""
    text, ids = "x" * 40, list(range(9))
    seed_free = PromptHasher("test", block_tokens=4, block_bytes=16)
    seed = seed_free.seed

    found = identify(text, ids)

    assert found.paths == (
        chain_bytes(text.encode(), root_hash(seed, b"text", *SCOPE), 16),
        chain_token_ids(ids, root_hash(seed, b"ids", *SCOPE), 4),
    )
    assert [len(path) for path in found.paths] == [16, 16]
    assert (found.prompt_bytes, found.prompt_token_ids) == (40, 9)


@given(st.text(max_size=80), st.text(min_size=1, max_size=80))
def test_a_longer_prompt_extends_the_path_and_changes_the_key(text: str, more: str) -> None:
    short, long = identify(text), identify(text + more)

    assert long.paths[0].startswith(short.paths[0])
    assert long.key != short.key
    if short.paths[0]:
        assert long.prefix_key == short.prefix_key


@pytest.mark.parametrize("prompt", ["", "short", "x" * 16, "x" * 17, [], [1], list(range(40)), b"\xfeuser"])
def test_keys_are_equal_for_equal_prompts_and_differ_by_kind(prompt: bytes | str | list[int]) -> None:
    assert identify(prompt) == identify(prompt)
    assert identify(prompt).key != identify(prompt, scope=(b"other",)).key
    assert identify(b"abc").key != identify("abc").key


def test_scopes_and_namespaces_share_nothing() -> None:
    """Boundaries count: tenant ``ab`` with model ``c`` is not tenant ``a`` with model ``bc``."""
    prompt = "x" * 64
    paths = {
        identify(prompt, scope=scope).paths[0][:8]
        for scope in [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), ()]
    }
    paths.add(hasher("other").identify((), [prompt]).paths[0][:8])

    assert len(paths) == 6


def test_a_prompt_shorter_than_a_block_has_no_blocks_but_keys() -> None:
    found = identify("short")

    assert found.paths == (b"",)
    assert found.key == found.prefix_key != 0


def test_a_batch_has_a_path_for_each_prompt_up_to_the_limit() -> None:
    prompts = [f"prompt {number:020}" for number in range(PATHS_MAX + 10)]

    found = identify(*prompts)

    assert len(found.paths) == PATHS_MAX
    assert found.prompt_bytes == sum(map(len, prompts))
    assert found.paths[3] == identify(prompts[3]).paths[0]
    assert found.prefix_key == identify(prompts[0]).prefix_key
    assert found.key != identify(*prompts[::-1]).key


@pytest.mark.parametrize("ids", [[-1] * 8, [1 << 32] * 8, [1, 1 << 40]])
def test_impossible_token_ids_have_a_key_and_no_blocks(ids: list[int]) -> None:
    assert identify(ids).paths == (b"",)
    assert identify(ids).key != identify([*ids, 1]).key


def test_canonical_json_ignores_white_space_key_order_escapes_and_cache_marks() -> None:
    same = [
        b'[{"name":"f","description":"\xc3\xa9","cache_control":{"type":"ephemeral"}}]',
        b'[ {"description": "\\u00e9",\n "name": "f"} ]',
    ]
    canonical = {hasher().canonical(msgspec.Raw(raw)) for raw in same}

    assert canonical == {'[{"description":"é","name":"f"}]'.encode()}
    assert hasher().canonical(msgspec.Raw(b'[{"description":"e","name":"f"}]')) not in canonical


def test_canonical_json_is_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "TOOLS_CACHE_BYTES_MAX", 800)
    one = hasher()
    raws = [msgspec.Raw(b'{"x":%d}' % (10**50 + number)) for number in range(100)]
    first = one.canonical(raws[0])

    assert one.canonical(raws[0]) is first
    for raw in raws:
        one.canonical(raw)
    assert sum(map(len, one._canonical.values())) == one._canonical_bytes <= 800
    assert one.canonical(raws[0]) == first
    one.canonical(msgspec.Raw(b'"' + b"x" * 200 + b'"'))
    assert one._canonical_bytes <= 800


def test_a_body_without_a_prompt_has_a_key() -> None:
    assert hasher().body_key(SCOPE, b"{}") == hasher().body_key(SCOPE, b"{}") != hasher().body_key((), b"{}")


def test_roots_that_come_and_go_do_not_pile_up() -> None:
    one = hasher()
    for number in range(3 * ROOTS_MAX):
        one.identify((b"tenant", b"%d" % number), ["x"])
        one.identify((b"tenant", b"%d" % number * ROOT_BYTES_MAX), ["x"])
    assert len(one._roots) <= ROOTS_MAX
    assert max(sum(map(len, parts)) for parts in one._roots) <= ROOT_BYTES_MAX
    assert one.identify((b"tenant", b"7"), ["x"]) == hasher().identify((b"tenant", b"7"), ["x"])


def test_token_ids_hang_from_the_engines_root_whatever_their_scope() -> None:
    one, ids = hasher(), list(range(9))
    root = one.engine_root("m", "salt")

    assert one.identify(SCOPE, [ids], root).paths == (chain_token_ids(ids, root, 4),)
    assert one.identify((b"another",), [ids], root) == one.identify(SCOPE, [ids], root)
    assert one.identify(SCOPE, ["x" * 40], root) == one.identify(SCOPE, ["x" * 40])


def test_an_engines_root_is_of_one_namespace_model_and_salt() -> None:
    roots = [
        hasher().engine_root(*parts) for parts in [("m", ""), ("", "m"), ("m", "s"), ("ms", ""), ("", "")]
    ]
    roots += [hasher("other").engine_root("m", ""), hasher().root((b"text", b"m", b""))]

    assert len(set(roots)) == 7
    assert hasher().engine_root("m", "s") == roots[2]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (3, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_the_block_that_the_last_token_of_a_prompt_completes_is_not_in_its_path(
    tokens: int, blocks: int
) -> None:
    """Engines compute the last token in any case; blocks of 4 tokens."""
    ids = list(range(tokens))

    found = identify(ids)

    assert len(found.paths[0]) == 8 * blocks
    assert found.key != identify([*ids, 7]).key
    assert identify([*ids, 7, 7, 7, 7]).paths[0].startswith(found.paths[0])


@given(st.lists(st.lists(st.integers(0, 150_000), max_size=20), min_size=1, max_size=3))
def test_packed_ids_are_identified_as_those_of_clients(prompts: list[list[int]]) -> None:
    root = hasher().engine_root("m", "")
    packed = [array("I", ids).tobytes() for ids in prompts]
    assert hasher().identify_packed(root, packed) == hasher().identify(SCOPE, prompts, root)


def test_of_many_packed_prompts_all_are_counted() -> None:
    packed = [array("I", [number] * 9).tobytes() for number in range(PATHS_MAX + 5)]
    found = hasher().identify_packed(1, packed)
    assert (len(found.paths), found.prompt_token_ids) == (PATHS_MAX, 9 * (PATHS_MAX + 5))
