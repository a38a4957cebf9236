"""Opens a model's tokenizer: from a GGUF file (converted once and kept), or from the files of a Hugging Face folder."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tokenizers

from .config import EngineConfig
from .errors import ConfigError, CorruptModelError, ModelNotFoundError
from .gguf_reader import GGUFFile
from .hub import ModelFiles, resolve
from .native import cache_dir
from .tokenizer import Tokenizer

CONVERSION = "1"  # part of the cache key: raise it when tokenizer_gguf.py gives other results
END_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "</s>", "<|end|>", "<end_of_turn>")
TOKEN_IDS = {"bos": "bos_token", "eos": "eos_token", "eot": "", "eom": "", "unknown": "unk_token", "padding": "pad_token"}  # in a GGUF file
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
SLOW_FILES = (
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "config.json",
)


def load_tokenizer(files: ModelFiles, config: EngineConfig) -> Tokenizer:
    """The tokenizer at `config.tokenizer_path`, or the model's own. Raises ModelNotFoundError, CorruptModelError, UnsupportedError."""
    template = _user_template(config.chat_template)
    folder = Path(config.tokenizer_path).expanduser() if config.tokenizer_path else files.folder
    if folder is not None and folder.is_dir() and not any(folder.glob("*.gguf")):
        return _from_folder(folder, template)
    if config.tokenizer_path:
        files = resolve(config.tokenizer_path)
    return _from_gguf(GGUFFile(files.gguf), template) if files.gguf else _from_folder(files.path, template)


def _user_template(value: str | None) -> str | None:
    if value is None or "{" in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"chat_template={value!r}: neither Jinja text nor a file that can be read") from error


# --- GGUF


def _from_gguf(file: GGUFFile, template: str | None) -> Tokenizer:
    from .tokenizer_gguf import from_gguf

    backend = _kept(file.fingerprint, lambda: from_gguf(file))
    meta = file.metadata
    ids: dict[str, int] = {n: i for n in TOKEN_IDS if isinstance(i := meta.get(f"tokenizer.ggml.{n}_token_id"), int)}
    named = {name: backend.id_to_token(ids[n]) for n, name in TOKEN_IDS.items() if name and n in ids}
    templates = {"default": template or meta.get("tokenizer.chat_template")}
    if not template:
        templates["tool_use"] = meta.get("tokenizer.chat_template.tool_use")
    return Tokenizer(
        backend,
        bos_id=ids.get("bos"),
        eos_ids=_ends(backend, {ids[n] for n in ("eos", "eot", "eom") if n in ids}),
        named={name: text for name, text in named.items() if text},
        chat_templates={name: text for name, text in templates.items() if text},
    )


def _kept(key: str, make: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """What `make` gave when it was first asked for `key`, kept as tokenizer.json in the cache folder."""
    target = cache_dir() / "tokenizers" / f"{key}-{CONVERSION}.json"
    with suppress(Exception):  # not there, or damaged: made anew
        return tokenizers.Tokenizer.from_file(str(target))
    made = make()
    with suppress(OSError):  # a cache that cannot be written costs time only
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(made.to_str())
        os.replace(scratch, target)
    return made


# --- Hugging Face folders


def _from_folder(folder: Path, template: str | None) -> Tokenizer:
    settings, generation, model = (_json(folder / name) for name in ("tokenizer_config.json", "generation_config.json", "config.json"))
    backend = _fast(folder) if (folder / "tokenizer.json").is_file() else _slow(folder)
    texts = {**_json(folder / "special_tokens_map.json"), **settings}
    named = {name: text for name in NAMED if (text := _text(texts.get(name)))}
    ends = {i for source in (generation, model) for i in _listed(source.get("eos_token_id"))}
    if (eos := backend.token_to_id(named.get("eos_token", ""))) is not None:
        ends.add(eos)
    bos = backend.token_to_id(named.get("bos_token", ""))
    templates = {"default": template} if template else _templates(folder, settings)
    add_bos = settings.get("add_bos_token") is True
    return Tokenizer(backend, bos_id=bos, eos_ids=_ends(backend, ends), named=named, chat_templates=templates, add_bos=add_bos)


def _fast(folder: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare Exception
        raise CorruptModelError(f"{folder / 'tokenizer.json'}: cannot be read: {error}") from error


def _slow(folder: Path) -> tokenizers.Tokenizer:
    """A tokenizer without tokenizer.json, converted by transformers (slow to import) and kept."""
    present = [folder / name for name in SLOW_FILES if (folder / name).is_file()]
    if not any(path.name in ("tokenizer.model", "vocab.json") for path in present):
        raise ModelNotFoundError(f"{folder} holds no tokenizer: tokenizer.json is needed; or name one with tokenizer_path")
    digest = hashlib.sha256()
    for path in present:
        digest.update(path.name.encode() + path.read_bytes())

    def convert() -> tokenizers.Tokenizer:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
        except Exception as error:  # whatever a converter meets in a damaged file
            raise CorruptModelError(f"{folder}: its tokenizer cannot be converted: {error}") from error

    return _kept(digest.hexdigest()[:32], convert)


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    given = settings.get("chat_template")
    named = {t["name"]: t["template"] for t in given} if isinstance(given, list) else {"default": given} if isinstance(given, str) else {}
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    return {**named, **{name: path.read_text(encoding="utf-8") for name, path in files.items()}}


def _ends(backend: tokenizers.Tokenizer, ids: set[int]) -> frozenset[int]:
    """`ids` and every special token that is known to end a turn or a text."""
    special = {token.content: i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    return frozenset(ids | {special[text] for text in END_OF_TURN if text in special})


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptModelError(f"{path}: not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _text(token: Any) -> str | None:
    """A special token is written as text or as an object with its text in `content`."""
    return token.get("content") if isinstance(token, dict) else token if isinstance(token, str) else None


def _listed(value: Any) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]
