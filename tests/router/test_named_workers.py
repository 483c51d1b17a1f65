"""Workers with ports and labels behind their URLs: what users of the peers type, and what comes of it."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from router.named_workers import WorkerLines, check_labels, named_worker

LINES: TypeAdapter[tuple[str, ...]] = TypeAdapter(WorkerLines)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ([], ()),
        (["http://a:1"], ("http://a:1",)),
        (["http://a:1", "8998"], ("http://a:1 bootstrap_port=8998",)),
        (["http://a:1", "none"], ("http://a:1",)),
        (["http://a:1", "None", "site=x"], ("http://a:1 site=x",)),
        (["http://a:1", "9", "http://b", "site=x"], ("http://a:1 bootstrap_port=9", "http://b site=x")),
        (["http://a:1 9", "b:2"], ("http://a:1 bootstrap_port=9", "http://b:2")),
        (["http://a", "site=x", "convertible=true"], ("http://a convertible=true site=x",)),
        (["http://a", "bootstrap_port=9"], ("http://a bootstrap_port=9",)),
        (["http://a", "note=a=b"], ("http://a note=a=b",)),
    ],
)
def test_each_url_begins_a_worker_and_what_follows_is_said_of_it(
    words: list[str], lines: tuple[str, ...]
) -> None:
    assert LINES.validate_python(words) == lines


def test_a_line_can_be_read_again() -> None:
    lines = LINES.validate_python(["http://a:1", "8998", "site=dc2", "handover=mooncake"])
    assert LINES.validate_python(lines) == lines
    worker = named_worker(lines[0], "prefill")
    assert (worker.url, worker.role) == ("http://a:1", "prefill")
    assert worker.labels == {"bootstrap_port": "8998", "site": "dc2", "handover": "mooncake"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["8998"], "'8998' comes before any URL"),
        (["site=x", "http://a"], "'site=x' comes before any URL"),
        (["http://a", "0"], "bootstrap_port '0' is not a port; give 1 to 65535, or none"),
        (["http://a", "65536"], "bootstrap_port '65536' is not a port"),
        (["http://a", "bootstrap_port=x"], "bootstrap_port 'x' is not a port"),
        (["http://a", "1", "2"], "'2' after http://a is no label; write LABEL=VALUE"),
        (["http://a", "1", "bootstrap_port=2"], "bootstrap_port is given twice for http://a"),
        (["http://a", "handover=rdma"], "handover 'rdma' is not known; give sglang or nixl or mooncake"),
        (["http://a", "convertible=yes"], "convertible 'yes' is not known; give true or false"),
        (["http://a", "site=a>b"], "site 'a>b' is no name"),
        (["http://a", "dp_size=0"], "dp_size '0' is not a number of ranks"),
        (["http://a?x=1"], "must end with the host, port or path"),
        (["ftp://a"], "must start with http:// or https://"),
    ],
)
def test_a_slip_is_explained(words: list[str], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence.replace("?", r"\?")):
        LINES.validate_python(words)


def test_a_password_in_a_url_is_not_quoted_back() -> None:
    with pytest.raises(ValidationError) as caught:
        LINES.validate_python(["http://u:hunter2@a", "1", "2"])
    (error,) = caught.value.errors(include_input=False)
    assert "hunter2" not in error["msg"]


@pytest.mark.parametrize("given", [None, 1, "http://a", [1], {"url": "http://a"}])
def test_what_is_no_list_of_words_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError):
        LINES.validate_python(given)


def test_labels_that_the_gateway_does_not_read_may_be_anything() -> None:
    check_labels({"worker_class": "h200", "note": "", "site": "dc-1.eu_west"})


@pytest.mark.parametrize("host", ["engine-0", "10.0.0.7", "fd12::7", "[fd12::7]", "a.b_c.svc"])
def test_a_bootstrap_host_is_a_name_or_an_address(host: str) -> None:
    check_labels({"bootstrap_host": host})


@pytest.mark.parametrize(
    "host", ["", "a:80", "a/b", "a b", "[fd12", "x@y", "a\r\nb", "fe80::1%eth0", "a" * 254]
)
def test_what_is_no_host_is_no_bootstrap_host(host: str) -> None:
    with pytest.raises(ValueError, match="bootstrap_host"):
        check_labels({"bootstrap_host": host})
