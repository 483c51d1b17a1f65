"""The seed of the hashes of prompts: the same at all replicas, and none that a client could guess.

The first replica of a namespace draws it and leaves it in Redis; the others take it over. A client that knew
the seed could write a prompt whose blocks have the hashes of another prompt, whose cache would then be taken
for its own. A replica that starts without Redis uses a seed of its own until it meets the others'.
"""

import contextlib
import re
import secrets

from router.shared.server import RedisLink, RedisRefused

_SEED = re.compile(rb"[0-9a-f]{16}")


class HashSeed:
    """The seed as this replica knows it.

    Args:
        key: Its key in Redis.

    Attributes:
        value: 64 bits.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self.value = secrets.randbits(64)

    async def agree(self, link: RedisLink) -> bool:
        """Take over the seed that is in Redis, or leave ours there.

        Returns:
            True if the seed is another one now.

        Raises:
            RedisLost: Redis does not answer.
        """
        own = f"{self.value:016x}"
        found: bytes | None = None
        with contextlib.suppress(RedisRefused):  # it may be read only, or full
            found = await link.call("GET", self._key)
            if found is None:
                await link.call("SET", self._key, own, "NX")
                found = await link.call("GET", self._key)
        if found is None or found == own.encode():
            return False
        if not _SEED.fullmatch(found):
            with contextlib.suppress(RedisRefused):
                await link.call("SET", self._key, own)
            return False
        self.value = int(found, 16)
        return True
