"""Sources: their precedence, the origin of a value, and the sentence for every error."""

from pathlib import Path

import pytest

from router.catalogue import CATALOGUE
from router.errors import SettingsError
from router.sources import Origin, changed, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def problems(**sources: object) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(**sources)  # type: ignore[arg-type]
    return caught.value.problems


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(file: Path) -> None:
    file.write_text("server: {port: 1001, workers: 2, header_count_max: 50}\n")
    environ = {"CACHEWAY_PORT": "1002", "CACHEWAY_WORKERS": "3"}

    loaded = load({"server.port": "1003"}, environ, str(file))

    server = loaded.settings.server
    assert (server.port, server.workers, server.header_count_max, server.host) == (1003, 3, 50, "0.0.0.0")
    assert loaded.origins["server.port"] == Origin("flag", "--port")
    assert loaded.origins["server.workers"] == Origin("environment", "CACHEWAY_WORKERS")
    assert loaded.origins["server.header_count_max"] == Origin("file", f"{file} line 1")
    assert loaded.origins["server.host"] == Origin("default")
    assert set(loaded.origins) == set(CATALOGUE)


def test_the_file_can_be_named_in_the_environment(file: Path) -> None:
    file.write_text("server:\n  port: 1001\n")
    assert load({}, {"CACHEWAY_CONFIG": str(file)}).settings.server.port == 1001


@pytest.mark.parametrize(
    "text", ["http://a:1,http://b:2", "http://a:1 http://b:2", " http://a:1,\n http://b:2 "]
)
def test_a_list_in_the_environment_is_split_at_commas_and_spaces(text: str) -> None:
    loaded = load({}, {"CACHEWAY_WORKER_URLS": text})
    assert loaded.settings.fleet.worker_urls == ("http://a:1", "http://b:2")


def test_a_map_is_pairs_or_yaml() -> None:
    pairs = load({"placement.policy": "affinity", "placement.policy_options": ["match_weight=2"]})
    assert pairs.settings.placement.policy_options == {"match_weight": 2.0}
    text = '{"*": {attention: sliding_window, window_tokens: 128}}'
    window = load({}, {"CACHEWAY_MODELS": text}).settings.placement.models["*"]
    assert (window.attention, window.window_tokens) == ("sliding_window", 128)
    words = ["b>a={gbps: 10, rtt_ms: 20}", "c>a={gbps: 5}"]
    links = load({"fleet.site": "a", "fleet.links": words}).settings.fleet.links
    assert [(name, link.gbps, link.rtt_ms) for name, link in links.items()] == [
        ("b>a", 10, 20),
        ("c>a", 5, 0),
    ]


@pytest.mark.parametrize("text", ["match_weight", "{match_weight: "])
def test_a_malformed_map_is_explained(text: str) -> None:
    (problem,) = problems(environ={"CACHEWAY_POLICY_OPTIONS": text})
    assert "give NAME=VALUE pairs or a YAML mapping" in problem


def test_an_empty_variable_and_a_null_in_the_file_count_as_not_set(file: Path) -> None:
    file.write_text("server:\n  port:\nfleet:\n")
    loaded = load({}, {"CACHEWAY_WORKERS": ""}, str(file))
    assert loaded.origins["server.port"] == loaded.origins["server.workers"] == Origin("default")


def test_an_empty_file_sets_nothing(file: Path) -> None:
    file.write_text("# nothing yet\n")
    assert load(file=str(file)).settings.server.port == 30000


