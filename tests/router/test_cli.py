"""The command line: what each command prints, runs and returns."""

import re
import shlex
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from router import cli
from router.metric_families import metrics_reference
from router.peers import peers_reference
from router.reference import configuration_reference
from router.settings import Settings
from router.sources import Loaded


class Program:
    """Runs the command line and remembers what it started."""

    def __init__(self) -> None:
        self.served: list[Settings] = []
        self.tool_arguments: list[str] | None = None

    def __call__(self, *argv: str, environ: Mapping[str, str] | None = None) -> int:
        tools = {"engine": (self._tool, "emulated engines"), "demo": (self._broken_tool, "demo")}
        return cli.main(argv, environ or {}, serve=self._serve, tools=tools)

    def _serve(self, loaded: Loaded) -> int:
        self.served.append(loaded.settings)
        return 0

    def _tool(self, argv: list[str]) -> int:
        self.tool_arguments = argv
        return 7

    def _broken_tool(self, argv: list[str]) -> int:
        raise ModuleNotFoundError(f"No module named {argv[0]!r}", name=argv[0])


@pytest.fixture
def program() -> Program:
    return Program()


def test_serve_runs_the_gateway_with_the_effective_settings(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("placement: {policy: random}\n")
    arguments = ["--config", str(file), "--port", "1001", "--worker-urls", "http://a:1", "http://b:2"]
    assert program("serve", *arguments, environ={"CACHEWAY_WORKERS": "2"}) == 0
    (settings,) = program.served
    assert (settings.server.port, settings.server.workers, settings.placement.policy) == (1001, 2, "random")
    assert settings.fleet.worker_urls == ("http://a:1", "http://b:2")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (
            (
                "--pd-disaggregation --prefill http://a:1 8998 --prefill http://b:1 none "
                "--decode http://d:1 --decode http://e:1 "
                "--prefill-policy cache_aware --decode-policy power_of_two"
            ),
            [
                ("http://a:1", "prefill", {"bootstrap_port": "8998"}),
                ("http://b:1", "prefill", {}),
                ("http://d:1", "decode", {}),
                ("http://e:1", "decode", {}),
            ],
        ),
        (
            "--vllm-pd-disaggregation --prefill http://a:1 --decode http://d:1 --kv-connector mooncake",
            [
                ("http://a:1", "prefill", {"handover": "mooncake"}),
                ("http://d:1", "decode", {"handover": "mooncake"}),
            ],
        ),
        (
            "--worker-urls http://p:1 --prefill http://a:1 site=far --decode http://d:1",
            [
                ("http://p:1", "plain", {}),
                ("http://a:1", "prefill", {"site": "far"}),
                ("http://d:1", "decode", {}),
            ],
        ),
    ],
)
def test_command_lines_of_the_peers_name_prefill_and_decode_workers(
    program: Program, command: str, named: list[tuple[str, str, dict[str, str]]]
) -> None:
    """As in the READMEs of sglang-router and vllm-router, and both kinds of workers in one gateway."""
    assert program("serve", *command.split()) == 0
    (settings,) = program.served
    assert [(each.url, each.role, each.labels) for each in settings.fleet.workers] == named


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("--prefill http://a:1 99999 --decode http://d:1", "bootstrap_port '99999' is not a port"),
        ("--prefill http://a:1 --decode http://a:1", "http://a:1 is named twice, as prefill and decode"),
        ("--pd-disaggregation --prefill http://a:1", "needs decode workers; name them with --decode URL"),
        ("--prefill http://user:hunter2@a:1", "must not hold a user name or password"),
        ("--kv-connector moriio", "give one of nixl, mooncake"),
    ],
)
def test_prefill_and_decode_workers_that_cannot_work_stop_the_start(
    program: Program, capsys: pytest.CaptureFixture[str], command: str, sentence: str
) -> None:
    assert program("serve", *command.split()) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "hunter2" not in said
    assert program.served == []


