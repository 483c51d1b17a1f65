"""Worker URLs are checked, and written in one way."""

import pytest

from router.errors import ClientError
from router.fleet.address import normal_url, worker_id_of


@pytest.mark.parametrize(
    ("given", "normal", "worker_id"),
    [
        ("http://10.0.0.7:30000", "http://10.0.0.7:30000", "10.0.0.7:30000"),
        ("HTTP://Engine-1:8000/", "http://engine-1:8000", "engine-1:8000"),
        ("engine-1:8000", "http://engine-1:8000", "engine-1:8000"),
        ("http://engine", "http://engine:80", "engine:80"),
        ("https://engine/base/", "https://engine:443/base", "engine:443/base"),
        ("http://[::1]:9", "http://[::1]:9", "[::1]:9"),
        (f"http://{'a' * 63}:30000", f"http://{'a' * 63}:30000", f"{'a' * 63}:30000"),
    ],
)
def test_a_url_is_written_in_one_way_and_names_the_worker(given: str, normal: str, worker_id: str) -> None:
    assert normal_url(given) == normal
    assert worker_id_of(normal) == worker_id
    assert normal_url(normal) == normal


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ftp://engine",
        "http://",
        "http://a:99999",
        "http://a:x",
        "http://a?x=1",
        "http://u:p@a",
        "http://a b",
        "http://a..b",
        f"http://{'a' * 64}",
        "http://a\\b",
        "http://a\x00b",
        "http://bücher",
        "http://a/bücher",
    ],
)
def test_what_is_no_worker_url_is_refused_with_how_to_write_it(given: str) -> None:
    with pytest.raises(ClientError, match="http://host:port") as caught:
        normal_url(given)
    assert caught.value.code == "invalid_worker_url"


@pytest.mark.parametrize("text", ["http://a/p@0", "a:80/@12", "http://a/p/q@4095/"])
def test_no_worker_may_have_the_id_of_a_rank(text: str) -> None:
    with pytest.raises(ClientError, match="is not a worker URL"):
        normal_url(text)


@pytest.mark.parametrize("text", ["http://a/p@", "http://a/p@x", "http://a/p@4096", "http://a/@1/q"])
def test_other_paths_may_have_the_mark_of_ranks(text: str) -> None:
    assert normal_url(text).startswith("http://a:80/")