def test_variables_that_kubernetes_makes_for_services_are_passed_over() -> None:
    """A Service called cacheway would otherwise make every pod of its namespace fail at the start."""
    loaded = load(
        {},
        {
            "CACHEWAY_PORT": "tcp://10.0.0.1:30000",
            "CACHEWAY_SERVICE_HOST": "10.0.0.1",
            "CACHEWAY_SERVICE_PORT": "30000",
            "CACHEWAY_SERVICE_PORT_HTTP": "30000",
            "CACHEWAY_PORT_30000_TCP": "tcp://10.0.0.1:30000",
            "CACHEWAY_PORT_30000_TCP_ADDR": "10.0.0.1",
            "CACHEWAY_REDIS_PORT": "tcp://10.0.0.2:6379",
        },
    )
    assert loaded.origins["server.port"] == Origin("default")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"server.port": "70000"}, "flag --port: '70000' is not allowed for server.port; give a whole"),
        ({"server.port": "abc"}, "'abc' is not allowed for server.port; give a whole number, 1 to 65535"),
        ({"observability.log_level": "inof"}, "warning, error, critical; did you mean info?"),
        ({"placement.policy": "lmetrics"}, "of your own; did you mean lmetric?"),
        ({"server.request_timeout_s": "nan"}, "give a number, above 0"),
        ({"shared.namespace": "a b"}, "give 1 to 64 letters, digits, '.', '_' or '-'"),
        (
            {"fleet.worker_urls": ["grpc://a:8000"]},
            "flag --worker-urls: fleet.worker_urls[0]: 'grpc://a:8000' must start with http:// or https://",
        ),
        ({"fleet.worker_urls": ["http://a:1", "http://a:1/"]}, "http://a:1 is given more than once"),
        (
            {"server.ssl_certfile": "c.pem"},
            "flag --ssl-certfile: server: ssl_certfile and ssl_keyfile must be given together",
        ),
        ({"placement.models": ["{m: {attention: sparse}}"]}, "placement.models[m][attention]: input should"),
        ({"upstream.verify": "perhaps"}, "give true or false"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_a_sentence_that_says_how_to_mend_it(
    flags: dict[str, object], sentence: str
) -> None:
    (problem,) = problems(flags=flags)
    assert sentence in problem


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("server:\n  prot: 1\n", "line 2: there is no setting server.prot; did you mean server.port?"),
        ("sever:\n  port: 1\n", "line 1: there is no section sever; did you mean server?"),
        ("zzz: 1\n", "line 1: there is no section zzz; sections are server, fleet"),
        ("port: 1\n", "line 1: port belongs into a section; write server: {port: ...}"),
        (
            "worker-urls: [http://a]\n",
            "line 1: worker-urls belongs into a section; write fleet: {worker_urls: ...}",
        ),
        ("server: 3\n", "line 1: sections hold settings as 'name: value' lines"),
        ("- server\n", "line 1: sections hold settings"),
        ("server: {port: true}\n", "line 1: True is not allowed for server.port (true and false need quotes"),
        ("server: {port: 1, port: 2}\n", "line 1: server.port is set twice"),
        ("server: {host: 12}\n", "line 1: 12 is not allowed for server.host; give an address or a host name"),
        ("server: {host: !secret x}\n", "line 1: server.host is not plain YAML"),
        ("server: {port: [\n", "line 2: is not YAML: expected the node content, but found '<stream end>'"),
        ("server:\n\tport: 1\n", "line 2: is not YAML: found character '\\t' that cannot start any token"),
        (
            "placement: {models: {m: {atention: full}}}\n",
            "line 1: placement.models[m][atention]: there is no such name",
        ),
        ("placement: {cache_pools: {p: 3}}\n", "cache_pools[p]: give a mapping of names to values"),
    ],
)
def test_a_wrong_line_of_the_file_is_named_with_its_number(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    (problem,) = problems(file=str(file))
    assert problem.startswith(f"file {file}")
    assert sentence in problem


def test_a_file_that_is_not_there_is_said_so(file: Path) -> None:
    (problem,) = problems(file=str(file))
    assert (
        problem
        == f"file {file}: cannot be read (No such file or directory); check the path given with --config"
    )


def test_an_unknown_variable_stops_the_start() -> None:
    (problem,) = problems(environ={"CACHEWAY_PROT": "1"})
    assert problem == "environment CACHEWAY_PROT: there is no such setting; did you mean CACHEWAY_PORT?"


def test_all_problems_come_at_once(file: Path) -> None:
    file.write_text("server: {prot: 1}\n")
    found = problems(flags={"server.port": "0"}, environ={"CACHEWAY_WORKERS": "0"}, file=str(file))
    assert len(found) == 3


@pytest.mark.parametrize("key", ["server.api_key", "shared.redis_url"])
def test_a_secret_is_never_quoted(key: str) -> None:
    for problem in problems(flags={key: ["http://u:hunter2@h"]}):
        assert "hunter2" not in problem


def test_settings_of_two_sections_that_do_not_go_together_are_a_sentence() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"admin.host": "0.0.0.0"})
    (problem,) = caught.value.problems
    assert problem.startswith("admin.host: the admin API would be open to all that reach 0.0.0.0")


# Changes.


def test_changed_settings_are_judged_in_the_same_words_and_others_stay() -> None:
    settings = load({"queue.size": "5", "server.api_key": "k", "fleet.worker_urls": ["http://a:1"]}).settings
    after = changed(settings, {"queue.timeout_s": 3, "placement.prefill_policy": ""})
    assert (after.queue.size, after.queue.timeout_s, after.placement.prefill_policy) == (5, 3, None)
    assert after.server is settings.server
    assert settings.queue.timeout_s == 180, "what was given is as it was"
    with pytest.raises(SettingsError) as caught:
        changed(settings, {"queue.size": "many", "queue.sise": 1})
    assert set(caught.value.problems) == {
        "there is no setting queue.sise; did you mean queue.size?",
        "runtime: 'many' is not allowed for queue.size; give a whole number, at least 0",
    }


def test_any_setting_may_stay_what_it_is() -> None:
    """For all kinds: secrets, workers with labels, nested tables."""
    settings = load(
        {
            "server.api_key": "k",
            "fleet.prefill": ["http://p:1", "8998", "site=far"],
            "fleet.decode": ["http://d:1"],
            "fleet.site": "home",
            "fleet.links": ["{far>home: {gbps: 100}}"],
            "placement.models": ["{'*': {attention: sliding_window, window_tokens: 128}}"],
            "placement.cache_pools": ["{a: {}}"],
        }
    ).settings
    for key in CATALOGUE:
        section, _, name = key.partition(".")
        assert changed(settings, {key: getattr(getattr(settings, section), name)}) == settings


def test_the_mode_of_length_buckets_is_a_setting_no_more(file: Path) -> None:
    """No operator should believe that the gateway still divides the fleet (decision 0046)."""
    file.write_text("placement: {bucket_mode: auto}\n")
    (of_file,) = problems(file=str(file))
    (of_environment,) = problems(environ={"CACHEWAY_BUCKET_MODE": "auto"})
    assert "there is no setting placement.bucket_mode" in of_file
    assert "CACHEWAY_BUCKET_MODE: there is no such setting" in of_environment
