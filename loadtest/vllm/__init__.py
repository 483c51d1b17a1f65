"""Real engines for tests and studies: vLLM on CPUs with tiny models that have no weights."""

from loadtest.vllm.engine import MODEL_NAME, VllmEngine
from loadtest.vllm.home import EngineFailed, EnginesHome
from loadtest.vllm.server import VllmServer, VllmSettings

__all__ = ["MODEL_NAME", "EngineFailed", "EnginesHome", "VllmEngine", "VllmServer", "VllmSettings"]
