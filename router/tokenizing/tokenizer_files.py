"""A model's tokenizer from a folder, put together as transformers 5 does.

    tokenizer.json          the tokenizer
    tokenizer_config.json   special tokens and their names, a chat template, whether text gets bos and eos
    chat_template.jinja     the template, if there is one: it wins

(``tokenization_utils_tokenizers.py`` and ``tokenization_utils_base.py`` there.) Tokenizer classes that are
rebuilt from a vocabulary, and rules for a class or a model that are in no file, are not followed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"

NAMED_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)


class UnusableTokenizer(Exception):
    """A folder has no tokenizer that can be used."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Content of a folder: a tokenizer that neither cuts nor pads, texts of named tokens, templates by name.

    The template ``default`` is used unless there are tools and a template ``tool_use``.
    """

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    templates: Mapping[str, str]


def read_tokenizer(path: Path) -> TokenizerFiles:
    """Read a tokenizer from its folder or file; raise UnusableTokenizer with the reason if it fails."""
    folder = path if path.is_dir() else path.parent
    file = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableTokenizer(f"{file} cannot be read: {error.strerror}") from error
    except Exception as error:
        raise UnusableTokenizer(f"{file} is no tokenizer: {str(error)[:200]}") from error
    config = _config(folder / CONFIG_FILE)
    named = {name: text for name in NAMED_TOKENS if (text := _token_text(config.get(name))) is not None}
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = config.get("split_special_tokens") is True
    _add_missing(tokenizer, config, named)
    if "add_bos_token" in config or "add_eos_token" in config or tokenizer.post_processor is None:
        _open_and_close(tokenizer, config, named)
    return TokenizerFiles(tokenizer, named, _templates(folder, config))


def _config(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableTokenizer(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise UnusableTokenizer(f"{file} is no JSON object")
    return config


def _token_text(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _added(token: Any, *, special: bool) -> AddedToken:
    if not isinstance(token, dict):
        return AddedToken(str(token), special=special)
    flags = {name: token[name] for name in ("lstrip", "rstrip", "single_word", "normalized") if name in token}
    return AddedToken(token["content"], special=special or token.get("special") is True, **flags)


def _add_missing(tokenizer: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Add the tokens that only the configuration has, in its order, from the first free id on."""
    has = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing: dict[str, AddedToken] = {}
    decoder = config.get("added_tokens_decoder") or {}
    by_id = sorted(decoder.items(), key=lambda item: int(item[0]))
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(extra, dict):
        extra = list(extra.values())
    listed = [(token, False) for _, token in by_id]
    listed += [(config[name], True) for name in named]
    listed += [(token, True) for token in extra]
    for token, special in listed:
        text = _token_text(token)
        if text is not None and text not in has and text not in missing:
            missing[text] = _added(token, special=special)
    tokenizer.add_tokens(list(missing.values()))


def _open_and_close(tokenizer: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Add bos and eos as the configuration says."""
    bos = named.get("bos_token") if config.get("add_bos_token") else None
    eos = named.get("eos_token") if config.get("add_eos_token") else None
    tokens = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token]
    tokenizer.post_processor = TemplateProcessing(
        single=[*([bos] if bos else []), "$A", *([eos] if eos else [])], special_tokens=tokens
    )


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    file = folder / TEMPLATE_FILE
    if file.exists():
        try:
            return {"default": file.read_text(encoding="utf-8")}
        except (OSError, ValueError) as error:
            raise UnusableTokenizer(f"{file} cannot be read: {error}") from error
    configured = config.get("chat_template")
    if isinstance(configured, str):
        return {"default": configured}
    if isinstance(configured, list):
        return {str(each["name"]): str(each["template"]) for each in configured if isinstance(each, dict)}
    return {}
