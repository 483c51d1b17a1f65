"""What is cached where: prompt identity as block hashes, and the tree that remembers who holds them."""

from radix.blocks import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    HASH_BYTES,
    BlockChain,
    chain_bytes,
    chain_token_ids,
    check_path,
    root_hash,
)
from radix.engine_events import BlocksRemoved, BlocksStored, CacheCleared, EngineEvent
from radix.inspection import Inspection, inspect_tree
from radix.match import Match
from radix.ops import EndGone, Forget, Insert, TreeOp, Trim, apply
from radix.residency import Residency
from radix.snapshot import Rows, TreeMarks, TreePage, TreeSnapshot, check_steps, finished
from radix.starts import SharedStart, shared_start
from radix.tree import BLOCKS_MAX, PrefixTree
from radix.windows import FULL_ATTENTION, PROFILES, Attention, AttentionProfile, safe_blocks

__all__ = [
    "BLOCKS_MAX",
    "BLOCK_BYTES",
    "BLOCK_TOKENS",
    "FULL_ATTENTION",
    "HASH_BYTES",
    "PROFILES",
    "Attention",
    "AttentionProfile",
    "BlockChain",
    "BlocksRemoved",
    "BlocksStored",
    "CacheCleared",
    "EndGone",
    "EngineEvent",
    "Forget",
    "Insert",
    "Inspection",
    "Match",
    "PrefixTree",
    "Residency",
    "Rows",
    "SharedStart",
    "TreeMarks",
    "TreeOp",
    "TreePage",
    "TreeSnapshot",
    "Trim",
    "apply",
    "chain_bytes",
    "chain_token_ids",
    "check_path",
    "check_steps",
    "finished",
    "inspect_tree",
    "root_hash",
    "safe_blocks",
    "shared_start",
]
