"""Command lines of other routers, flag by flag, through ``cacheway config``."""

import re
from pathlib import Path

import pytest

from router import cli
from router.catalogue import CATALOGUE
from router.peers import ANSWERS, FLAGS
from router.peers.policies import DECODE_NAMES, POLICY_NAMES
from router.sources import Loaded

OURS = {row.flag: row for row in CATALOGUE.values()}
RELEASED = [
    line.split()
    for line in (Path(__file__).parent / "flags.txt").read_text().splitlines()
    if not line.startswith("#")
]
PAIR = ["--prefill", "http://p:1", "--decode", "http://d:1"]
BESIDE = {
    "--pd-disaggregation": PAIR,
    "--vllm-pd-disaggregation": PAIR,
    "--service-discovery": ["--selector", "a=b"],
    "--discovery-provider": ["--selector", "a=b"],
    "--tls-cert-path": ["--tls-key-path", "k"],
    "--tls-key-path": ["--tls-cert-path", "c"],
    "--client-cert-path": ["--client-key-path", "k"],
    "--client-key-path": ["--client-cert-path", "c"],
}
"""Flags that a flag needs beside it, in both programs."""

SAMPLES = {
    "--worker-urls": "http://w:1",
    "--prefill": "http://p:1",
    "--decode": "http://d:1",
    "--encode": "http://e:1",
    "--selector": "a=b",
    "--prefill-selector": "a=b",
    "--decode-selector": "a=b",
    "--encode-selector": "a=b",
    "--redis-url": "redis://r:1",
    "--discovery-provider": "kubernetes",
    "--request-id-headers": "x-id",
}


LINE = """
serve --host 127.0.0.1 --port 30001 --policy cache_aware
--worker-urls http://a:1 http://b:1 --cache-threshold 0.5 --balance-abs-threshold 2
--balance-rel-threshold 1.2 --max-tree-size 1000 --worker-startup-check-interval 1 --retry-max-retries 3
--retry-initial-backoff-ms 10 --cb-window-duration-secs 5 --client-cert-path c --client-key-path k
--ca-cert-paths ca.pem --tls-cert-path=x --tls-key-path=y
"""
"""Flags that sglang-router's own tests pass, beside each other."""


def line_of(flag: str, values: str, sample: str) -> list[str]:
    line = [flag] if values == "none" else [flag, SAMPLES.get(flag, sample)]
    return [*line, *BESIDE.get(flag, ())]


def run(argv: list[str], environ: dict[str, str] | None = None) -> tuple[int, list[Loaded]]:
    got: list[Loaded] = []

    def serve(loaded: Loaded) -> int:
        got.append(loaded)
        return 0

    return cli.main(argv, environ or {}, serve=serve, tools={}), got


