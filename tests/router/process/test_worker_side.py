"""Connections to workers and their checks, by the settings."""

from typing import Any

from fakes.process import built, settings

from policies import Circuit
from router.proxy import Header, RequestHead


async def test_a_worker_is_ejected_after_the_configured_failures() -> None:
    process = await built(fleet={"worker_urls": ["http://a:1"]}, reliability={"cb_failure_threshold": 2})
    (local,) = process.registry.all()
    for _ in range(2):
        assert process.registry.circuits.state(local) is Circuit.CLOSED
        process.registry.circuits.failed(local, 1, 1, "upstream_timeout")
    assert process.registry.circuits.state(local) is Circuit.OPEN


async def test_the_circuit_breaker_can_be_turned_off() -> None:
    sections: dict[str, Any] = {
        "fleet": {"worker_urls": ["http://a:1"]},
        "reliability": {"disable_circuit_breaker": True},
    }
    process = await built(**sections)
    (local,) = process.registry.all()
    for _ in range(1000):
        process.registry.circuits.failed(local, 1, 1, "upstream_timeout")
    assert process.registry.circuits.state(local) is Circuit.CLOSED


async def test_connections_to_workers_are_bounded_in_time_by_the_settings() -> None:
    process = await built(
        fleet={"worker_urls": ["http://a:1"]},
        upstream={"connect_timeout_s": 1, "first_byte_timeout_s": 2, "idle_timeout_s": 3},
    )
    rules = process.registry.all()[0].pool.rules
    assert (rules.connect_timeout_s, rules.first_byte_timeout_s, rules.idle_timeout_s) == (1, 2, 3)


class Unheard:
    """A sink that drops all it gets."""

    def upstream_head(self, status: int, headers: list[Header], length: int | None) -> None: ...

    def upstream_data(self, data: bytes) -> None: ...

    def upstream_end(self) -> None: ...

    def upstream_failed(self, error: Exception) -> None: ...


async def test_as_many_requests_wait_for_a_worker_as_it_may_have_connections() -> None:
    process = await built(fleet={"worker_urls": ["http://127.0.0.1:1"]}, upstream={"connections_max": 3})
    pool = process.registry.all()[0].pool
    for _ in range(5):
        pool.send(RequestHead(b"GET", b"/"), b"", (), Unheard())
    assert pool.waiting == 3
    pool.close()


async def test_workers_that_come_later_have_the_connections_of_the_newest_settings() -> None:
    process = await built()
    process.workers.use(settings(upstream={"connect_timeout_s": 9, "connections_max": 3}))
    process.registry.add("http://a:1")
    (local,) = process.registry.all()
    assert (local.pool.rules.connect_timeout_s, local.pool.rules.connections_max) == (9, 3)
