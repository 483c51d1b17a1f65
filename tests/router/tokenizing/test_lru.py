from concurrent.futures import ThreadPoolExecutor

from router.tokenizing.lru import ENTRY_BYTES, SHARE_MAX, Remembered


def test_the_least_recently_used_goes_first_within_the_bound() -> None:
    kept = Remembered[int, bytes](10 * (ENTRY_BYTES + 100))
    for key in range(10):
        kept.put(key, bytes(100), 100)
    assert kept.get(0) == bytes(100)
    kept.put(10, bytes(100), 100)
    assert [kept.get(key) is not None for key in (0, 1, 2, 10)] == [True, False, True, True]
    assert kept.size_bytes == len(kept) * (ENTRY_BYTES + 100) == 10 * (ENTRY_BYTES + 100)


def test_what_would_drive_out_all_others_is_not_kept() -> None:
    kept = Remembered[str, bytes](10_000)
    kept.put("small", b"x", 1)
    kept.put("large", b"x", 10_000 // SHARE_MAX)
    assert (kept.get("large"), kept.get("small")) == (None, b"x")


def test_what_is_put_twice_weighs_once() -> None:
    kept = Remembered[str, bytes](10_000)
    kept.put("a", b"x", 100)
    kept.put("a", b"y", 100)
    assert (kept.get("a"), kept.size_bytes) == (b"x", ENTRY_BYTES + 100)


def test_threads_leave_the_sum_right() -> None:
    kept = Remembered[int, bytes](50 * (ENTRY_BYTES + 10))

    def work(seed: int) -> None:
        for number in range(3000):
            key = (seed * 7919 + number * 31) % 97
            kept.get(key)
            kept.put(key, b"", 10)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert kept.size_bytes == len(kept) * (ENTRY_BYTES + 10)
    assert len(kept) == 50
