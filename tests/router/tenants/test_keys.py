"""Keys: whose one is, and when."""

import re

from hypothesis import given
from hypothesis import strategies as st

from router.tenant import Tenant
from router.tenants import Keyring, KeyTable, TenantKey
from router.tenants.keys import digest_of, new_key, new_salt

NAMES = ("a", "b", "c")
KEYS = tuple(f"cw-{index}".encode() for index in range(6))


def table(*owned: tuple[str, bytes, float, float]) -> KeyTable:
    """Keys with their tenant, and from when to when they are valid."""
    keys: dict[str, tuple[TenantKey, ...]] = dict.fromkeys(NAMES, ())
    for name, key, begin_s, end_s in owned:
        keys[name] = (*keys[name], TenantKey(digest_of(key), begin_s, end_s))
    return KeyTable({name: Tenant(name, configured=True) for name in NAMES}, keys)


def test_a_new_key_is_256_bits_that_can_be_told_from_other_text() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"cw-[A-Za-z0-9_-]{43}", key) for key in keys)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", new_salt())
    assert new_salt() != new_salt()


times = st.integers(0, 20).map(float)
owned = st.permutations(KEYS).flatmap(
    lambda keys: st.tuples(
        *(st.tuples(st.sampled_from(NAMES), st.just(key), times, times) for key in keys[:4])
    )
)


@given(owned, st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KEYS)), max_size=20))
def test_a_key_is_its_tenants_while_it_is_valid_and_nobodys_otherwise(
    owned: tuple[tuple[str, bytes, float, float], ...], asked: list[tuple[int, bytes]]
) -> None:
    """Also when it was asked for before: a key that was found valid once may have expired since."""
    keyring, now_s = Keyring(), 0.0
    keyring.use(table(*owned), now_s)
    for passed_s, key in asked:
        now_s += passed_s
        keyring.pass_time(now_s)
        expected = {
            name for name, owner_key, begin, end in owned if owner_key == key and begin <= now_s < end
        }
        tenant = keyring.tenant_of(key)
        assert (set() if tenant is None else {tenant.name}) == expected


def test_another_table_takes_the_place_of_the_one_before() -> None:
    """Two keys at a time are how keys are rotated: first both, then the new one."""
    keyring = Keyring()
    assert keyring.tenant_of(KEYS[0]) is None
    old, new = ("a", KEYS[0], 0.0, 9.0), ("a", KEYS[1], 0.0, 9.0)
    for owned, expected in (((old,), (True, False)), ((old, new), (True, True)), ((new,), (False, True))):
        keyring.use(table(*owned), 1.0)
        for _ in range(2):  # found, and remembered
            assert tuple(keyring.tenant_of(key) is not None for key in KEYS[:2]) == expected


def test_the_digest_of_a_key_is_no_key() -> None:
    keyring = Keyring()
    keyring.use(table(("a", KEYS[0], 0.0, 9.0)), 1.0)
    assert keyring.tenant_of(digest_of(KEYS[0])) is None
    assert keyring.tenant_of(digest_of(KEYS[0]).hex().encode()) is None


def test_a_key_that_only_begins_like_one_is_nobodys() -> None:
    """Digests are found by their first bytes, and must be equal in all of them."""
    digest = digest_of(KEYS[0])
    keyring = Keyring()
    tenants = {"a": Tenant("a")}
    keyring.use(KeyTable(tenants, {"a": (TenantKey(digest[:8] + bytes(24)),)}), 0.0)
    assert keyring.tenant_of(KEYS[0]) is None


def test_what_is_remembered_is_bounded_by_the_keys_there_are() -> None:
    keyring = Keyring()
    keyring.use(table(("a", KEYS[0], 0.0, 9.0)), 1.0)
    for guess in range(1000):
        keyring.tenant_of(b"cw-guess-%d" % guess)
    keyring.tenant_of(KEYS[0])
    assert list(keyring._verified) == [KEYS[0]]


def test_a_tenants_keys_end_with_the_last_one() -> None:
    inf = float("inf")
    ends = table(
        ("a", KEYS[0], 0.0, 5.0), ("a", KEYS[1], 0.0, 7.0), ("b", KEYS[2], 0.0, 5.0), ("b", KEYS[3], 0.0, inf)
    ).ends()
    assert list(ends) == [("a", 7.0)]


def test_a_share_of_caches_is_known_by_name_while_any_tenant_has_one() -> None:
    keyring = Keyring()
    assert keyring.cache_share_of("a") is None
    keyring.use(KeyTable({"a": Tenant("a", cache_share=0.5), "b": Tenant("b")}, {"a": (), "b": ()}), 0.0)
    assert [keyring.cache_share_of(name) for name in ("a", "b", "x", "")] == [0.5, 1.0, 1.0, 1.0]
    keyring.use(KeyTable({"a": Tenant("a")}, {"a": ()}), 0.0)
    assert keyring.cache_share_of("a") is None


def test_a_weight_is_known_by_name_and_changes_with_the_table() -> None:
    keyring = Keyring()
    assert keyring.weight_of("a") == 1.0
    keyring.use(KeyTable({"a": Tenant("a", weight=3.0)}, {"a": ()}), 0.0)
    assert (keyring.weight_of("a"), keyring.weight_of("b")) == (3.0, 1.0)
