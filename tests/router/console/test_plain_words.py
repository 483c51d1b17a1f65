from dataclasses import fields

import pytest

from router.console import Conditions, Trouble, Troubles, WorkerFacts, troubles


def worker(name: str, *, state: str = "healthy", circuit: str = "closed") -> WorkerFacts:
    return WorkerFacts(0, name, "plain", "", "", state, circuit, "sglang", (), 1)


WELL = [worker("w1"), worker("w2")]


def said(conditions: Conditions, workers: list[WorkerFacts] = WELL) -> dict[str, Trouble]:
    return {each.code: each for each in troubles(conditions, workers)}


def test_nothing_is_said_of_a_fleet_that_is_well() -> None:
    assert said(Conditions(links={"a>b": "scarce"}, lag_s=0.1, buffered_ops=3)) == {}


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (Conditions(redis="refused"), "redis"),
        (Conditions(warming=("snapshot", 0.4)), "warming"),
        (Conditions(dropped_ops=3), "dropped"),
        (Conditions(lag_s=9.0), "lag"),
        (Conditions(keys="line 3"), "keys"),
        (Conditions(limits="silent"), "limits"),
        (Conditions(rejected_per_s=0.5), "rejecting"),
        (Conditions(failed_per_s=4.0), "failing"),
        (Conditions(links={"a>b": "down"}), "link:a>b"),
        (Conditions(ending=True), "ending"),
        (Conditions(lost_replicas=("gw-2",)), "replica:gw-2"),
        (Conditions(refused_ratio=0.6), "refusing"),
        (Conditions(other=(("settings", "A setting cannot be applied."),)), "settings"),
    ],
)
def test_each_condition_is_told_in_a_sentence_of_its_own(conditions: Conditions, code: str) -> None:
    found = said(conditions)

    assert list(found) == [code]
    assert found[code].what.endswith((".", ")")) or conditions.keys
    assert found[code].severity in ("critical", "warning", "notice")


def test_every_condition_that_there_is_can_be_told() -> None:
    """But how many operations wait, which says something only beside a lost Redis."""
    told = {"redis", "warming", "dropped_ops", "lag_s", "keys", "limits", "rejected_per_s", "failed_per_s"}
    told |= {"refused_ratio", "lost_replicas"}
    assert {field.name for field in fields(Conditions)} == {*told, "links", "ending", "other", "buffered_ops"}


def test_without_redis_it_says_that_requests_are_served() -> None:
    trouble = said(Conditions(redis="connection refused"))["redis"]

    assert trouble.what == "Replicas do not share their state: connection refused."
    assert "Requests are served" in trouble.effect
    assert trouble.severity == "warning"


def test_some_refused_requests_are_single_clients_mistakes() -> None:
    assert said(Conditions(refused_ratio=0.5)) == {}
    assert (
        said(Conditions(refused_ratio=0.51))["refusing"].what == "Workers refuse 51 % of the requests (4xx)."
    )


def test_workers_that_do_not_answer_are_named_and_the_rest_counted() -> None:
    unwell = [worker(f"w{number}", state="unhealthy") for number in range(6)]

    what = said(Conditions(), [*WELL, *unwell])["unhealthy"].what

    assert what == "6 of 8 workers do not answer health checks: w0, w1, w2, w3 and 2 more."


def test_an_ejected_worker_is_named() -> None:
    found = said(Conditions(), [*WELL, worker("bad", circuit="open")])

    assert found["ejected"].what == "Requests failed on bad: ejected."


@pytest.mark.parametrize(
    ("workers", "code"), [([], "no_workers"), ([worker("w", state="draining")], "no_healthy_worker")]
)
def test_a_fleet_that_takes_no_requests_is_critical(workers: list[WorkerFacts], code: str) -> None:
    assert said(Conditions(), workers)[code].severity == "critical"


def test_a_trouble_keeps_the_time_at_which_it_began_and_the_worst_comes_first() -> None:
    watch = Troubles()
    watch.look(Conditions(redis="refused"), WELL, 100.0)

    worse = watch.look(Conditions(redis="timeout", failed_per_s=2.0), WELL, 130.0)
    assert [(each["code"], each["since_unix_s"]) for each in worse] == [("failing", 130.0), ("redis", 100.0)]

    assert watch.look(Conditions(), WELL, 140.0) == []
    assert watch.look(Conditions(redis="refused"), WELL, 150.0)[0]["since_unix_s"] == 150.0
