from router.tokenizing.refusal import Cause, NotTokenized


def test_a_refusal_says_why_in_a_word_and_in_words() -> None:
    error = NotTokenized(Cause.LATE, "it took 3 s")
    assert (error.cause.value, str(error)) == ("late", "it took 3 s")
