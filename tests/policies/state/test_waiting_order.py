"""Promises of the shared queue's rule, in a small world (`fakes.waiting_model`)."""

from fakes.waiting_model import Dispatch, Job, WaitingModel, worker_id
from hypothesis import given
from hypothesis import strategies as st

from policies import FleetRules

MS = 1000
SECOND = 1000 * MS

ks = st.sampled_from((0.0, 0.5, 1.0, 3.0, 20.0))


def jobs_of(workers: int, *, replicas: int = 1, affinity: bool = False) -> st.SearchStrategy[list[Job]]:
    """Requests that arrive faster than they can be served, each on its own or as cheap on all workers."""
    prefill_ms = st.integers(1, 60)
    drawn = st.tuples(
        st.integers(0, 20), st.integers(0, replicas - 1), prefill_ms, st.integers(0, workers - 1)
    )

    def made(all_drawn: list[tuple[int, int, int, int]]) -> list[Job]:
        jobs: list[Job] = []
        at_us = 0
        for number, (gap_ms, replica, service_ms, warm) in enumerate(all_drawn):
            # No two events at one moment: then every order of them would be right.
            at_us += gap_ms * MS + 1 + number
            cold_us = service_ms * MS * (4 if affinity else 1)
            service_us = [cold_us] * workers
            service_us[warm] = service_ms * MS
            jobs.append(Job(f"r{number:02}", at_us, replica, tuple(service_us)))
        return jobs

    return st.lists(drawn, min_size=1, max_size=25).map(made)


def overtaken(dispatch: Dispatch, model: WaitingModel) -> list[Job]:
    """Those with a better key that waited for the room which a request took."""
    mine_us = dispatch.job.key_us(model.k)
    return [model.jobs[name] for name in dispatch.others if model.jobs[name].key_us(model.k) < mine_us]


@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.booleans(), ks)
def test_nobody_is_overtaken_by_a_request_that_arrived_more_than_k_times_its_prefill_later(
    data: st.DataObject, replicas: int, workers: int, affinity: bool, k: float
) -> None:
    """With a log that takes no time, replicas are one queue."""
    jobs = data.draw(jobs_of(workers, replicas=replicas, affinity=affinity))
    model = WaitingModel(jobs, replicas=replicas, workers=workers, k=k)
    model.run()
    assert len(model.dispatches) == len(jobs)
    for dispatch in model.dispatches:
        assert overtaken(dispatch, model) == []
        for name in dispatch.others:
            waits = model.jobs[name]
            assert dispatch.job.arrived_us - waits.arrived_us <= k * min(waits.service_us)


@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.booleans(), ks)
def test_a_request_waits_for_a_busy_worker_if_no_idle_one_would_be_done_with_it_sooner(
    data: st.DataObject, replicas: int, workers: int, affinity: bool, k: float
) -> None:
    """A request that would lose its cache there waits for its own worker (decision 0049)."""
    jobs = data.draw(jobs_of(workers, replicas=replicas, affinity=affinity))
    model = WaitingModel(jobs, replicas=replicas, workers=workers, k=k)

    def check() -> None:
        idle = model.idle()
        for op in model.waiting.values() if idle else ():
            assert op.worker
            if op.at_us == model.now_us:
                service_us = model.jobs[op.request_id].service_us
                waits_us = min(
                    model.held_us(slot) + us for slot, us in enumerate(service_us) if slot not in idle
                )
                assert waits_us <= min(service_us[slot] for slot in idle)

    model.run(check)
    assert model.waiting == {}


@given(st.data(), st.integers(1, 3))
def test_without_a_weight_of_work_it_is_first_come_first_served(data: st.DataObject, workers: int) -> None:
    model = WaitingModel(data.draw(jobs_of(workers)), workers=workers, k=0.0)
    model.run()
    order = [dispatch.job.arrived_us for dispatch in model.dispatches]
    assert order == sorted(order)


@given(st.data(), st.integers(1, 3))
def test_with_a_great_weight_of_work_it_is_shortest_first(data: st.DataObject, workers: int) -> None:
    model = WaitingModel(data.draw(jobs_of(workers)), workers=workers, k=1e6)
    model.run()
    for dispatch in model.dispatches:
        waits_us = [model.jobs[name].service_us[0] for name in dispatch.others]
        assert dispatch.job.service_us[0] <= min(waits_us, default=dispatch.job.service_us[0])


