"""The process, and engines of other processes that share it."""

import asyncio
import re
import sys
from typing import Any

import httpx
import pytest

from loadtest.engine.link.__main__ import main

KV_BOTH = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
ENGINE = "import sys; from loadtest.engine.cli import main; sys.exit(main(sys.argv[1:]))"


async def launch(*arguments: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line = (await process.stdout.readline()).decode()
    return process, re.findall(r"http://\S+", line)[0]


async def test_engines_of_several_processes_share_a_link() -> None:
    """A NIXL and a SGLang pair; the KV of both prompts goes over the link, and none does without it."""
    link, link_url = await launch("-m", "loadtest.engine.link", "--gbps", "1000", "--rtt-ms", "2")
    vllm = ("-c", ENGINE, "--dialect", "vllm", "--side-channel-port", "0", "--kv-transfer-config", KV_BOTH)
    sglang = ("-c", ENGINE, "--disaggregation-bootstrap-port", "0", "--disaggregation-mode")
    over = ("--kv-link", link_url)
    started = [await launch(*vllm, *over), await launch(*vllm)]
    started += [await launch(*sglang, "prefill", *over), await launch(*sglang, "decode")]
    body = {"prompt": "word " * 200, "max_tokens": 4, "ignore_eos": True}
    try:
        giver, fetcher, prefill, decode = (url + "/v1/completions" for _, url in started)
        async with httpx.AsyncClient(timeout=20) as client:
            ask = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}
            params = (await client.post(giver, json=body | ask)).json()["kv_transfer_params"]
            answer = await client.post(fetcher, json=body | {"kv_transfer_params": params})
            assert answer.json()["usage"]["completion_tokens"] == 4
            pulled = (await client.get(f"{link_url}/_stats")).json()
            assert pulled["arrived"] == 1

            info = (await client.get(f"{started[2][1]}/server_info")).json()
            room = {"bootstrap_host": "127.0.0.1", "bootstrap_room": 5}
            legs = body | room | {"bootstrap_port": info["disaggregation_bootstrap_port"]}
            answers = await asyncio.gather(*(client.post(url, json=legs) for url in (prefill, decode)))
            assert [answer.status_code for answer in answers] == [200, 200]
            stats = (await client.get(f"{link_url}/_stats")).json()
            assert (stats["arrived"], stats["under_way"]) == (2, 0)
            assert stats["sent_bytes"] == pytest.approx(2 * pulled["sent_bytes"], rel=1e-6)

            await client.post(f"{link_url}/_fault", json={"kind": "dead"})
            answers = await asyncio.gather(
                *(client.post(url, json=legs | {"bootstrap_room": 6}) for url in (prefill, decode))
            )
            assert [answer.status_code for answer in answers] == [500, 500]
            states = [(await client.get(f"{url}/_stats")).json() for _, url in started[2:]]
            assert [
                (state["handover"], state["held"], state["cache"]["used_tokens"]) for state in states
            ] == [
                ({"rooms": 0}, 0, 0),
                ({"receiving": 0}, 0, 0),
            ]
    finally:
        for process in (link, *(process for process, _ in started)):
            process.terminate()
            await process.wait()
    assert link.returncode == 0


@pytest.mark.parametrize("wrong", [["--gbps", "0"], ["--rtt-ms", "-1"]])
def test_a_link_that_cannot_be_is_refused(wrong: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(wrong)
    assert "--gbps must be above 0" in capsys.readouterr().err
