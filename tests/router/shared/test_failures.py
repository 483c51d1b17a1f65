"""An error answer is told apart by what to do about it."""

import pytest
from redis._parsers.base import BaseParser

from router.shared.failures import RedisLost, RedisRefused, failure_of, text_of


@pytest.mark.parametrize(
    "text",
    [
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down",
        "MOVED 3999 127.0.0.1:6381",
        "CLUSTERDOWN Hash slot not served",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ],
)
def test_what_only_another_server_or_moment_can_answer_counts_as_lost(text: str) -> None:
    failure = failure_of(BaseParser.parse_error(text))
    assert type(failure) is RedisLost
    assert str(failure) == text


@pytest.mark.parametrize(
    "text",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Errors writing to the AOF file",
        "NOREPLICAS Not enough good replicas to write.",
        "NOPERM User default has no permissions to run the 'xadd' command",
        "ERR no such thing as READONLY",
    ],
)
def test_what_the_same_server_may_do_later_is_refused(text: str) -> None:
    assert type(failure_of(BaseParser.parse_error(text))) is RedisRefused


def test_an_error_keeps_its_first_word_and_loses_what_it_repeats_of_a_command() -> None:
    """redis-py takes the words of errors it knows apart, and a Unix socket's errors are another's cause."""
    wrong = BaseParser.parse_error("WRONGPASS invalid username-password pair")
    assert text_of(wrong) == "WRONGPASS invalid username-password pair"
    outer = ConnectionError("something failed")
    outer.__cause__ = wrong
    assert text_of(outer) == text_of(wrong)
    repeated = BaseParser.parse_error("ERR unknown command 'AUTH', with args beginning with: 'hunter2'")
    assert text_of(repeated) == "ERR unknown command 'AUTH'"
    assert text_of(TimeoutError()) == "TimeoutError"
