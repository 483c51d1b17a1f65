import json
from pathlib import Path

import pytest
from fakes.tokenizers import TEMPLATE, tokenizer, write

from router.tokenizing.tokenizer_files import UnusableTokenizer, read_tokenizer


def test_a_folder_or_its_file_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    for path in (folder, folder / "tokenizer.json"):
        files = read_tokenizer(path)
        assert files.special_tokens == {
            "bos_token": "<|bos|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
        }
        assert files.templates == {"default": TEMPLATE}
        assert files.tokenizer.encode("hello").ids == tokenizer().encode("hello").ids


def test_a_template_in_the_configuration_counts_unless_there_is_a_file(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert read_tokenizer(write(tmp_path / "a", template=None, chat_template="x")).templates == {
        "default": "x"
    }
    assert read_tokenizer(write(tmp_path / "b", template=None, chat_template=named)).templates == {
        "default": "a",
        "tool_use": "b",
    }
    assert read_tokenizer(write(tmp_path / "c", chat_template="x")).templates == {"default": TEMPLATE}
    assert read_tokenizer(write(tmp_path / "d", template=None)).templates == {}


def test_nothing_is_cut_or_padded(tmp_path: Path) -> None:
    made = tokenizer()
    made.enable_truncation(2)
    made.enable_padding(length=50)
    found = read_tokenizer(write(tmp_path / "m", made=made)).tokenizer
    assert found.encode("the quick brown fox").ids == tokenizer().encode("the quick brown fox").ids


def test_tokens_that_only_the_configuration_has_are_added(tmp_path: Path) -> None:
    """Those with an id first, in order of it; then named ones, then the others."""
    size = tokenizer().get_vocab_size()
    folder = write(
        tmp_path / "m",
        mask_token="<mask>",
        added_tokens_decoder={
            str(size + 1): {"content": "<two>", "lstrip": True},
            str(size): {"content": "<one>", "special": True},
            "0": {"content": "<|endoftext|>"},
        },
        extra_special_tokens=["<three>", "<one>"],
    )
    found = read_tokenizer(folder).tokenizer
    assert [found.token_to_id(text) for text in ("<one>", "<two>", "<mask>", "<three>")] == [
        size + number for number in range(4)
    ]
    assert found.get_added_tokens_decoder()[size + 1].lstrip


def test_text_is_opened_and_closed_as_the_configuration_says(tmp_path: Path) -> None:
    bos, eos = (tokenizer().token_to_id(text) for text in ("<|bos|>", "<|im_end|>"))
    for number, (said, before, behind) in enumerate(
        [
            ({}, [], []),
            ({"add_bos_token": True}, [bos], []),
            ({"add_bos_token": True, "add_eos_token": True}, [bos], [eos]),
            ({"add_eos_token": True, "bos_token": None}, [], [eos]),
        ]
    ):
        found = read_tokenizer(write(tmp_path / str(number), **said)).tokenizer
        plain = found.encode("hello", add_special_tokens=False).ids
        assert found.encode("hello").ids == [*before, *plain, *behind]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("tokenizer.json", None, "cannot be read"),
        ("tokenizer.json", "{}", "is no tokenizer"),
        ("tokenizer_config.json", "{", "cannot be read"),
        ("tokenizer_config.json", "[]", "is no JSON object"),
        ("chat_template.jinja", b"\xff\xfe\xff", "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, file: str, content: str | bytes | None, says: str
) -> None:
    folder = write(tmp_path / "m")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UnusableTokenizer, match=says):
        read_tokenizer(folder)


def test_a_folder_without_a_configuration_still_has_a_tokenizer(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", template=None)
    (folder / "tokenizer_config.json").unlink()
    assert read_tokenizer(folder).special_tokens == {}
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"] is None
