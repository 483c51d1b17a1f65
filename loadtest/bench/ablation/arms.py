"""Arms of the comparison: ways to place, each a setting or two more than the one before.

    round robin                    looks at nothing
    history                        the default: placements, corrected by ``cached_tokens`` of answers
    history, exact identity        prompts hashed as the token ids that the engine will see
    events, exact identity         and the engine's KV events say what a worker holds

The first is the reference.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to place.

    Attributes:
        key: Name in results and on the command line.
        exact: Hash prompts as the model's token ids.
        events: Follow the engines' KV events.
    """

    key: str
    title: str
    policy: str = "expected_cost"
    exact: bool = False
    events: bool = False


ARMS = (
    Arm("round-robin", "round robin", "round_robin"),
    Arm("history", "history"),
    Arm("history-exact", "history, exact identity", exact=True),
    Arm("events", "KV events, exact identity", exact=True, events=True),
)
