"""Host memory for a vLLM on CPUs: its own offloading, with a copy of ours; loaded inside the engine.

vLLM (0.32) offers `OffloadingConnector` for CUDA and XPU alone: `CPUOffloadingSpec.get_worker` refuses
others, and its copies are DMA on streams (``v1/kv_offload/cpu/spec.py``, ``gpu_worker.py``). The scheduler
decides which blocks are stored, found, loaded, evicted and published, on any device. So only the copy is
replaced, through vLLM's extension point for other specs (``v1/kv_offload/factory.py``):

    PYTHONPATH=tests/fakes/inside_vllm vllm serve ... --kv-transfer-config '{
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
            "spec_name": "HostMemory", "spec_module_path": "host_memory", "cpu_bytes_to_use": 1000000}}'

A chunk is one block (``blocks_per_chunk`` 1). Copies are done when they are asked for: of stores after the
step that computed them, of loads before the step that needs them (``offloading/worker.py``).
"""

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostMemory(CPUOffloadingSpec):
    """vLLM's offloading to host memory, which it manages itself."""

    def get_worker(self, kv_caches):
        assert self.blocks_per_chunk == 1
        return _Copies(kv_caches, self.num_chunks)


class _Copies(OffloadingWorker):
    def __init__(self, kv_caches, chunks):
        self._done = []
        self._groups = kv_caches.group_data_refs
        self._device = [each.tensor for each in kv_caches.tensors]
        self._host = [torch.zeros((chunks, each.shape[1]), dtype=each.dtype) for each in self._device]

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, self._device, src_spec, self._host, dst_spec, src_spec.group_sizes)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, self._host, src_spec, self._device, dst_spec, dst_spec.group_sizes)

    def _copy(self, job_id, sources, source_spec, targets, target_spec, group_sizes):
        start = 0
        for group, size in zip(self._groups, group_sizes, strict=True):
            source = torch.from_numpy(source_spec.block_ids[start : start + size]).long()
            target = torch.from_numpy(target_spec.block_ids[start : start + size]).long()
            for tensor in {each.tensor_idx for each in group}:
                targets[tensor][target] = sources[tensor][source]
            start += size
        self._done.append(TransferResult(job_id, success=True))
        return True

    def get_finished(self):
        done, self._done = self._done, []
        return done

    def wait(self, job_ids):
        pass
