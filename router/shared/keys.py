"""The names of everything a namespace keeps in Redis.

All keys of a namespace share one hash tag, so that they live in one slot of a Redis Cluster
and the scripts below may touch several of them.
"""

import re
from dataclasses import dataclass

_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace.

    Attributes:
        namespace: 1 to 64 letters, digits, ``.``, ``_`` or ``-``.

    Raises:
        ValueError: The namespace has other characters.
    """

    namespace: str

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError(f"namespace {self.namespace!r} must be 1 to 64 letters, digits, '.', '_' or '-'")

    @property
    def log(self) -> str:
        """The stream of operations."""
        return f"cw:{{{self.namespace}}}:log"

    @property
    def snapshot(self) -> str:
        """The head of the newest snapshot, a hash."""
        return f"cw:{{{self.namespace}}}:snap"

    def pieces(self, name: str) -> str:
        """The pieces of one snapshot, a hash."""
        return f"{self.snapshot}:{name}"

    @property
    def lease(self) -> str:
        """The writer that may write the snapshot."""
        return f"cw:{{{self.namespace}}}:lease"

    @property
    def replicas(self) -> str:
        """Sorted set of replica ids by the log time at which each was last seen."""
        return f"cw:{{{self.namespace}}}:replicas"

    @property
    def onward(self) -> str:
        """Replicas that read shortened placements: the time of their last beat, and their process."""
        return f"cw:{{{self.namespace}}}:onward"

    @property
    def seed(self) -> str:
        """Seed of the hashes of prompts: a secret that all replicas share."""
        return f"cw:{{{self.namespace}}}:seed"

    @property
    def digests(self) -> str:
        """Hash of the digests of each replica's registers (`router.shared.agreement`), by replica id."""
        return f"cw:{{{self.namespace}}}:digests"

    @property
    def probe(self) -> str:
        """Never exists: appending to it without making it asks whether the log would be appended to."""
        return f"cw:{{{self.namespace}}}:probe"

    def replica(self, replica: str) -> str:
        """The heartbeat of one replica."""
        return f"cw:{{{self.namespace}}}:replica:{replica}"

    def response(self, name: str) -> str:
        """The worker that keeps a stored response."""
        return f"cw:{{{self.namespace}}}:response:{name}"

    @property
    def adapters(self) -> str:
        """Sorted set of LoRA adapters by the log time of their newest use, at any replica."""
        return f"cw:{{{self.namespace}}}:adapters"

    @property
    def leaving(self) -> str:
        """Sorted set of workers and adapters by the log time at which a replica began to unload them."""
        return f"{self.adapters}:leaving"

    @property
    def sessions(self) -> str:
        """The stream of sessions and their last workers."""
        return f"cw:{{{self.namespace}}}:sessions"

    def limits(self, account: str) -> str:
        """Use of the limits of one account, a hash. Older versions keep a string under ``limits``."""
        return f"cw:{{{self.namespace}}}:account:{account}"