@given(st.data(), st.integers(1, 4), st.sampled_from((1, 5, 20)), ks)
def test_with_a_slow_log_only_tickets_that_are_under_way_are_overtaken(
    data: st.DataObject, workers: int, delay_ms: int, k: float
) -> None:
    """Four replicas differ from one queue only by operations that the others have not heard of yet.

    And by a newcomer that finds a worker idle: it goes at once, though a better request waits at a replica
    that has not yet heard that the worker is idle, or is gone.
    """
    jobs = data.draw(jobs_of(workers, replicas=4))
    model = WaitingModel(jobs, replicas=4, workers=workers, k=k, delay_us=delay_ms * MS)
    model.run()
    assert len(model.dispatches) == len(jobs)
    for dispatch in model.dispatches:
        for job in overtaken(dispatch, model):
            under_way = dispatch.at_us <= dispatch.others[job.name] + model.delay_us
            assert under_way or dispatch.at_us == dispatch.job.arrived_us


@given(st.data(), st.integers(1, 3), st.integers(0, 200), st.sampled_from((0, 1, 5)))
def test_nobody_waits_for_a_dead_replica_beyond_the_grace_time(
    data: st.DataObject, workers: int, killed_ms: int, delay_ms: int
) -> None:
    """Its tickets may be the best for every room until its heartbeat ends, a second later.

    The time begins when they are: a better one, of a living replica, may have gone elsewhere just before.
    What replicas say of it meanwhile takes up to another grace time to arrive.
    """
    jobs = data.draw(jobs_of(workers, replicas=3))
    model = WaitingModel(jobs, replicas=3, workers=workers, delay_us=delay_ms * MS)
    model.at(killed_ms * MS, lambda: model.kill(0, noticed_us=SECOND))
    idle_us: dict[int, int] = {}

    def check() -> None:
        idle = {
            slot
            for slot in model.idle()
            if not any(replica.fleet.loads.inflight_requests[slot] for replica in model.replicas[1:])
        }
        wanted = {op.worker for op in model.waiting.values()}
        idle = {slot for slot in idle if wanted & {"", worker_id(slot)}}
        for slot in idle_us.keys() - idle:
            del idle_us[slot]
        for slot in idle:
            idle_for_us = model.now_us - idle_us.setdefault(slot, model.now_us)
            assert idle_for_us <= 2 * model.grace_us + 1

    model.run(check)
    dispatched = {dispatch.job.name for dispatch in model.dispatches}
    assert {job.name for job in jobs if job.replica != 0} <= dispatched
    assert [list(replica.fleet.tickets) for replica in model.replicas[1:]] == [[], []]


@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=30),
    st.lists(st.integers(1, 60), min_size=2, max_size=30),
    st.integers(1, 8),
    st.sampled_from((0.0, 0.1)),
)
def test_flows_that_always_wait_are_served_by_their_weights(
    high_ms: list[int], low_ms: list[int], weight: int, slack_ratio: float
) -> None:
    """Up to one quantum and one request; for any keys."""
    weights = {"high": float(weight), "low": 1.0}
    jobs = [
        Job(f"{name}{number}", 1 + number, 0, (ms * MS,), f"{name}/")
        for name, drawn in (("high", high_ms), ("low", low_ms))
        for number, ms in enumerate(drawn)
    ]
    rules = FleetRules(
        weight_of=weights.__getitem__, quantum_s=1000.0 * slack_ratio, fairness_window_s=1000.0
    )
    model = WaitingModel(jobs, k=1e6, rules=rules)
    model.run()
    served_us = {"high": 0, "low": 0}
    left = {"high": len(high_ms), "low": len(low_ms)}
    longest_us = max(high_ms + low_ms) * MS
    for dispatch in model.dispatches:
        name = dispatch.job.flow.removesuffix("/")
        if dispatch.others:
            served_us[name] += dispatch.job.service_us[0]
        left[name] -= 1
        if min(left.values()) == 0:
            return
        ahead = abs(served_us["high"] / weights["high"] - served_us["low"])
        quantum = slack_ratio * sum(served_us.values()) / sum(weights.values())
        assert ahead <= quantum + longest_us
