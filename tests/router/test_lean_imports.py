"""Imports are those of a process: each test asks one of its own."""

import pickle
import subprocess
import sys
from pathlib import Path

from router.lean_imports import DEFERRED_MODULES, call_lean

BUILD = """
import asyncio, sys
from router.app import GatewayProcess
from router.process.starting import opened_spans
from router.settings import Settings
async def build(settings):
    return GatewayProcess(settings, redis_url="redis://127.0.0.1:1/0")
asyncio.run(build(Settings.model_validate({})))
"""


def told(script: str) -> str:
    """Return the output of a script that has no errors."""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stderr == ""
    return result.stdout


def test_a_gateway_imports_nothing_that_it_never_uses() -> None:
    """Each process would hold 13 MB of it. With tracing on, the spans' libraries are there all the same."""
    unused = ("rich", "pygments", "psutil", "yaml", "opentelemetry.sdk.metrics", "pydantic.v1")
    unused += ("redis.client", "redis.cluster", "redis.asyncio.client", "html.entities", "logging.handlers")
    script = (
        "from router.lean_imports import lean_imports\n"
        "with lean_imports():\n"
        "    import httpx, router.serving\n"
        f"{BUILD}"
        f"print([name for name in {unused} if sys.modules.get(name)], callable(httpx.get))\n"
        "traced = Settings.model_validate({'observability': {'enable_trace': True}})\n"
        "print(opened_spans(traced.observability, 'r') is None)\n"
    )
    assert told(script) == "[] True\nFalse\n"


def test_deferred_modules_have_all_their_names_once_one_is_asked_for() -> None:
    """Policies of users and the load tests' tools use them in the same process."""
    script = (
        "from router.lean_imports import lean_imports\n"
        "with lean_imports():\n"
        "    import router.cli\n"
        "import html, logging.config, redis, redis.asyncio.connection\n"
        "assert 'Redis' not in vars(redis)\n"
        "from redis.asyncio import Redis\n"
        "print(html.escape('<'), logging.config.dictConfig.__name__, hasattr(redis, 'no_such_name'))\n"
        "print(redis.asyncio.Redis is Redis, redis.Redis.__module__)\n"
        "print(issubclass(Redis.from_url('redis://a').connection_pool.connection_class,\n"
        "                 redis.asyncio.connection.AbstractConnection))\n"
    )
    assert told(script) == "&lt; dictConfig False\nTrue redis.client\nTrue\n"


def test_a_module_that_is_imported_already_stays() -> None:
    before = {name: sys.modules.get(name) for name in DEFERRED_MODULES}
    call_lean(pickle.dumps((sys.getrecursionlimit, ())))
    assert all(sys.modules[name] is module for name, module in before.items() if module is not None)


def test_a_process_of_several_imports_no_more_than_a_single_one() -> None:
    """Its function and the arguments are pickled apart, since unpickling imports."""
    call = pickle.dumps((print, ("called",)))
    script = (
        f"from router.lean_imports import call_lean\ncall_lean({call!r})\n"
        "import sys; print(sys.modules['pydantic.v1'], 'redis.client' in sys.modules)\n"
    )
    assert told(script) == "called\nNone False\n"


def test_a_policy_may_begin_with_any_module_within_a_deferred_one(tmp_path: Path) -> None:
    """Some need names of their package, which cannot run once they are half imported."""
    (tmp_path / "rule.py").write_text(
        "from redis.client import Redis\nfrom redis.asyncio.sentinel import Sentinel\n"
        "def calm(request, candidates):\n    return [0.0] * len(candidates)\n"
    )
    script = (
        "from router.lean_imports import lean_imports\n"
        "with lean_imports():\n"
        "    import router.serving\n"
        f"{BUILD}"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from router.own_policies.loading import _imported\n"
        "print(_imported('rule:calm').__name__, 'Redis' in vars(sys.modules['redis']))\n"
    )
    assert told(script) == "calm True\n"
