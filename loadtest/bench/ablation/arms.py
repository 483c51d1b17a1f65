"""What is compared: ways to place, each a setting or two more than the one before.

round robin                    looks at nothing
history                        the default: what was placed, corrected by ``cached_tokens`` of answers
history, exact identity        prompts are hashed as the token ids that the engine will see
events, exact identity         and what a worker holds is what its engine says that it stored and removed
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to place.

    Attributes:
        key: Its name in results and on the command line.
        title: Its name for people.
        policy: The placement policy.
        exact: Whether prompts are hashed as the model's token ids.
        events: Whether the engines' KV events are followed.
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
