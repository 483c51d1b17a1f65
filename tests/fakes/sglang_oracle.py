"""SGLang's own radix cache, asked for the reuse of some requests; run by the interpreter that has it.

The cache is that of the installed ``sglang`` wheel, unmodified (``mem_cache/unified_radix_cache.py`` and its
imports from ``mem_cache``). Stand-ins replace its imports of kernels, models and schedulers, and KV memory is
numbers. The calls are those of its scheduler, in its order: match and lock, a checkpoint after each chunk and
at the end, windows freed while it decodes (``managers/schedule_batch.py``, ``maybe_evict_swa``), states
tracked where ``_mamba_radix_cache_v2_req_prepare_for_extend`` and ``prepare_for_decode`` do.

    python oracle.py <<< '{"page": 4, "window": 8, "chunk": 16, "linear": false, "track": 16,
                           "requests": [[[1, 2, 3, ...], [7, 8]], ...]}'

reads prompts and answers as token ids, one request after the other, and prints the reused tokens of each.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import types
from array import array
from unittest.mock import MagicMock

import torch
import torch.distributed
import torch.library

REAL = ("sglang.srt.mem_cache", "sglang.srt.utils", "sglang.srt.environ", "sglang.srt.runtime_context")
STOOD_IN = {"triton", "torchvision", "transformers", "PIL", "starlette", "fastapi", "aiohttp", "IPython"}


class StandIn(types.ModuleType):
    """A module of which every name is a class that does nothing."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        does = {"__init__": lambda self, *_, **__: None, "__call__": _returned, "__getattr__": _any_attribute}
        made = _Anything(name, (), does)
        setattr(self, name, made)
        return made


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def _returned(_self, *values, **_named):
    return values[0] if values and callable(values[0]) else _self


