"""An emulated engine: real HTTP, real block cache, modelled time."""
