"""``docs/runtime-settings.md``: its commands work as they stand, and its table is complete."""

import re
import shlex
from pathlib import Path
from typing import Any

from fakes.running import Fleet, RunningGateway

from loadtest.processes import free_port
from router.catalogue import CATALOGUE

PAGE = (Path(__file__).parents[2] / "docs" / "runtime-settings.md").read_text()
LIVE = {key for key, row in CATALOGUE.items() if row.live}


def commands() -> list[list[str]]:
    """The words of each command of the page, in order."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


async def curl(gateway: RunningGateway, words: list[str], change_id: str) -> dict[str, Any]:
    """Do what a command line of curl says, at the admin API of a gateway."""
    assert words[:2] == ["curl", "-s"]
    method, body, headers, url = "GET", None, {}, ""
    rest = iter(words[2:])
    for word in rest:
        match word:
            case "-X":
                method = next(rest)
            case "-d":
                body = next(rest).replace("CHANGE_ID", change_id)
            case "-H":
                name, value = next(rest).split(": ")
                headers[name] = value
            case _:
                url = word
    assert url.startswith("http://127.0.0.1:29100/"), "where the admin API listens by default"
    port = gateway.process.settings.admin.port
    answer = await gateway.client.request(
        method, url.replace(":29100", f":{port}"), content=body, headers=headers
    )
    assert answer.status_code == 200, (words, answer.text)
    told: dict[str, Any] = answer.json()
    return told


async def test_the_commands_of_the_page_work_as_they_stand(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, admin={"port": free_port()})
    change_id, said = "", []
    for words in commands():
        told = await curl(gateway, words, change_id)
        if told.get("change_id"):
            change_id = change_id or told["change_id"]
            said.append(gateway.process.settings)
    assert len(said) == 4
    policies = [(settings.placement.policy, settings.queue.size) for settings in said]
    assert policies == [
        ("min_ttft", 500),
        ("affinity", 500),
        ("expected_cost", 500),
        ("expected_cost", 10_000),
    ]


def test_the_page_tells_what_every_live_setting_does_and_of_no_other() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE)
    assert set(re.findall(r"`([a-z_]+\.[a-z0-9_]+)`", "".join(rows))) == LIVE
