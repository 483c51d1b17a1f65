"""A worker that loads and unloads LoRA adapters of the model ``mimo``."""

import asyncio
import json

from fakes.echo_worker import EchoWorker, Got


class LoraWorker(EchoWorker):
    """A worker that loads and unloads adapters, as vLLM or SGLang does.

    Attributes:
        loads: Names in the order of their loads; ``unloads`` likewise.
        opens: Cleared to keep loads waiting.
        broken: Loads fail.
    """

    def __init__(self, *, sglang: bool = False) -> None:
        super().__init__("mimo")
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.opens = asyncio.Event()
        self.opens.set()
        self.broken = False
        prefix = "" if sglang else "/v1"
        self.answers[f"{prefix}/load_lora_adapter"] = self._load
        self.answers[f"{prefix}/unload_lora_adapter"] = self._unload
        for other in ("/v1" if sglang else "",):
            self.answers[f"{other}/load_lora_adapter"] = self._unknown
            self.answers[f"{other}/unload_lora_adapter"] = self._unknown

    async def _load(self, got: Got) -> tuple[int, str]:
        asked = json.loads(got.body)
        self.loads.append(asked["lora_name"])
        await self.opens.wait()
        if self.broken:
            return 400, '{"message": "no such path"}'
        if asked["lora_name"] in self.models:
            return 400, '{"message": "The lora adapter has already been loaded."}'
        self.models = (*self.models, asked["lora_name"])
        self.parents[asked["lora_name"]] = "mimo"
        return 200, '{"success": true}'

    async def _unload(self, got: Got) -> tuple[int, str]:
        name = json.loads(got.body)["lora_name"]
        self.unloads.append(name)
        self.models = tuple(each for each in self.models if each != name)
        return 200, "Success: LoRA adapter removed successfully."

    async def _unknown(self, got: Got) -> tuple[int, str]:
        return 404, "{}"
