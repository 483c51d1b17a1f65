"""Lists and watches of a Kubernetes API server.

lightkube finds the server (service account, ``KUBECONFIG``, ``~/.kube/config``) and makes an HTTP client with
its certificates and credentials, tokens rotated. Lists and watches are our own: those of lightkube 1.0
(core/generic_client.py) wait for ever on a silently dead connection, know no bookmarks, mistake HTTP 410 for
another error, reconnect without a pause, and break lines like ``str.splitlines``: an annotation with U+0085
would end the watch. A failure is an `ApiFailure`, never an empty list.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

import httpx2
import msgspec
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError
from yaml import YAMLError

from router.discovery.pods import Metadata, Pod
from router.discovery.source import ALL_NAMESPACES, ApiFailure, Gone, PodEvent, PodList, Trouble

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
REQUEST_S = 20.0
"""Longest time for a page of a list, and until a watch begins."""

PAGE_PODS = 200
"""Pods of a page: about 3 MB, which take some 10 ms to decode."""

PODS_MAX = 20_000
"""Most pods that are read: a selector with more is a mistake."""

LINE_BYTES_MAX = 8 * 1024 * 1024
"""etcd keeps no object above 1.5 MB; as JSON with escapes it is at most a few times that."""

WATCH_GRACE_S = 15.0


_OF_STATUS = {401: Trouble.UNAUTHORIZED, 403: Trouble.FORBIDDEN, 410: Trouble.GONE, 429: Trouble.THROTTLED}


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: tuple[msgspec.Raw, ...] = ()


class _Identity(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct, frozen=True):
    """Identity of a pod that cannot be read."""

    metadata: _Identity


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 0


T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")

_page_decoder = msgspec.json.Decoder(_Page)
_event_decoder = msgspec.json.Decoder(_Event)
_pod_decoder = msgspec.json.Decoder(Pod)
_named_decoder = msgspec.json.Decoder(_Named)
_status_decoder = msgspec.json.Decoder(_Status)


def find_server(kubeconfig: str) -> SingleConfig:
    """Find the API server and our credentials, with an empty path where Kubernetes' own clients look.

    Raises `ApiFailure` with the reason if there is none.
    """
    try:
        found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        config = found.get()
    except KeyError as error:
        raise ApiFailure(Trouble.CONFIG, f"the configuration of the cluster lacks {error}") from error
    except (ConfigError, OSError, YAMLError, ValueError, TypeError, AttributeError) as error:
        raise ApiFailure(Trouble.CONFIG, f"no API server is configured: {error}") from error
    if config is None or config.user is None:
        raise ApiFailure(Trouble.CONFIG, "the configuration of the cluster names no user")
    return config


class ApiServer:
    """One API server, and the gateway's own namespace; `renew` reads the kubeconfig again."""

    def __init__(self, kubeconfig: str = "") -> None:
        self._kubeconfig = kubeconfig
        self._client: httpx2.AsyncClient | None = _client(find_server(kubeconfig))

    async def renew(self) -> None:
        """Connect again, with the current credentials."""
        client = _client(find_server(self._kubeconfig))
        former, self._client = self._client, client
        if former is not None:
            await former.aclose()

    async def close(self) -> None:
        """Close all connections; a later question opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = _client(find_server(self._kubeconfig))
        return self._client

    async def list_pods(self, namespace: str, selector: str) -> PodList:
        """List pods, in pages."""
        pods: list[Pod] = []
        parameters = {"labelSelector": selector, "limit": str(PAGE_PODS)}
        while True:
            page = await self._page(namespace, parameters)
            pods += [pod for item in page.items if (pod := _read(item)) is not None]
            if not page.metadata.continue_:
                return PodList(tuple(pods), page.metadata.resource_version)
            if len(pods) >= PODS_MAX:
                raise ApiFailure(Trouble.REFUSED, f"more than {PODS_MAX} pods match {selector}; select fewer")
            parameters["continue"] = page.metadata.continue_

    async def watch_pods(
        self, namespace: str, selector: str, version: str, lasts_s: int
    ) -> AsyncGenerator[PodEvent, None]:
        """Yield events of pods."""
        parameters = {
            "labelSelector": selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(lasts_s),
        }
        timeout = httpx2.Timeout(REQUEST_S, connect=CONNECT_S, read=lasts_s + WATCH_GRACE_S)
        try:
            async with asyncio.timeout(REQUEST_S):
                client = self._opened()
                request = client.build_request("GET", _path(namespace), params=parameters, timeout=timeout)
                response = await client.send(request, stream=True)
            try:
                await _check(response)
                async for line in _lines(response):
                    event = _event(line)
                    if event is not None:
                        yield event
            finally:
                await response.aclose()
        except _TROUBLES as error:
            raise _failure(error) from error

    async def read(self, path: str) -> bytes | None:
        """Return an object, or a list of objects, as JSON; None if there is none."""
        try:
            async with asyncio.timeout(REQUEST_S):
                response = await self._opened().get(path)
                if response.status_code != 404:
                    await _check(response)
        except _TROUBLES as error:
            raise _failure(error) from error
        return None if response.status_code == 404 else response.content

    async def _page(self, namespace: str, parameters: dict[str, str]) -> _Page:
        try:
            async with asyncio.timeout(REQUEST_S):
                response = await self._opened().get(_path(namespace), params=parameters)
                await _check(response)
            return _decoded(_page_decoder, response.content)
        except _TROUBLES as error:
            raise _failure(error) from error


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Decode JSON; a lone surrogate, which the decoder refuses, becomes NUL. Raise `msgspec.DecodeError`."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        try:
            text = json.dumps(json.loads(data), ensure_ascii=False)
            mended = _SURROGATE.sub(r"\\u0000", text).encode()
        except (ValueError, RecursionError):
            mended = data
        return decoder.decode(mended)


def _client(config: SingleConfig) -> httpx2.AsyncClient:
    timeout = httpx2.Timeout(REQUEST_S, connect=CONNECT_S)
    try:
        return AsyncClient(config, ConnectionParams(timeout=timeout, trust_env=False))
    except (ConfigError, OSError, ValueError, httpx2.InvalidURL) as error:
        raise ApiFailure(Trouble.CONFIG, f"cannot connect as configured: {error}") from error


def _path(namespace: str) -> str:
    return "api/v1/pods" if namespace == ALL_NAMESPACES else f"api/v1/namespaces/{namespace}/pods"


async def _check(response: httpx2.Response) -> None:
    if response.is_success:
        return
    body = await response.aread()
    try:
        message = _status_decoder.decode(body).message
    except msgspec.DecodeError:
        message = ""
    raise _of_status(response.status_code, message)


def _of_status(status: int, message: str) -> ApiFailure:
    trouble = _OF_STATUS.get(status, Trouble.SERVER if status >= 500 or status == 0 else Trouble.REFUSED)
    kind = Gone if trouble is Trouble.GONE else ApiFailure
    return kind(trouble, f"HTTP {status} {message[:300]}".rstrip())


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Lines of a stream, each ended by a line feed; half a line at the end is dropped."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > LINE_BYTES_MAX:
            raise ApiFailure(Trouble.MALFORMED, f"a line of more than {LINE_BYTES_MAX} bytes")


def _read(item: msgspec.Raw) -> Pod | None:
    """Decode a pod, or only the identity of an unreadable one; None without an identity."""
    try:
        return _pod_decoder.decode(item)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        problem = f"it is no pod as Kubernetes describes them: {error}"[:300]
    try:
        identity = _named_decoder.decode(item).metadata
    except (msgspec.DecodeError, RecursionError, ValueError):
        logger.warning(
            "a pod cannot be read at all", extra={"event": "discovery.unreadable", "detail": problem}
        )
        return None
    metadata = Metadata(identity.name, identity.namespace, identity.uid, identity.resource_version)
    return Pod(metadata, unreadable=problem)


def _event(line: bytes) -> PodEvent | None:
    event = _decoded(_event_decoder, line)
    if event.type == "ERROR":
        status = _status_decoder.decode(event.object)
        raise _of_status(status.code, status.message)
    pod = _read(event.object)
    return None if pod is None else PodEvent(pod, event.type)


_TROUBLES = (
    httpx2.HTTPError,
    httpx2.StreamError,
    httpx2.InvalidURL,
    msgspec.DecodeError,
    ConfigError,
    OSError,
    TimeoutError,
    RuntimeError,
)
"""Errors of the libraries; `RuntimeError` means that `ApiServer.renew` closed the client meanwhile."""


def _failure(error: Exception) -> ApiFailure:
    what = f"{type(error).__name__}: {error}".rstrip(": ")[:300]
    match error:
        case TimeoutError() | httpx2.TimeoutException():
            return ApiFailure(Trouble.TIMEOUT, f"no answer in time ({what})")
        case msgspec.DecodeError():
            return ApiFailure(Trouble.MALFORMED, f"an answer that is none ({what})")
        case ConfigError() | FileNotFoundError() | PermissionError():
            return ApiFailure(Trouble.CONFIG, f"credentials cannot be read ({what})")
        case _:
            return ApiFailure(Trouble.UNREACHABLE, what)
