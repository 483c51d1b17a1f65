"""Flags: one per setting, and helpful about those that do not exist."""

import re

import pytest

from router.catalogue import CATALOGUE
from router.flags import Parser, add_flags, chosen


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="cacheway serve")
    add_flags(parser, show_all=True)
    return parser


def test_a_flag_that_is_not_given_is_not_chosen(parser: Parser) -> None:
    assert chosen(parser.parse_args([])) == {}


def test_values_stay_text_until_all_sources_are_merged(parser: Parser) -> None:
    assert chosen(parser.parse_args(["--port", "x"])) == {"server.port": "x"}


def test_a_list_takes_several_values_and_may_be_repeated(parser: Parser) -> None:
    arguments = parser.parse_args(["--worker-urls", "http://a", "http://b", "--worker-urls", "http://c"])
    assert chosen(arguments) == {"fleet.worker_urls": ["http://a", "http://b", "http://c"]}


def test_a_switch_can_be_turned_on_and_off(parser: Parser) -> None:
    assert chosen(parser.parse_args(["--no-upstream-verify", "--disable-retries"])) == {
        "upstream.verify": False,
        "reliability.disable_retries": True,
    }


def test_help_names_every_flag_under_its_section(parser: Parser) -> None:
    text = parser.format_help()
    for row in CATALOGUE.values():
        assert row.flag in text
        assert f"\n{row.section}:\n" in text
        assert all(word in text for word in row.choices)


def test_help_shows_the_25_common_settings_and_the_sections_that_have_some() -> None:
    parser = Parser(prog="cacheway serve")
    add_flags(parser)
    text = parser.format_help()
    shown = {row.key for row in CATALOGUE.values() if re.search(rf"^  {row.flag}[ ,]", text, re.M)}
    assert shown == {row.key for row in CATALOGUE.values() if row.common}
    assert len(shown) == 25
    headings = set(re.findall(r"^(\w+):$", text, re.M)) - {"options"}
    assert headings == {key.partition(".")[0] for key in shown}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prot", "1"], "there is no flag --prot; did you mean --port?"),
        (["--por", "1"], "there is no flag --por; did you mean --port?"),
        (["--reliability.cb-failure-threshold", "5"], "did you mean --cb-failure-threshold?"),
        (["--k8s-namespace", "a"], "there is no flag --k8s-namespace; write --service-discovery-namespace"),
        (["--vllm-discovery-address=x"], "--vllm-discovery-address; workers cannot register there; name"),
        (["stray"], "stray belongs to no flag"),
        (["--port"], "argument --port: expected one argument"),
    ],
)
def test_a_wrong_command_line_is_explained_with_status_2(
    parser: Parser, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(arguments)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err
