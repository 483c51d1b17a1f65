"""The engines that the gateway knows: a file and a row each."""

from router.engines.dialect import RANKED, Description, EngineDialect, Read, rank_line
from router.engines.sglang import SGLANG
from router.engines.vllm import VLLM

__all__ = ["DIALECTS", "RANKED", "Description", "EngineDialect", "Read", "rank_line", "switches_role"]

DIALECTS = {dialect.name: dialect for dialect in (VLLM, SGLANG)}
"""By name. Where several could be meant, the first that fits counts."""


def switches_role(engine: str) -> bool:
    """Return True if an engine switches its role in place, and reports the role it has."""
    dialect = DIALECTS.get(engine)
    return dialect is not None and dialect.role_switch is not None
