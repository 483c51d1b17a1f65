"""An API server of Kubernetes that serves pods as the bytes that it was given."""

import asyncio
import json
from pathlib import Path

from loadtest.fuzz.pods import NAMESPACE
from loadtest.fuzz.server import RawServer

POLL_S = 0.01


class ApiServer(RawServer):
    """Lists and watches."""

    def __init__(self) -> None:
        super().__init__()
        self._version = 100
        self._pods: dict[str, bytes] = {}
        self._history: list[tuple[int, bytes, bytes]] = []

    def kubeconfig(self, folder: Path) -> Path:
        """Write a file that leads here."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "us", "user": {"token": "token"}}],
            "contexts": [
                {"name": "here", "context": {"cluster": "here", "user": "us", "namespace": NAMESPACE}}
            ],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def put(self, name: str, pod: bytes) -> None:
        """Add a pod; its bytes need not be JSON."""
        self._pods[name] = pod
        self._happens(b"ADDED", pod)

    def delete(self, name: str) -> None:
        """Delete a pod."""
        del self._pods[name]
        self._version += 1
        metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": {"app": "engine"}}
        metadata["resourceVersion"] = str(self._version)
        self._version -= 1
        self._happens(b"DELETED", json.dumps({"metadata": metadata, "spec": {}, "status": {}}).encode())

    def _happens(self, kind: bytes, pod: bytes) -> None:
        self._version += 1
        self._history.append((self._version, kind, pod))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        await (self._watch if b"watch=true" in head else self._list)(writer)

    async def _list(self, writer: asyncio.StreamWriter) -> None:
        items = b",".join(self._pods.values())
        body = b'{"kind":"PodList","metadata":{"resourceVersion":"%d"},"items":[%b]}' % (self._version, items)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()

    async def _watch(self, writer: asyncio.StreamWriter) -> None:
        sent = len(self._history)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        while not writer.is_closing():
            for _, kind, pod in self._history[sent:]:
                line = b'{"type":"%b","object":%b}\n' % (kind, pod)
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            sent = len(self._history)
            await writer.drain()
            await asyncio.sleep(POLL_S)
