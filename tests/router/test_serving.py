"""How a process is configured. Its whole life, with signals and siblings, is in the integration tests."""

import contextlib
import pickle
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uvicorn.config import STARTUP_FAILURE

from loadtest.processes import free_port
from router.errors import SettingsError, StateError
from router.gateway import Gateway
from router.open_files import OpenFiles
from router.serving import GatewayConfig, bound, serve
from router.settings import Settings
from router.sources import Loaded

NOWHERE = "redis://127.0.0.1:1"


def settings(**sections: dict[str, Any]) -> Settings:
    return Settings.model_validate({"admin": {"port": 0}, **sections})


def loaded(**sections: dict[str, Any]) -> Loaded:
    return Loaded(settings(**sections), {})


@pytest.fixture
def signals() -> Iterator[None]:
    """`serve` handles SIGTERM; the test run does so in its own way."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_configuration_travels_to_other_processes_whole() -> None:
    """Secrets too, which hide when they are printed."""
    given = settings(
        server={"port": 31000, "workers": 3, "api_key": "ours"}, fleet={"worker_urls": ["http://a:1"]}
    )
    arrived = pickle.loads(pickle.dumps(given))
    assert arrived == given
    assert arrived.server.api_key.get_secret_value() == "ours"


def test_what_uvicorn_does_is_in_the_settings() -> None:
    config = GatewayConfig(
        settings(server={"host": "127.0.0.2", "port": 31000, "keepalive_s": 7}),
        NOWHERE,
    )
    assert (config.host, config.port) == ("127.0.0.2", 31000)
    assert config.timeout_keep_alive == 7
    assert config.timeout_graceful_shutdown is None, "the server ends what lasts too long, and says so"
    assert not config.access_log
    assert not config.proxy_headers


async def test_the_gateway_is_built_in_the_process_that_serves() -> None:
    config = GatewayConfig(settings(fleet={"worker_urls": ["http://a:1"]}), NOWHERE, OpenFiles(7))
    assert not hasattr(config, "process")
    config.load()
    assert config.http_protocol_class is config.process.protocol
    assert [local.worker.worker_id for local in config.process.registry.all()] == ["a:1"]
    assert isinstance(config.process.gateway, Gateway)


async def test_a_gateway_that_cannot_be_built_ends_its_process_for_good(tmp_path: Path) -> None:
    """Not with a status that a supervisor answers by starting it again."""
    config = GatewayConfig(settings(upstream={"ca_file": str(tmp_path / "missing.pem")}), NOWHERE)
    with pytest.raises(SystemExit) as caught:
        config.load()
    assert caught.value.code == STARTUP_FAILURE


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_that_is_taken_is_a_failed_start(signals: None, workers: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status = serve(loaded(server={"host": "127.0.0.1", "port": port, "workers": workers}))
    assert status == STARTUP_FAILURE


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_of_the_admin_api_that_is_taken_is_a_failed_start(signals: None, workers: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = {"host": "127.0.0.1", "port": free_port(), "workers": workers}
        status = serve(loaded(server=server, admin={"port": taken.getsockname()[1]}))
    assert status == STARTUP_FAILURE


def test_a_port_that_is_taken_is_an_error_that_says_which_flag_sets_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StateError, match=r"already in use; stop .* another port with --admin-port"):
            bound("127.0.0.1", port, "--admin-port")


def test_the_limit_of_open_files_is_raised_before_anything_is_opened(signals: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            serve(loaded(server={"host": "127.0.0.1", "port": taken.getsockname()[1]}))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_processes_that_share_a_port_each_get_a_part_of_a_burst() -> None:
    """Of 64 connections none gets fewer than 5, if the kernel draws, once in ten thousand million runs."""
    where = "127.0.0.1", free_port()
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(bound(*where, shared=True))
        listeners = [stack.enter_context(bound(*where, shared=True)) for _ in range(2)]
        for listener in listeners:
            listener.listen(64)
            listener.setblocking(False)
        for _ in range(64):
            stack.enter_context(socket.create_connection(holder.getsockname()))
        accepted = []
        for listener in listeners:
            accepted.append(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    stack.enter_context(listener.accept()[0])
                    accepted[-1] += 1
    assert sum(accepted) == 64, "the one that does not listen gets none"
    assert min(accepted) >= 5


def test_a_shared_port_is_not_shared_with_another_gateway(signals: None) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = {"host": "127.0.0.1", "port": other.getsockname()[1], "workers": 2}
        assert serve(loaded(server=server)) == STARTUP_FAILURE


def test_a_tls_file_that_cannot_be_used_is_found_before_anything_starts(
    signals: None, tmp_path: Path
) -> None:
    files = {"ssl_certfile": str(tmp_path / "no.pem"), "ssl_keyfile": str(tmp_path / "no.key")}
    port = free_port()
    with pytest.raises(SettingsError, match=r"no\.pem"):
        serve(loaded(server={"host": "127.0.0.1", "port": port, **files}))
