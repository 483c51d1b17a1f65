"""A client as a child, through a real gateway with emulated engines behind it."""

import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import httpx
import pytest
import pytest_asyncio
from fakes.running import FAST_ENGINE, Fleet

from loadtest.bench.clients.client import Install, Load, Report, ReportUnreadable
from loadtest.bench.clients.field import CLIENTS
from loadtest.bench.clients.gateway_view import GatewayView, percentile
from loadtest.bench.clients.run import ClientFailed, run

PYTHON = Path(sys.executable)
ENGINE = replace(FAST_ENGINE, dialect="vllm")


@pytest_asyncio.fixture
async def fleet(redis_url: str, namespace: str) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        yield Fleet(redis_url, namespace, stack)


@dataclass(frozen=True)
class Script:
    """A client that is a line of Python; its report says nothing."""

    code: str
    writes: bool = True
    name: str = "script"
    install: Install = field(default_factory=lambda: Install("", "python"))
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def command(self, program: Path, load: Load, folder: Path) -> list[str]:
        return [str(program), "-c", self.code]

    def read(self, folder: Path) -> Report:
        if not self.writes:
            raise ReportUnreadable("nothing was written")
        return Report(0, 0, None)


async def test_client_gateway_and_engines_say_the_same(fleet: Fleet, tmp_path: Path) -> None:
    """Prompts have equal beginnings, so that some of each is cached; only a real engine has such times."""
    engines = [await fleet.engine(ENGINE) for _ in range(2)]
    gateway = await fleet.gateway(*(engine.url for engine in engines), placement={"block_tokens": 16})
    load = Load(gateway.url, ENGINE.models[0], tmp_path, requests=12, concurrency=3)
    with GatewayView(gateway.url) as view:
        compared = await run(CLIENTS["openai-sdk"], PYTHON, load, view, tmp_path, 60.0)
    assert compared.disagreements == compared.engine_disagreements == []
    report, counted = compared.report, compared.counted
    assert report.completed == 12
    assert (report.prompt_tokens or 0) > (report.cached_tokens or 0) > 0
    for theirs_s, ours_s in (
        (report.ttft_s, counted.ttft_s),
        (report.ttft_p50_s, counted.ttft_p50_s),
        (report.ttft_p90_s, counted.ttft_p90_s),
    ):
        assert theirs_s is not None
        assert ours_s is not None
        assert theirs_s > ours_s > 0


@pytest.mark.parametrize(
    ("client", "timeout_s", "said"),
    [
        (Script("print('about me'); raise SystemExit(3)"), 60.0, r"status 3\n(?s:.*)about me"),
        (Script("print('about me')", writes=False), 60.0, r"status 0: nothing was written\n(?s:.*)about me"),
        (Script("import time; time.sleep(1000)"), 0.05, "longer than 0.05 s"),
    ],
)
async def test_a_client_that_fails_says_so(
    fleet: Fleet, tmp_path: Path, client: Script, timeout_s: float, said: str
) -> None:
    gateway = await fleet.gateway()
    with GatewayView(gateway.url) as view:
        with pytest.raises(ClientFailed, match=said):
            await run(client, PYTHON, Load(gateway.url, "m", tmp_path), view, tmp_path, timeout_s)
        with pytest.raises(ClientFailed, match="status 127"):
            await run(client, tmp_path / "nobody", Load(gateway.url, "m", tmp_path), view, tmp_path, 60.0)


def test_a_gateway_that_is_not_there_is_an_error_of_http() -> None:
    with GatewayView("http://127.0.0.1:9") as view, pytest.raises(httpx.HTTPError):
        view.mark()


def test_percentiles_are_those_of_numpy() -> None:
    """numpy.percentile([1, 2, 3, 4], 90) is 3.7."""
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([4, 1, 3, 2], 90) == pytest.approx(3.7)
    assert percentile([5], 90) == 5
    assert percentile([], 90) is None
