"""A replica is seen by its process, its log and its admin API."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from loadtest.fuzz.stage import Gateway, Stage, ViewFailed
from loadtest.processes import Child


def gateway(tmp_path: Path, answer: httpx.Response) -> Gateway:
    child = SimpleNamespace(pid=os.getpid(), log=tmp_path / "log")
    made = Gateway("gateway-0", cast(Child, child), {"data": 1, "admin": 2})
    transport = httpx.MockTransport(lambda _: answer)
    made.client = httpx.AsyncClient(transport=transport, base_url="http://a")
    made.admin = httpx.AsyncClient(transport=transport, base_url="http://a")
    return made


def test_whole_lines_of_the_log_are_read_once(tmp_path: Path) -> None:
    one = gateway(tmp_path, httpx.Response(200))
    one.child.log.write_bytes(b"a\nb")
    assert one.new_lines() == [b"a"]
    one.child.log.write_bytes(b"a\nbc\n")
    assert one.new_lines() == [b"bc"]
    assert one.new_lines() == []


def test_memory_and_files_are_those_of_the_process(tmp_path: Path) -> None:
    one = gateway(tmp_path, httpx.Response(200))
    assert one.alive
    assert one.resident_bytes > 1 << 20
    before = one.files
    with (tmp_path / "x").open("w"):
        assert one.files == before + 1


async def test_a_metric_is_summed_over_its_labels(tmp_path: Path) -> None:
    text = '# HELP a b\na{x="1"} 2.0\na{x="2"} 3\nab 7\n'
    one = gateway(tmp_path, httpx.Response(200, text=text))
    assert await one.metric("a") == 5.0
    assert await one.metric("ab") == 7.0
    assert await one.metric("none") == 0.0
    await one.close()


async def test_a_view_that_fails_is_told(tmp_path: Path) -> None:
    one = gateway(tmp_path, httpx.Response(500, text="oops"))
    with pytest.raises(ViewFailed, match="GET /workers is 500: oops"):
        await one.view("/workers")
    assert await gateway(tmp_path, httpx.Response(200, json=[1])).view("/workers") == [1]


def test_a_stage_starts_nothing_before_it_is_entered(tmp_path: Path) -> None:
    assert not Stage(tmp_path).gateways
    assert not list(tmp_path.iterdir())
