"""The accounts of a pool."""

from loadtest.engine.kv.pools import Pool


def test_room_is_what_is_neither_held_nor_reserved() -> None:
    pool = Pool(100, held=60, locked=25, reserved=30)

    assert pool.free == 10
    assert pool.obtainable == 45
    assert pool.used == 55


def test_free_room_is_negative_while_something_must_be_evicted() -> None:
    assert Pool(100, held=90, reserved=30).free == -20
