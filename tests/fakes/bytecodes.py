"""The work that Python does in a call, as a number that no other load of the machine changes."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def bytecodes(call: Callable[[], object]) -> int:
    """Return the bytecode instructions that a call executes; the work inside C functions is not counted.

    Garbage collections are off meanwhile: Hypothesis measures them in Python.
    """
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        counted += event == "opcode"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return counted
