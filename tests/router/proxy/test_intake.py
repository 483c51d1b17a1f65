import asyncio
from typing import Any

from router.proxy.intake import RESUMED_MAX, TURN_BYTES, Intake


class Client:
    """A connection's flow control."""

    def __init__(self) -> None:
        self.read_paused = False

    def pause_reading(self) -> None:
        self.read_paused = True

    def resume_reading(self) -> None:
        self.read_paused = False


class Loop:
    """Runs what it was given in the next pass."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_soon(self, callback: Any, *arguments: Any) -> None:
        self.due.append((callback, arguments))

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback, arguments in due:
            callback(*arguments)


def took(intake: Intake, client: Client, size: int, loop: Loop) -> None:
    intake.took(client, size, loop)  # type: ignore[arg-type]


def test_who_reads_within_the_bound_is_never_held() -> None:
    intake, loop, client = Intake(), Loop(), Client()
    for _ in range(3):
        took(intake, client, TURN_BYTES, loop)
        assert not client.read_paused
        loop.turn()
    assert loop.due == []


def test_beyond_the_bound_clients_wait_and_go_on_in_order_a_few_in_each_pass() -> None:
    intake, loop = Intake(), Loop()
    clients = [Client() for _ in range(RESUMED_MAX + 2)]
    for client in clients:
        took(intake, client, TURN_BYTES + 1, loop)
    assert all(client.read_paused for client in clients)

    loop.turn()
    assert [client.read_paused for client in clients] == [False] * RESUMED_MAX + [True] * 2
    took(intake, clients[0], TURN_BYTES + 1, loop)
    loop.turn()

    assert not any(client.read_paused for client in clients)
    loop.turn()
    assert loop.due == []


def test_a_client_that_is_gone_or_held_for_another_reason_is_left_alone() -> None:
    intake, loop, gone, held = Intake(), Loop(), Client(), Client()
    held.read_paused = True
    took(intake, gone, TURN_BYTES + 1, loop)
    took(intake, held, TURN_BYTES + 1, loop)
    intake.forget(gone)
    loop.turn()
    assert (gone.read_paused, held.read_paused) == (True, True)


async def test_uploads_of_many_clients_all_arrive() -> None:
    """Each reads as fast as it is let, on the real loop."""
    intake, loop = Intake(), asyncio.get_running_loop()

    async def read(client: Client) -> int:
        read_bytes = 0
        while read_bytes < 4 * TURN_BYTES:
            if not client.read_paused:
                intake.took(client, TURN_BYTES // 4, loop)
                read_bytes += TURN_BYTES // 4
            await asyncio.sleep(0)
        return read_bytes

    async with asyncio.timeout(60):
        assert await asyncio.gather(*(read(Client()) for _ in range(20))) == [4 * TURN_BYTES] * 20