@pytest.mark.parametrize(
    ("peer", "version", "flag", "values", "sample"), RELEASED, ids=[f"{row[0]} {row[2]}" for row in RELEASED]
)
def test_every_flag_of_a_released_router_is_taken_accepted_or_refused_with_a_sentence(
    peer: str, version: str, flag: str, values: str, sample: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = FLAGS.get(flag)
    try:
        status = cli.main(
            ["config", *line_of(flag, values, sample)],
            {},
            serve=lambda _: pytest.fail("it started"),
            tools={},
        )
    except SystemExit as ended:
        status = int(ended.code or 0)
    said = capsys.readouterr()
    if row is None:
        assert (flag in OURS, status, "did you mean" in said.err) == (True, 0, False), said.err
        return
    assert peer in row.peers
    assert row.values == values
    assert version
    if row.verdict == "refused":
        assert status == 2
        assert f"there is no flag {flag}; {row.says}" in said.err
        return
    assert status == 0, said.err
    assert flag in said.err
    assert said.err.count("\n") == 1
    (kind,) = re.findall(r"taken as others|without effect", said.err.replace(" here", ""))[:1] or [""]
    options = row.ours.endswith("=")
    assert kind == ("without effect" if row.verdict == "accepted" or options else "taken as others")


def test_a_command_line_of_sglang_router_keeps_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    """The flags that its own tests pass, beside each other."""
    status, (loaded,) = run(LINE.split())
    settings = loaded.settings
    assert status == 0
    assert capsys.readouterr().err == ""
    assert settings.placement.policy_options == {
        "cache_threshold": 0.5,
        "balance_abs_threshold": 2.0,
        "balance_rel_threshold": 1.2,
    }
    assert settings.fleet.worker_urls == ("http://a:1", "http://b:1")
    assert (settings.upstream.client_cert, settings.upstream.client_key) == ("c", "k")
    assert (settings.upstream.ca_file, settings.server.ssl_certfile, settings.server.ssl_keyfile) == (
        "ca.pem",
        "x",
        "y",
    )
    assert "--retry-initial-backoff-ms (a failed attempt goes to another worker at once" in loaded.note
    assert loaded.note.count("flags of another router") == 1


@pytest.mark.parametrize("flag", ["--policy", "--prefill-policy", "--decode-policy"])
@pytest.mark.parametrize("name", POLICY_NAMES)
def test_names_of_policies_become_ours_with_a_word_of_it(flag: str, name: str) -> None:
    status, (loaded,) = run(["serve", flag, name])
    names = DECODE_NAMES if flag == "--decode-policy" else POLICY_NAMES
    key = flag.removeprefix("--").replace("-", "_")
    assert status == 0
    assert getattr(loaded.settings.placement, key) == names[name][0]
    assert f"policy {name} as {names[name][0]}" in loaded.note


def test_an_option_goes_to_a_policy_of_the_environment_too() -> None:
    status, (loaded,) = run(["serve", "--prefix-hash-load-factor", "2"], {"CACHEWAY_POLICY": "prefix_hash"})
    assert status == 0
    assert loaded.settings.placement.policy_options == {"load_factor": 2.0}


def test_the_peers_collector_speaks_http_here() -> None:
    _, (loaded,) = run(["serve", "--otlp-traces-endpoint", "collector:4317"])
    assert loaded.settings.observability.otlp_traces_endpoint == "http://collector:4318"
    assert "4317" in loaded.note


def test_a_trusted_tenant_header_has_the_name_that_smg_gives_it() -> None:
    _, (loaded,) = run(["serve", "--trust-tenant-header"])
    assert loaded.settings.tenancy.tenant_header == "x-smg-tenant-id"
    _, (loaded,) = run(["serve", "--trust-tenant-header", "--tenant-header-name", "x-mine"])
    assert loaded.settings.tenancy.tenant_header == "x-mine"


def test_a_command_line_that_tunes_a_peers_circuits_ejects_as_they_do() -> None:
    _, (loaded,) = run(["serve", "--cb-window-duration-secs", "5"])
    assert loaded.settings.reliability.ejected_ratio_max == 1
    _, (loaded,) = run(["serve", "--cb-window-duration-secs", "5", "--ejected-ratio-max", "0.5"])
    assert loaded.settings.reliability.ejected_ratio_max == 0.5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--backend", "openai"], "--backend can only be sglang, vllm, tokenspeed here"),
        (["--discovery-provider", "file"], "--discovery-provider can only be kubernetes here"),
        (["--ca-cert-paths", "a", "b"], "--ca-cert-paths takes one file here"),
        (["--tls-cert-path", "a", "--ssl-certfile", "b"], "give --ssl-certfile or --tls-cert-path, not both"),
    ],
)
def test_a_value_that_has_no_counterpart_stops_the_start(
    line: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *line]) == (2, [])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ANSWERS)
def test_flags_of_routers_with_other_ancestors_are_answered(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["serve", "--worker-urls", "http://a:1", flag, "s3cret"])
    said = capsys.readouterr().err
    assert f"there is no flag {flag}; {ANSWERS[flag].says}" in said
    assert "did you mean" not in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    "flag", ["--api-keys", "--worker-api-keys", "--admin-token-file", "--ssl-keyfiles", "--control-plane-key"]
)
def test_no_guess_can_send_a_secret_elsewhere(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["serve", flag, "s3cret"])
    said = capsys.readouterr().err
    assert "did you mean" not in said
    assert "s3cret" not in said


@pytest.mark.parametrize("flag", ["--enable-queue", "--max-idle", "--load", "--request-log-level"])
def test_no_flag_is_suggested_that_is_not_nearly_the_same(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["serve", flag])
    assert "did you mean" not in capsys.readouterr().err


def test_no_guess_of_a_variable_names_one_that_holds_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = run(["serve"], {"CACHEWAY_CONTROL_PLANE_API_KEY": "s3cret"})
    said = capsys.readouterr().err
    assert status == 2
    assert "did you mean" not in said
    assert "s3cret" not in said


def test_the_note_quotes_no_values_of_flags_without_effect() -> None:
    _, (loaded,) = run(["serve", "--oracle-password", "s3cret", "--postgres-db-url", "postgres://u:s3cret@h"])
    assert "--oracle-password" in loaded.note
    assert "s3cret" not in loaded.note
