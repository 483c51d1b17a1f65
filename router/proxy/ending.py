"""What every client connection of a process must know when the process ends.

    serving --begin--> ending: every answer is the last one on its connection, and says so;
                               an idle connection waits ``idle_s`` for one more request, then closes

HTTP/1.1 cannot take a connection back without a race: a request may be on its way when we close. So a
client is told to close by the head of an answer, and a connection on which nothing is being answered is
kept for a while, until clients use it no more or have been told.
"""


class Ending:
    """Whether the process is ending; one object for all its connections.

    Attributes:
        begun: No request will be served after the one that is.
        idle_s: How long a connection may wait for its last request, in seconds.
    """

    __slots__ = ("begun", "idle_s")

    def __init__(self) -> None:
        self.begun = False
        self.idle_s = 0.0

    def begin(self, idle_s: float = 0.0) -> None:
        """End. What was said first holds."""
        if not self.begun:
            self.begun = True
            self.idle_s = idle_s
