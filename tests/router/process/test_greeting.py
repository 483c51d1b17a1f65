"""A process's first log line, in fields and in one line for operators."""

import pytest

from router.process.greeting import console_url, data_url, greeting, processes_greeting
from router.settings import Settings


def settings(**sections: object) -> Settings:
    return Settings.model_validate(sections)


def test_one_line_has_address_console_policy_and_workers() -> None:
    fields = greeting(settings(server={"host": "10.0.0.1", "port": 8000}), "r1", 3, 2)

    assert fields["plain"].split(" ", 2)[2] == (
        "serves http://10.0.0.1:8000, console http://127.0.0.1:29100/, policy expected_cost, "
        "3 workers (2 healthy)"
    )
    assert (fields["address"], fields["workers"], fields["workers_healthy"]) == ("http://10.0.0.1:8000", 3, 2)
    assert greeting(settings(), "r1", 0, 0)["plain"].endswith("expected_cost, 0 workers")


def test_several_processes_have_one_line_of_their_owner() -> None:
    assert "in 4 processes, console" in processes_greeting(settings(server={"workers": 4}))["plain"]


@pytest.mark.parametrize(
    ("sections", "data", "console"),
    [
        ({}, "http://0.0.0.0:30000", "http://127.0.0.1:29100/"),
        ({"admin": {"port": 0}}, "http://0.0.0.0:30000", "http://127.0.0.1:30000/"),
        ({"server": {"host": "::"}, "admin": {"port": 0}}, "http://[::]:30000", "http://[::1]:30000/"),
        (
            {"server": {"ssl_certfile": "a", "ssl_keyfile": "b"}},
            "https://0.0.0.0:30000",
            "http://127.0.0.1:29100/",
        ),
    ],
)
def test_addresses_can_be_opened(sections: dict[str, object], data: str, console: str) -> None:
    assert (data_url(settings(**sections)), console_url(settings(**sections))) == (data, console)
