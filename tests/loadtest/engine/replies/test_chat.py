import json
from typing import Any

from loadtest.engine.outputs import Sampling, choose_output
from loadtest.engine.replies.chat import ChatReply
from loadtest.engine.replies.reply import Facts
from loadtest.engine.served import Extra, served_job

PROMPT = b"four"
NOBODY: Any = None


def reply(vllm: bool, *samplings: Any) -> Any:
    outputs = [choose_output(PROMPT, index, one, 9, 999) for index, one in enumerate(samplings)]
    jobs = [
        served_job(PROMPT, Extra(), output, NOBODY, block_tokens=1, index=index)
        for index, output in enumerate(outputs)
    ]
    return ChatReply(Facts("id-of-this-answer", "m", 1, vllm, len(jobs)), jobs), jobs


def choice(data: Any) -> Any:
    (event,) = [json.loads(line[6:]) for line in data.split(b"\n\n") if line]
    return event["choices"][0]


TEXT = Sampling(max_tokens=4, ignore_eos=True)
TOOL = Sampling(tool="weather", parameters={"properties": {"city": {}}})


def test_vllm_puts_the_reason_into_the_last_content_chunk() -> None:
    made, (job,) = reply(True, TEXT)

    assert choice(made.delta(job, 0, 1))["delta"] == {"content": job.output.text[:4]}
    last = choice(made.finish(job, 1, 4, "length"))
    assert last["delta"] == {"content": job.output.text[4:]}
    assert (last["finish_reason"], last["stop_reason"]) == ("length", None)


def test_sglang_sends_the_reason_in_a_chunk_of_its_own() -> None:
    made, (job,) = reply(False, TEXT)
    content, end = made.finish(job, 1, 4, "length").split(b"\n\n")[:2]

    assert choice(content)["delta"]["content"] == job.output.text[4:]
    assert choice(content)["finish_reason"] is None
    assert choice(end)["delta"]["content"] is None
    assert (choice(end)["finish_reason"], choice(end)["matched_stop"]) == ("length", None)


def test_a_streamed_tool_call_is_named_once_and_adds_up() -> None:
    for vllm in (True, False):
        made, (job,) = reply(vllm, TOOL)
        first = choice(made.delta(job, 0, 1))["delta"]["tool_calls"][0]
        rest = choice(made.finish(job, 1, job.output.tokens, "tool_calls").split(b"\n\n")[0])["delta"][
            "tool_calls"
        ][0]

        assert first["function"]["name"] == "weather"
        assert "id" not in rest
        arguments = first["function"]["arguments"] + rest["function"]["arguments"]
        assert list(json.loads(arguments)) == ["city"]


def test_the_whole_answer_has_every_choice() -> None:
    made, jobs = reply(True, TEXT, TOOL)
    for job in jobs:
        job.emitted_tokens = job.output.tokens
    body = json.loads(made.whole(["length", "tool_calls"]))

    assert [one["finish_reason"] for one in body["choices"]] == ["length", "tool_calls"]
    assert body["choices"][0]["message"]["content"] == jobs[0].output.text
    assert body["choices"][1]["message"]["tool_calls"][0]["function"]["arguments"] == jobs[1].output.text
    assert body["usage"]["prompt_tokens"] == 1
    assert body["usage"]["completion_tokens"] == sum(job.output.tokens for job in jobs)
