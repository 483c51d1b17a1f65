"""LoRA adapters that an emulated engine loads and unloads while it serves, with ``--enable-lora``.

**vLLM 0.32.** ``POST /v1/load_lora_adapter`` and ``/v1/unload_lora_adapter`` answer a text, or an error as
all endpoints do; 404 where they are off (``VLLM_ALLOW_RUNTIME_LORA_UPDATING``). There is no bound on names:
beyond ``max_loaded_loras`` (``--max-cpu-loras``) all stay listed, and an adapter that left memory is read
again for its next request. An unload is done at once; requests that run go on. Blocks are hashed with the
adapter's name, so a second load finds them again.

**SGLang 0.5.23.** The same paths without ``/v1`` answer ``success``, ``error_message`` and
``loaded_adapters``; 400 where they are off (``--enable-lora``). Beyond ``max_loaded_loras``
(``--max-loaded-loras``) a load unloads the adapter used longest ago, and a request for one that was loaded
before loads it again. An unload is done when its requests have ended. Each load has an id that separates
blocks, so a second load finds none.

vLLM: entrypoints/serve/lora/api_router.py, entrypoints/openai/models/serving.py, lora/worker_manager.py.
SGLang: srt/entrypoints/http_server.py, srt/managers/tokenizer_control_mixin.py, srt/lora/lora_registry.py,
srt/lora/lora_manager.py. A path that begins with ``/missing`` has no adapter.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from loadtest.engine.errors import RequestRefused
from loadtest.engine.intake import decoded
from loadtest.engine.job import Job
from loadtest.engine.served import Extra, KnownBlocks
from loadtest.engine.server import Answer, Request
from loadtest.engine.settings import EngineSettings

MISSING = "/missing"

LOADED_MAX = 10_000

UNLOAD_POLL_S = 0.005
"""Seconds between two looks at whether the requests of an adapter have ended."""


@dataclass(slots=True)
class Loaded:
    """An adapter; ``number`` tells its loads apart in SGLang."""

    path: str
    number: int


class Adapters:
    """The adapters of one engine, the one used longest ago first; static ones (``settings.loras``) beside.

    ``jobs`` yields all jobs in the engine.
    """

    def __init__(self, settings: EngineSettings, jobs: Callable[[], Iterable[Job]]) -> None:
        self._settings, self._jobs = settings, jobs
        self._vllm = settings.dialect == "vllm"
        self._loaded: dict[str, Loaded] = {}
        self._known: dict[str, str] = {}
        self.counts = {"loads": 0, "unloads": 0, "reloads": 0}

    @property
    def routes(self) -> dict[str, Callable[[Request, Answer], None]]:
        """Handler of each path."""
        if self._vllm and not self._settings.enable_lora:
            return {}
        prefix = "/v1" if self._vllm else ""
        return {
            f"{prefix}/load_lora_adapter": lambda request, answer: self._load(_asked(request), answer),
            f"{prefix}/unload_lora_adapter": lambda request, answer: self._unload(_asked(request), answer),
        }

    def listed(self) -> dict[str, str]:
        """Return the paths of those that ``/v1/models`` lists, by name; static ones apart."""
        return {name: each.path for name, each in self._loaded.items()}

    def named(self, model: str, *, native: bool = False) -> str:
        """Return the adapter that a request's model names; empty for none.

        SGLang knows an adapter as ``BASE:NAME``; in ``lora_path`` of its own API (``native``) as NAME.

        Raises:
            RequestRefused: SGLang never loaded it.
        """
        settings, name = self._settings, model
        if not self._vllm and not native:
            base, _, behind = model.partition(":")
            if behind and base in settings.models:
                name, native = behind, True
            elif model not in settings.loras:
                return ""
        if name in settings.loras or name in self._loaded or name in self._known:
            return name
        if native:
            known = list(self._known)
            message = f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters: {known}."
            raise RequestRefused(message)
        return ""

    def use(self, name: str, salt: str | None) -> Extra:
        """Return what separates the cache of an adapter; it may be loaded again for that."""
        settings = self._settings
        if name in settings.loras:
            return Extra(salt, name, settings.loras.index(name) + 1)
        most = settings.max_loaded_loras
        if name not in self._loaded:
            self.counts["reloads"] += 1
            self._add(name, self._known[name])
        elif self._vllm and most and name not in list(self._loaded)[-most:]:
            self.counts["reloads"] += 1
        loaded = self._loaded[name] = self._loaded.pop(name)
        position = len(settings.loras) + loaded.number
        return Extra(salt, name if self._vllm else f"{name}@{loaded.number}", position)

    def stats(self) -> dict[str, Any]:
        """Return those that are loaded, and how many loads, unloads and reads for a request there were."""
        return {"loaded": list(self._loaded), **self.counts}

    def _load(self, asked: Mapping[str, Any], answer: Answer) -> None:
        name, path = asked.get("lora_name"), asked.get("lora_path")
        if not isinstance(name, str) or not isinstance(path, str) or not name or not path:
            message = "Both 'lora_name' and 'lora_path' must be provided."
            self._refuse(answer, 400, message, "InvalidUserInput")
        elif not self._settings.enable_lora:
            message = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
            self._refuse(answer, 400, message)
        elif name in self._loaded or name in self._settings.loras:
            message = f"Failed to load LoRA adapter {name} because it is already loaded"
            if self._vllm:
                message = (
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
                    "place, set 'load_inplace' to True."
                )
            self._refuse(answer, 400, message, "InvalidUserInput")
        elif path.startswith(MISSING):
            message = f"Loading lora {name} failed: No adapter found for {path}"
            self._refuse(answer, 404 if self._vllm else 400, message, "NotFoundError")
        elif len(self._loaded) >= LOADED_MAX:
            self._refuse(answer, 500, "the emulator lists no more adapters", "InternalServerError")
        else:
            load_s = self._settings.lora_load_ms / 1e3 / self._settings.speed
            answer.later(load_s, lambda: self._done(asked, answer))

    def _done(self, asked: Mapping[str, Any], answer: Answer) -> None:
        name, path = asked["lora_name"], asked["lora_path"]
        if name in self._loaded:  # two loads at a time
            self._load(asked, answer)
            return
        self.counts["loads"] += 1
        self._add(name, path)
        self._succeed(answer, f"Success: LoRA adapter '{name}' added successfully.")

    def _add(self, name: str, path: str) -> None:
        number = 1 + sum(self.counts.values())
        self._loaded[name] = Loaded(path, number)
        if not self._vllm:
            self._known[name] = path
            most = self._settings.max_loaded_loras
            while most and len(self._loaded) > most:
                del self._loaded[next(iter(self._loaded))]
                self.counts["unloads"] += 1

    def _unload(self, asked: Mapping[str, Any], answer: Answer) -> None:
        name = asked.get("lora_name")
        if not isinstance(name, str) or not name:
            message = "'lora_name' needs to be provided to unload a LoRA adapter."
            self._refuse(answer, 400, message, "InvalidUserInput")
        elif name not in self._loaded:
            message = f"LoRA with name {name} does not exist. Loaded LoRAs: {list(self._loaded)}"
            if self._vllm:
                message = f"The lora adapter '{name}' cannot be found."
            self._refuse(answer, 404 if self._vllm else 400, message, "NotFoundError")
        else:
            number = self._loaded.pop(name).number
            self.counts["unloads"] += 1
            self._when_ended(name, number, answer)

    def _when_ended(self, name: str, number: int, answer: Answer) -> None:
        """Answer an unload; SGLang does when no request for the adapter runs any more."""
        if not self._vllm and self._runs(f"{name}@{number}"):
            answer.later(UNLOAD_POLL_S, lambda: self._when_ended(name, number, answer))
            return
        self._succeed(answer, f"Success: LoRA adapter '{name}' removed successfully.")

    def _runs(self, name: str) -> bool:
        blocks = (job.blocks for job in self._jobs())
        return any(isinstance(each, KnownBlocks) and each.extra.lora_name == name for each in blocks)

    def _succeed(self, answer: Answer, text: str) -> None:
        if self._vllm:
            answer.send(200, text.encode(), b"text/plain; charset=utf-8")
        else:
            answer.send(200, self._state())

    def _refuse(self, answer: Answer, status: int, message: str, kind: str = "") -> None:
        if self._vllm:
            error = {"message": message, "type": kind, "param": None, "code": status}
            answer.send(status, orjson.dumps({"error": error}))
        else:
            answer.send(400, self._state(message))

    def _state(self, message: str | None = None) -> bytes:
        state = {"success": message is None, "error_message": message, "loaded_adapters": self.listed()}
        return orjson.dumps(state)


def _asked(request: Request) -> Mapping[str, Any]:
    if request.method != "POST":
        raise RequestRefused("Method Not Allowed", status=405)
    return decoded(request.body)
