"""Lessons of follow-ups on the ends of prompts and answers."""

from policies.dispatch.continuations import Continuations, end_reach
from radix import HASH_BYTES, AttentionProfile, chain_bytes

WINDOWS = AttentionProfile("sliding_window", window_tokens=128)
STATES = AttentionProfile("linear")


def path_of(text: str) -> bytes:
    return chain_bytes(text.encode(), 7, 1)


class Sessions:
    """Prompts in blocks of 256 tokens and 100 behind them, answers of 500 tokens."""

    def __init__(self, profile: AttentionProfile = WINDOWS) -> None:
        self.learned = Continuations()
        self.profile = profile

    def answered(
        self, text: str, matched: int, cached: int, *, branched: bool = False, answer: int = 500
    ) -> int | None:
        """Return how far behind the prompt's end it can be gone on, in tokens."""
        prompt_tokens = len(text) * 256 + 100
        lengths = prompt_tokens, prompt_tokens + answer
        end = self.learned.answered(
            path_of(text), matched, lengths, cached, self.profile, tail_tokens=100, branched=branched
        )
        if end is None:
            return None
        assert end[0] == path_of(text)[-HASH_BYTES:]
        return end[1] - prompt_tokens


def test_until_the_first_follow_up_prompts_are_believed_to_continue_answers() -> None:
    assert Sessions().answered("abcd", 0, 0) == 500


def test_one_follow_up_that_continued_nothing_ends_that_belief() -> None:
    """1,124 tokens were there; the second prompt reused 1,024 of them, all whole blocks that agree."""
    sessions = Sessions()
    sessions.answered("abcd", 0, 0)

    assert sessions.answered("abcdef", 4, 1024) is None
    assert sessions.answered("ABCD", 0, 0) is None


def test_a_client_that_leaves_answers_out_continues_its_prompts() -> None:
    sessions = Sessions()
    sessions.answered("abcd", 0, 0)

    assert sessions.answered("abcdefg", 4, 1088) == 0


def test_a_session_that_continued_once_is_believed_whatever_others_do() -> None:
    sessions = Sessions()
    for text in ("abcd", "ABCD", "1234"):
        sessions.answered(text, 0, 0)
        sessions.answered(text + "xy", 4, 1024)
    sessions.answered("klmn", 0, 0)

    assert sessions.answered("klmnopqr", 4, 1124 + 448) == 500
    assert sessions.answered("uvw", 0, 0) is None


def test_a_fork_is_no_follow_up() -> None:
    """It parts where no prompt ended, so it says nothing of continuing."""
    sessions = Sessions()
    sessions.answered("abcd", 0, 0)

    assert sessions.answered("abXYZ", 2, 512) == 500


def test_behind_a_branch_only_an_answer_that_comes_again_can_be_gone_on_from() -> None:
    """The window of the prompt's end is not kept."""
    sessions = Sessions()
    assert sessions.answered("abcd", 2, 256, branched=True) == 500
    sessions.answered("abcdefg", 4, 1088)

    assert sessions.answered("1234", 2, 256, branched=True) is None
    assert sessions.answered("5678", 0, 0) == 0


def test_states_of_an_answer_are_at_multiples_of_256() -> None:
    """1,124 + 500 = 1,624 is behind 1,536; with 100 more tokens no multiple is passed."""
    assert Sessions(STATES).answered("abcd", 0, 0) == 1536 - 1124
    assert Sessions(STATES).answered("abcd", 0, 0, answer=100) == 0
    assert Sessions(STATES).answered("abcd", 2, 256, answer=100, branched=True) is None


def test_an_end_is_told_in_whole_blocks_behind_the_prompts_last() -> None:
    told = end_reach("w", (b"12345678", 1624), 4, 256.0, 9)

    assert (told.worker, told.path, told.at_us, told.blocks) == ("w", b"12345678", 9, 2)
    assert end_reach("w", (b"12345678", 900), 4, 256.0, 9).blocks == 0
