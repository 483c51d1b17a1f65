"""An error answer is told apart by what to do about it."""

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError

from router.shared.failures import RedisLost, RedisRefused, failure_of


@pytest.mark.parametrize(
    "text",
    [
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down",
        "LOADING Valkey is loading the dataset in memory",
        "NOAUTH Authentication required.",
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


def test_a_connection_that_ended_is_lost() -> None:
    assert type(failure_of(RedisConnectionError("Connection closed by server."))) is RedisLost