def _any_attribute(_self, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for all of SGLang but its caches, and for modules that those need only by name."""

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top == "sglang":
            kept = name in ("sglang", "sglang.srt", "sglang.srt.arg_groups") or name.startswith(REAL)
            if kept and "hf_transformers" not in name:
                return None
        elif top not in STOOD_IN:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


torch.compile = lambda *given, **_: given[0] if given and callable(given[0]) else (lambda done: done)
sys.meta_path.insert(0, StandIns())

from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components import mamba  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402

TOKENS_MAX = 1 << 20


class Allocator(SWATokenToKVPoolAllocator):
    """KV memory without end: every token has a number, the same in both pools."""

    def __init__(self, page):
        self.page_size, self.device = page, "cpu"

    def translate_swa_indices_for_transfer(self, kv_indices):
        return kv_indices

    def _nothing(self, *_, **__):
        return None

    free = free_swa_segment = free_full_segments = free_segments = free_swa = _nothing
    set_full_to_swa_mapping = clear_full_to_swa_mapping = free_full = _nothing
    free_group_begin = free_group_end = free_segment = free_full_segment = _nothing


class Slots:
    """States without end."""

    def __init__(self):
        self.taken = 0

    def alloc(self, count):
        self.taken += count
        return torch.arange(self.taken - count, self.taken)

    def free(self, _slots):
        pass


class Pool(HybridReqToTokenPool):
    """One request's row, and its two slots for states."""

    def __init__(self):
        self.req_to_token = torch.zeros((1, TOKENS_MAX), dtype=torch.int64)
        self.mamba_allocator = Slots()
        self.mamba_pool = types.SimpleNamespace(replayssm_write_pos=None)
        self.mamba_ping_pong_track_buffer_size = 2

    def write(self, where, values):
        self.req_to_token[where] = values

    def get_mamba_ping_pong_keep_idx(self, _req):
        return 0

    def get_mamba_ping_pong_other_idx(self, index):
        return 1 - index

    def donate_mamba_ping_pong_slot(self, req, new_slot):
        donated = req.kv.mamba_ping_pong_track_buffer[:1].clone()
        req.kv.mamba_ping_pong_track_buffer[0] = new_slot[0]
        return donated

    def free_mamba_cache(self, _req, mamba_ping_pong_track_buffer_to_keep=None):
        pass


class Kv:
    """A request's account of its KV (`ReqKvInfo`)."""

    def __init__(self, protected, slots):
        self.req_pool_idx, self.holds_kv, self.holds_mamba = 0, True, True
        self.cache_protected_len = self.cache_inserted_len = protected
        self.swa_evict_floor = 0
        self.evicted = {}
        self.mamba_pool_idx = slots[0]
        self.mamba_ping_pong_track_buffer = slots[1:]
        self.mamba_last_track_seqlen = self.mamba_prev_track_seqlen = None

    def swa_dead_lo(self, _page):
        return self.cache_protected_len

    def get_evicted_seqlen(self, kind):
        return self.evicted.get(kind, 0)

    def set_evicted_seqlen(self, kind, length):
        self.evicted[kind] = length


class Oracle:
    """SGLang's cache, with windows or states."""

    def __init__(self, page, window, chunk, released, linear, track):
        self.page, self.window, self.chunk, self.track = page, window, chunk, track
        self.released, self.linear = released, linear
        self.pool, self.numbers = Pool(), 0
        mamba.mamba_cache_chunk_size = lambda: page
        mamba.mamba_checkpoint_grid = lambda _page: page
        rules = types.SimpleNamespace(mamba_max_states_per_path=-1, enable_mamba_extra_buffer_lazy=False)
        mamba.get_exec = lambda: types.SimpleNamespace(mamba=rules)
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.pool,
                token_to_kv_pool_allocator=Allocator(page),
                page_size=page,
                sliding_window_size=None if linear else window,
                enable_mamba_extra_buffer=linear,
                tree_components=(
                    ComponentType.FULL,
                    ComponentType.MAMBA if linear else ComponentType.SWA,
                ),
                tree_core_backend="python",
            )
        )

    def run(self, prompt, answer):
        """Serve a request; return the tokens that it reused."""
        ids = array("q", [*prompt, *answer])
        key = RadixKey(ids, limit=len(prompt) - 1)
        req = types.SimpleNamespace(
            rid="r", priority=0, session_id=None, kv_rotation_base=None, extra_key=None, cache_salt=None
        )
        found = self.cache._match_tree(MatchPrefixParams(key=key, req=req))
        reused = found.device_prefix_len
        req.kv = Kv(reused, self.pool.mamba_allocator.alloc(3))
        req.swa_branching_seqlen = found.swa_branching_seqlen
        req.mamba_branching_seqlen = found.mamba_branching_seqlen
        req.origin_input_ids = array("q", prompt)
        req.full_untruncated_fill_ids = ids
        req.get_fill_ids = lambda: ids[: req.extend_end]
        req.finished = lambda: False
        req.last_node = found.last_device_node
        req.lock = self.cache.lock(found.last_device_node)
        self.pool.req_to_token[0, :reused] = self.cache.path_device_indices(found.last_device_node)[:reused]
        at = reused
        while at < len(prompt):
            end = min(at + self.chunk, len(prompt))
            self.fill(at, end)
            if self.linear:
                self.tracked(req, at, end)
            req.extend_end = end
            self.cache.checkpoint_into_tree(req, up_to=end)
            at = end
        computed = len(prompt) + max(len(answer) - 1, 0)
        for length in range(len(prompt) + 1, computed + 1):
            self.fill(length - 1, length)
            req.extend_end = length
            if self.linear:
                if length % self.track == 0:
                    req.kv.mamba_last_track_seqlen = length
                continue
            if length - 1 - self.window >= req.kv.get_evicted_seqlen(ComponentType.SWA) + self.released:
                self.cache.evict_sliding_windows(req, length - 1)
        req.finished = lambda: True
        self.cache.checkpoint_into_tree(req, up_to=computed)
        self.cache.unlock(req.lock)
        return reused

    def fill(self, start, end):
        """Give tokens numbers of their own."""
        self.numbers += end - start
        self.pool.req_to_token[0, start:end] = torch.arange(self.numbers - (end - start), self.numbers)

    def tracked(self, req, start, end):
        """Say which state a chunk leaves (``_mamba_radix_cache_v2_req_prepare_for_extend``)."""
        branch = req.mamba_branching_seqlen
        if end - start < self.page:
            return
        req.kv.mamba_last_track_seqlen = start + (end - start) // self.page * self.page
        if branch is not None and start < branch < end and (branch - start) % self.page == 0:
            req.kv.mamba_last_track_seqlen = branch


if __name__ == "__main__":
    given = json.load(sys.stdin)
    requests = given.pop("requests")
    oracle = Oracle(**given)
    print(json.dumps([oracle.run(*each) for each in requests]))
