"""The end of a process, as its client connections see it.

    serving --begin--> ending: every answer is the last one on its connection, and says so;
                               an idle connection waits ``idle_s`` for one more request, then closes

Closing a kept connection is a race: a request may be on its way. So the head of an answer tells the client.
"""


class Ending:
    """State of all connections; from `begun` on no request is served after the one that is."""

    __slots__ = ("begun", "idle_s")

    def __init__(self) -> None:
        self.begun = False
        self.idle_s = 0.0

    def begin(self, idle_s: float = 0.0) -> None:
        """End. The first call's time holds."""
        if not self.begun:
            self.begun = True
            self.idle_s = idle_s
