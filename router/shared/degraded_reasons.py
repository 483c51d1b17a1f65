"""Reasons why the shared state is degraded: one per loop that has one."""

import logging

from router.shared.ports import SharedListener

logger = logging.getLogger(__name__)

LAST = frozenset(("pace", "registers"))
"""Answers are late, or replicas know different registers: mostly consequences of another reason."""


class DegradedReasons:
    """Reasons by the name of the loop that met them; degraded while there is any."""

    def __init__(self, listener: SharedListener) -> None:
        self._listener = listener
        self._reasons: dict[str, str] = {}

    @property
    def reason(self) -> str | None:
        """The oldest reason that still holds; one of `LAST` only where there is no other."""
        return next((self._reasons[loop] for loop in sorted(self._reasons, key=LAST.__contains__)), None)

    def has(self, loop: str) -> bool:
        """True if a loop cannot do its work."""
        return loop in self._reasons

    def set(self, loop: str, reason: str) -> None:
        """Note that a loop cannot do its work."""
        before = self.reason
        self._reasons[loop] = reason
        if before is None:
            logger.warning(
                "shared state is degraded: this replica serves on by its own knowledge; see to Redis",
                extra={"event": "redis.lost", "loop": loop, "reason": reason},
            )
        if before != self.reason:
            self._listener.degraded(self.reason)

    def clear(self, loop: str) -> None:
        """Note that a loop works."""
        if self._reasons.pop(loop, None) is not None:
            self._listener.degraded(self.reason)
            if self.reason is None:
                logger.info("shared state recovered", extra={"event": "redis.recovered"})
