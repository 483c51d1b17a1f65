"""Host memory of workers (L2): one capacity with the device, at another price.

A worker with host memory keeps more than its device holds: HiCache of SGLang copies what is stored, or what
the device evicts, and loads it back when a prompt matches; vLLM's offloading connector does the same. So the
prefix tree bounds a worker by the sum of both, and the last uses tell where a block is: the device
has the blocks used last, up to its capacity, the host has the rest (both evict by last use).

    on the device   nothing
    on the host     `HOST_TOKEN_S` a token. It is loaded layer by layer while the rest is computed (HiCache,
                    ``mem_cache/l2_transfer.py``), so a prefill takes the longer of the two.

**Unknown memory counts as absent.** The device alone is counted for a worker whose engine does not say
its host's capacity (vLLM: bytes, but not the bytes of a token) and that has no label `HOST_LABEL`. That is
safe: a match that is overlooked costs what it cost before, one that is promised and not there costs a queue.
"""

HOST_LABEL = "host_tokens"
"""Label with the tokens that a worker can reuse from its host memory, those on its device included; 0 for
none. It is preferred to the engine's report."""

HOST_TOKEN_S = 1e-6
"""Seconds that a token takes from host memory to the device [default; not learned].

KV of 40 to 70 KB a token on each GPU (80 layers of 8 KV heads over 8 GPUs; MLA) at the 50 GB/s of PCIe 5.0
x16: 0.8 to 1.4 us. Prefill takes 30 to 100 times as long.
"""