def test_the_same_workers_can_come_from_the_environment_or_a_file(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("fleet: {prefill: [http://a:1 9 site=x, http://b:1]}\n")
    environ = {"CACHEWAY_DECODE": "http://d:1, http://e:1 convertible=true"}
    assert program("serve", "--config", str(file), environ=environ) == 0
    fleet = program.served[0].fleet
    assert fleet.prefill == ("http://a:1 bootstrap_port=9 site=x", "http://b:1")
    assert fleet.decode == ("http://d:1", "http://e:1 convertible=true")


def test_the_page_on_disaggregation_shows_commands_and_settings_that_work(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "disaggregation.md").read_text()
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)):
        (tmp_path / "two-sites.yaml").write_text(block)
        assert program("config", "--config", str(tmp_path / "two-sites.yaml")) == 0, number
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^cacheway serve (.+)$", page, re.MULTILINE)
    for command in commands:
        assert program("serve", *shlex.split(command)) == 0, command
    assert len(program.served) == len(commands) == 5
    *_, two_sites, encoders = (served.fleet for served in program.served)
    assert two_sites.links["dc2>dc1"].gbps == 10
    assert len(encoders.encode) == 2


def test_wrong_settings_stop_the_start_with_status_2(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program("serve", "--port", "0", environ={"CACHEWAY_WORKERS": "x"}) == 2
    assert program.served == []
    workers, port = sorted(capsys.readouterr().err.splitlines())
    assert workers.startswith(
        "cacheway: environment CACHEWAY_WORKERS: 'x' is not allowed for server.workers;"
    )
    assert port.startswith("cacheway: flag --port: '0' is not allowed for server.port;")


def test_config_prints_the_effective_settings(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert program("config", "--port", "1001") == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["server"]["port"] == 1001
    assert "# flag --port" in text
    assert program.served == []


def test_config_checks_the_settings_like_serve(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert program("config", "--port", "0") == 2
    assert "server.port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "page"),
    [
        ("--reference", configuration_reference),
        ("--metrics-reference", metrics_reference),
        ("--peers-reference", peers_reference),
    ],
)
def test_config_writes_the_reference_pages(
    program: Program, capsys: pytest.CaptureFixture[str], flag: str, page: Callable[[], str]
) -> None:
    assert program("config", flag) == 0
    assert capsys.readouterr().out == page()


def test_the_version_is_the_distributions(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert program("version") == 0
    with pytest.raises(SystemExit, match="0"):
        program("--version")
    assert capsys.readouterr().out.split() == [version("cacheway")] * 2


@pytest.mark.parametrize("command", ["serve", "config"])
def test_help_all_shows_what_help_leaves_out(
    program: Program, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    texts = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as caught:
            program(command, flag)
        assert caught.value.code == 0
        texts.append(capsys.readouterr().out)
    assert ["--slow-start-secs" in text for text in texts] == [False, True]
    assert "--help-all shows" in texts[0]


def test_without_a_command_the_help_is_printed(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert program() == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("serve", "config", "version", "engine", "demo"))


def test_an_unknown_command_is_refused(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        program("sever")
    assert end.value.code == 2
    assert "serve" in capsys.readouterr().err


def test_a_tool_gets_its_arguments_untouched(program: Program) -> None:
    assert program("engine", "--port", "1", "--help") == 7
    assert program.tool_arguments == ["--port", "1", "--help"]


def test_a_tool_whose_extra_is_missing_says_what_to_install(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gateway's image lacks the whole package, a plain wheel what the package needs."""
    for missing in ("rich", "loadtest"):
        assert program("demo", missing) == 2
        assert "needs the extra loadtest" in capsys.readouterr().err


def test_a_missing_module_of_our_own_is_not_mistaken_for_a_missing_extra(program: Program) -> None:
    with pytest.raises(ModuleNotFoundError):
        program("demo", "loadtest.nothing")
