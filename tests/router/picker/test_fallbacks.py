from fakes.gateway import Bench, chat
from fakes.handover import PairBench
from fakes.proxy_stream import Proxy, destination_of

from policies import Placed
from router.picker.exchange import PickedExchange, Reach
from router.picker.fallbacks import fallbacks


def picked(bench: Bench) -> PickedExchange:
    proxy = Proxy(bench)
    proxy.head()
    proxy.body(chat())
    (exchange,) = bench.gateway.sending.exchanges
    assert isinstance(exchange, PickedExchange)
    return exchange


def test_the_next_best_workers_follow_in_the_order_of_their_prices() -> None:
    """Of three idle workers, the one with a prompt of another request before it comes last."""
    bench = Bench(workers=4)
    exchange = picked(bench)
    assert exchange.record.attempt is not None
    assert exchange.record.parsed is not None
    chosen = bench.local(exchange.record.attempt.worker_id)
    busy = next(local for local in bench.registry.all() if local is not chosen)
    now_us = bench.time.clock.now_us()
    bench.shared.fleet.apply(Placed("theirs", now_us, busy.worker.worker_id, "r2", 9_000_000, 9000, 9000))
    found = fallbacks(bench.gateway, exchange.record, exchange.record.parsed, chosen, 9)
    assert len(found) == 3
    assert chosen not in found
    assert found[-1] is busy
    assert fallbacks(bench.gateway, exchange.record, exchange.record.parsed, chosen, 1) == found[:1]


def test_looking_for_them_decides_and_counts_nothing() -> None:
    bench = Bench(workers=3)
    exchange = picked(bench)
    attempt, parsed = exchange.record.attempt, exchange.record.parsed
    assert attempt is not None
    assert parsed is not None
    said, placed = len(bench.shared.ops), bench.gateway.placing.decider.placed_count
    fallbacks(bench.gateway, exchange.record, parsed, bench.local(attempt.worker_id), 2)
    assert (len(bench.shared.ops), bench.gateway.placing.decider.placed_count) == (said, placed)
    assert exchange.record.attempts == 1


def test_a_fleet_of_one_worker_has_none() -> None:
    proxy = Proxy(Bench(workers=1), reach=Reach(fallbacks=3))
    proxy.head()
    choice, *_ = proxy.body(chat())
    assert destination_of(choice) == "w0:80"


def test_a_subset_holds_for_them_too() -> None:
    proxy = Proxy(Bench(workers=5), reach=Reach(fallbacks=3))
    proxy.head(subset=["w1:80", "w3:80"])
    choice, *_ = proxy.body(chat())
    assert sorted(destination_of(choice).split(",")) == ["w1:80", "w3:80"]


def test_a_worker_with_another_number_of_ranks_is_none() -> None:
    """The request names the chosen worker's rank, which an engine with fewer refuses."""
    bench = Bench(workers=4)
    for worker_id in ("w0:80", "w1:80"):
        bench.registry.change(worker_id, ranks=4)
    for number in range(8):
        proxy = Proxy(bench, reach=Reach(fallbacks=3))
        proxy.head()
        choice, *_ = proxy.body(chat(f"{number} " * 3000))
        named = sorted(destination_of(choice).split(","))
        assert named in (["w0:80", "w1:80"], ["w2:80", "w3:80"])


def test_pairs_have_none() -> None:
    bench = PairBench(prefill=1, decode=1, plain=2)
    exchange = picked(bench)
    attempt, parsed = exchange.record.attempt, exchange.record.parsed
    assert attempt is not None
    assert parsed is not None
    assert fallbacks(bench.gateway, exchange.record, parsed, bench.local(attempt.worker_id), 2) == []
