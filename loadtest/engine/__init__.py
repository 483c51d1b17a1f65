"""An emulated engine: real HTTP, real block cache, modelled time."""

from loadtest.engine.engine import EmulatedEngine
from loadtest.engine.faults import Fault
from loadtest.engine.settings import EngineSettings

__all__ = ["EmulatedEngine", "EngineSettings", "Fault"]
