"""Without its mend the gateway has the defect again: seen here in a process of its own, for each of them."""

import subprocess
import sys

import pytest

from loadtest.fuzz.unmended import UNMENDED

DEFECTS = {
    "C1": """
from router.gateway.bodies import decode
from router.gateway.endpoints import Endpoint
from router.shared.state import SharedState
body = b'{"model": "m", "messages": [], "max_tokens": %d}' % 2**70
assert decode(Endpoint.CHAT, body).max_tokens == 2**70
assert "encode_op" not in SharedState.publish.__code__.co_names
""",
    "C4": """
from types import SimpleNamespace
from loadtest.fuzz.unmended import _kept
from router.encoding.encoding import Encoding
from router.encoding.registrations import Registrations
Encoding.check(SimpleNamespace())
Registrations.add(SimpleNamespace(), "part", "request")
assert _kept == ["request"]
""",
    "C5": """
from router.shared.reader import decode_entry
try:
    decode_entry(bytes.fromhex("91930ca2fffe01"))
except UnicodeDecodeError:
    pass
else:
    raise AssertionError
""",
    "C14": """
from router.fleet.engine_info import served_models
assert [each.model_id for each in served_models({"data": [{"id": chr(0xD800)}]})] == [chr(0xD800)]
""",
    "C12": """
from router.discovery import pods
from router.discovery.settling import Settling
try:
    pods.parsed_whole(chr(0xB2), 65535)
except ValueError:
    pass
else:
    raise AssertionError
assert Settling.settle is Settling._settle
""",
    "C15": """
from router.proxy.client_protocol import PIECE_BYTES
assert PIECE_BYTES > 1 << 30
""",
    "C7": """
from router import logs
from router.gateway.bodies import decode
from router.gateway.endpoints import Endpoint
name = "z" * 300_000
assert decode(Endpoint.CHAT, b'{"messages": [], "model": "%b"}' % name.encode()).model == name
assert len(logs.bounded({"model": "z" * 300_000})) > 300_000
""",
}


@pytest.mark.parametrize("name", UNMENDED)
def test_the_defect_is_there_again(name: str) -> None:
    program = f"from loadtest.fuzz.unmended import UNMENDED\nUNMENDED[{name!r}].take_out()\n{DEFECTS[name]}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
