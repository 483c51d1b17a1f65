from loadtest.engine.link import Egress, seconds_of
from loadtest.engine.link.egress import BUCKETS_MAX


def test_bytes_of_the_same_tenth_of_a_second_are_one_bucket() -> None:
    egress = Egress()
    for at_s, n_bytes in ((0.01, 5), (0.09, 6), (0.31, 7), (0.32, 0)):
        egress.add(at_s, n_bytes)

    assert egress.buckets() == [(0, 11), (3, 7)]
    assert egress.total_bytes == 18


def test_the_busiest_window_is_found_wherever_it_begins() -> None:
    """Two tenths that are 0.9 s apart are in one window of a second; those 1.0 s apart are not."""
    egress = Egress()
    for at_s in (0.05, 0.95, 1.95):
        egress.add(at_s, 100)

    assert seconds_of(egress.buckets()) == [(0.1, 100), (1.0, 200), (2.0, 100)]
    assert seconds_of([]) == []


def test_what_is_kept_is_bounded() -> None:
    egress = Egress()
    for number in range(BUCKETS_MAX + 5):
        egress.add(number / 10 + 0.05, 1)

    assert len(egress.buckets()) == BUCKETS_MAX
    assert egress.total_bytes == BUCKETS_MAX + 5
