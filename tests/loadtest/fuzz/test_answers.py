"""Hostile workers say anything of themselves, and always that they serve their own model, whole or broken."""

from random import Random

from loadtest.fuzz.answers import WORKER_MODEL, answer, answers, models


def test_a_sound_answer_is_as_long_as_it_says() -> None:
    assert answer(b"{}").endswith(b"content-length: 2\r\n\r\n{}")


def test_the_models_of_a_worker_are_its_own() -> None:
    for seed in range(100):
        said = models(Random(seed))
        assert said.startswith(b'{"object":"list","data":[{"id":"%b"}' % WORKER_MODEL.encode())
        assert b'"emulated"' not in said
        assert b'"calm"' not in said


def test_each_worker_is_asked_for_something_and_some_hang() -> None:
    scripts = [answers(Random(seed)) for seed in range(200)]
    assert all(script.requests for script in scripts)
    assert any(script.hangs for script in scripts)
    said = b"".join(data for script in scripts for data in script.answers.values())
    for part in (b"\\ud800", b"1e300", b"HTTP/1.1 999 X", b"text/event-stream", b"1" + b"0" * 400):
        assert part in said, part
