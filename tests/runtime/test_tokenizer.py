"""Encoding, decoding and tokenizers from GGUF and folders, against transformers on the same vocabulary."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast
from vocabularies import write_byte_level, write_sentencepiece

from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import ConfigError, CorruptModelError, ModelNotFoundError, PromptError, UnsupportedError
from ramet.runtime.gguf_reader import GGUFFile
from ramet.runtime.hub import ModelFiles, resolve
from ramet.runtime.tokenizer_files import load_tokenizer
from ramet.runtime.tokenizer_gguf import SPLITS

TEXTS = [
    "",
    " ",
    "hello",
    " hello two  three   four ",
    " lead  two   three\n\tindent trailing ",
    "né 漢字 🧑‍🚀🫠 ok",
    "the cat's 12345 1 23, x==1.. don't\r\n\n\n  the end",
    "ünïcödé e\u0301 Ω≈ç√ \u00a0\u200b",
    "\x00\x01\x7f",
]


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """A cache folder of its own, so that conversions are made and not found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMET_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def embedded(embedded_model):
    return load_tokenizer(embedded_model, EngineConfig())


@pytest.fixture(scope="session")
def sentencepiece(kept, tmp_path_factory):
    path = write_sentencepiece(tmp_path_factory.mktemp("spm") / "v.gguf")
    return load_tokenizer(resolve(path), EngineConfig())


def test_embedded_equals_transformers(embedded, embedded_model):
    vocabulary = {name: list(GGUFFile(embedded_model.gguf).metadata[f"tokenizer.ggml.{name}"]) for name in ("tokens", "merges")}
    vocab = {token: i for i, token in enumerate(vocabulary["tokens"])}
    theirs = GPT2Tokenizer(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in vocabulary["merges"]])
    theirs.add_special_tokens({"additional_special_tokens": vocabulary["tokens"][:17]})
    chat = "<|im_start|>user\nhi<|im_end|>\n"
    for text in [*TEXTS, chat]:
        ids = embedded.encode(text)
        assert ids == theirs(text, add_special_tokens=False).input_ids
        assert embedded.encode(text, add_special=True) == ids  # this model has no BOS of its own
        assert embedded.decode(ids, skip_special=False) == text
    assert embedded.decode(embedded.encode(chat)) == "user\nhi\n"
    assert embedded.vocab_size == 49152 == len(theirs)


def test_ids_of_the_embedded_model(embedded):
    marker = embedded.backend.token_to_id
    assert embedded.eos_ids == {marker("<|im_end|>"), marker("<|endoftext|>")} == {0, 2}
    assert embedded.special_ids == frozenset(range(17))
    assert embedded.token_bytes(2) == b"" and embedded.token_text(2) == "<|im_end|>"
    assert embedded.token_bytes(10**9) == embedded.token_bytes(-1) == b""
    table = embedded.all_token_bytes()
    assert len(table) == embedded.vocab_size and table[2] is None
    assert sorted({raw for raw in table if raw is not None and len(raw) == 1}) == [bytes([b]) for b in range(256) if bytes([b]) in table]


@pytest.fixture(scope="session")
def known_bytes(embedded):
    """The default model's vocabulary lacks the few bytes that its training data lacked."""
    return {raw[0] for raw in embedded.all_token_bytes() if raw and len(raw) == 1}


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_and_bytes_add_up(embedded, known_bytes, text):
    ids = embedded.encode(text)
    if known_bytes >= set(text.encode()) and not embedded.special_ids & set(ids):
        assert embedded.decode(ids) == text
        assert b"".join(map(embedded.token_bytes, ids)) == text.encode()


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_every_way_to_split(pre, kept, tmp_path):
    """Against the same rule in transformers where it has one; what comes back is always the text."""
    path = write_byte_level(tmp_path / "v.gguf", pre)
    ours = load_tokenizer(resolve(path), EngineConfig())
    composes = pre in ("qwen2", "deepseek-r1-qwen")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="v.gguf") if pre in ("llama-bpe", "qwen2", "tekken", "gpt-2") else None
    for text in [*TEXTS, "<tool>x<|im_end|>"]:
        ids = ours.encode(text)
        assert ours.decode(ids, skip_special=False) == (text if not composes else __import__("unicodedata").normalize("NFC", text))
        if theirs and not composes:
            assert ids == theirs(text, add_special_tokens=False).input_ids, text
    digits = {"smollm": ["1", "2", "3"], "qwen2": ["1", "2", "3"], "llama-bpe": ["123"], "gpt-2": ["123"], "tekken": ["1", "2", "3"]}
    if pre in digits:
        assert [ours.token_text(i) for i in ours.encode("123")] == digits[pre]


def test_sentencepiece_equals_transformers(sentencepiece, tmp_path):
    write_sentencepiece(tmp_path / "v.gguf")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="v.gguf")
    for text in TEXTS:
        (bos, *ids) = sentencepiece.encode(text, add_special=True)
        assert bos == 1
        if not text.startswith(" "):  # transformers drops the first space of a text, sentencepiece does not
            assert ids == theirs(text, add_special_tokens=False).input_ids, text
        assert sentencepiece.decode(ids, skip_special=False) == theirs.decode(ids)
        assert sentencepiece.decode([1, *ids]) == text
    ids = sentencepiece.encode("[INST] hello</s>two")
    assert sentencepiece.decode(ids, skip_special=False) == theirs.decode(ids)
    assert sentencepiece.token_bytes(3 + 0xE7) == b"\xe7"
    assert sentencepiece.token_bytes(sentencepiece.backend.token_to_id("▁hello")) == b" hello"
    assert sentencepiece.eos_ids == {2}


def test_exactly_one_bos(sentencepiece):
    assert sentencepiece.encode("<s>hello", add_special=True) == sentencepiece.encode("<s>hello")
    assert sentencepiece.encode("<s><s>hello") == [1, 1, *sentencepiece.encode("<s>hello")[1:]]  # as written, without add_special


@pytest.mark.parametrize("first", ["hello", "hello ", "", "né\n"])
@pytest.mark.parametrize("second", ["hello", " two", "  trail", "\n", "\x01", "</s>hello", "漢字"])
def test_text_that_continues_gets_no_space_before_it(sentencepiece, first, second):
    begun = sentencepiece.encode(first, add_special=True)
    ids = sentencepiece.encode(second)
    assert b"".join(map(sentencepiece.token_bytes, ids)).decode() == second.replace("</s>", " ")  # after a special token a text begins
    if first:
        whole = sentencepiece.decode([*begun, *ids], skip_special=False)
        assert whole == "<s> " + first + second.replace("</s>", "</s> ")


def test_ids_without_a_space_before(sentencepiece):
    piece = sentencepiece.backend.token_to_id
    assert sentencepiece.encode("hello") == [piece("hello")]
    assert sentencepiece.encode("hello", add_special=True) == [1, piece("▁hello")]
    assert sentencepiece.encode(" hello") == [piece("▁hello")]


def test_tokenizers_need_no_torch(embedded_model):
    script = "import sys; from ramet.runtime.tokenizer_files import load_tokenizer; from ramet.runtime.hub import resolve\n"
    script += "from ramet.runtime.config import EngineConfig; t = load_tokenizer(resolve('smollm2-135m'), EngineConfig())\n"
    script += "print(t.decode(t.encode('hi')), [m for m in ('torch', 'transformers', 'jinja2', 'gguf', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "hi []\n", done.stderr


def test_bos_only_where_the_file_asks_for_it(kept, tmp_path):
    path = write_sentencepiece(tmp_path / "v.gguf", add_bos_token=False, add_eos_token=True, add_space_prefix=False)
    tokenizer = load_tokenizer(resolve(path), EngineConfig())
    ids = tokenizer.encode("hello")
    assert tokenizer.encode("hello", add_special=True) == [*ids, 2]
    assert [tokenizer.token_text(i) for i in ids] == ["hello"] and tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_conversion_is_kept_and_a_damaged_one_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("RAMET_HOME", str(tmp_path / "home"))
    path = write_sentencepiece(tmp_path / "v.gguf")
    ids = load_tokenizer(resolve(path), EngineConfig()).encode("hello two")
    (kept,) = (tmp_path / "home" / "tokenizers").iterdir()
    monkeypatch.setattr("ramet.runtime.tokenizer_gguf.from_gguf", None)  # must not be needed again
    assert load_tokenizer(resolve(path), EngineConfig()).encode("hello two") == ids
    monkeypatch.undo()
    monkeypatch.setenv("RAMET_HOME", str(tmp_path / "home"))
    kept.write_text("{")
    assert load_tokenizer(resolve(path), EngineConfig()).encode("hello two") == ids
    assert json.loads(kept.read_text())["model"]["type"] == "BPE"
    (tmp_path / "home" / "tokenizers").joinpath(kept.name).unlink()
    monkeypatch.setenv("RAMET_HOME", str(kept.parent.parent / "v.gguf" / "no folder"))  # cannot be written: slower, not an error
    assert load_tokenizer(resolve(path), EngineConfig()).encode("hello two") == ids


def test_half_of_a_surrogate_pair_is_refused(embedded):
    with pytest.raises(PromptError, match="position 1"):
        embedded.encode("a\ud83d")


@pytest.mark.parametrize(
    ("metadata", "error", "words"),
    [
        ({"model": "t5"}, UnsupportedError, "'t5'.*known: gpt2, llama"),
        ({"bos_token_id": 10**6}, CorruptModelError, "bos_token_id is 1000000"),
    ],
)
def test_vocabulary_that_is_not_known_is_refused(kept, tmp_path, metadata, error, words):
    path = write_sentencepiece(tmp_path / "v.gguf", **{k: v for k, v in metadata.items() if k != "model"})
    if "model" in metadata:
        raw = path.read_bytes()
        at = raw.index(b"tokenizer.ggml.model") + 20
        path.write_bytes(raw[:at] + raw[at : at + 4] + (2).to_bytes(8, "little") + b"t5" + raw[at + 17 :])
    with pytest.raises(error, match=words):
        load_tokenizer(resolve(path), EngineConfig())


def test_unknown_split_is_refused(kept, tmp_path):
    with pytest.raises(UnsupportedError, match=r"'viking'.*known: deepseek-r1-qwen, default"):
        load_tokenizer(resolve(write_byte_level(tmp_path / "v.gguf", "viking")), EngineConfig())


# --- folders


@pytest.fixture
def folder(sentencepiece, tmp_path):
    """What transformers writes for the sentencepiece vocabulary."""
    theirs = PreTrainedTokenizerFast(tokenizer_object=sentencepiece.backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    theirs.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    return tmp_path


def test_folder_is_the_same_tokenizer(folder, sentencepiece):
    tokenizer = load_tokenizer(resolve(folder), EngineConfig())
    for text in TEXTS:
        assert tokenizer.encode(text, add_special=True) == sentencepiece.encode(text, add_special=True)
    assert tokenizer.bos_id == 1 and tokenizer.eos_ids == {2}
    assert tokenizer.encode_chat([{"role": "user", "content": "hello"}]) == tokenizer.encode("hello", add_special=True)


def test_template_files_of_a_folder(folder):
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("T {{ tools | length }}")
    tokenizer = load_tokenizer(resolve(folder), EngineConfig())
    assert tokenizer.render_chat([{"role": "user", "content": "x"}], tools=[{}, {}]) == "T 2"
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "<s>x"


def test_bos_that_only_the_settings_ask_for(folder):
    raw = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**raw, "post_processor": None}))
    assert load_tokenizer(resolve(folder), EngineConfig()).encode("hello", add_special=True)[0] != 1
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": True}))
    tokenizer = load_tokenizer(resolve(folder), EngineConfig())
    for text in ("hello", "<s>hello", ""):
        assert tokenizer.encode(text, add_special=True).count(1) == 1
    assert tokenizer.encode("hello").count(1) == 0


def test_ends_of_text_come_from_all_files(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert load_tokenizer(resolve(folder), EngineConfig()).eos_ids == {2, 7}


def test_tokenizer_path_and_template_of_the_user(folder, embedded_model, tmp_path):
    template = tmp_path / "mine.jinja"
    template.write_text("T:{{ messages[0].content }}")
    options = EngineConfig(tokenizer_path=str(folder), chat_template=str(template))
    tokenizer = load_tokenizer(embedded_model, options)
    assert tokenizer.vocab_size < 1000 and tokenizer.render_chat([{"role": "user", "content": "x"}]) == "T:x"
    assert load_tokenizer(embedded_model, EngineConfig(chat_template="{{ 1 + 1 }}")).render_chat([{"role": "user", "content": ""}]) == "2"
    with pytest.raises(ConfigError, match="neither Jinja text nor a file"):
        load_tokenizer(embedded_model, EngineConfig(chat_template="no/such.jinja"))


def test_folder_without_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match=r"holds no tokenizer: tokenizer\.json is needed"):
        load_tokenizer(ModelFiles("x", folder=tmp_path), EngineConfig())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptModelError, match=r"tokenizer\.json"):
        load_tokenizer(ModelFiles("x", folder=tmp_path), EngineConfig())


def test_slow_tokenizer_is_converted(kept, tmp_path):
    """vocab.json and merges.txt alone, as GPT-2 and Qwen ship them."""
    fast = GGUFFile(write_byte_level(tmp_path / "v.gguf", "gpt-2"))
    folder = tmp_path / "slow"
    folder.mkdir()
    tokens = list(fast.metadata["tokenizer.ggml.tokens"])
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(fast.metadata["tokenizer.ggml.merges"]) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}')
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    ours = load_tokenizer(ModelFiles("slow", folder=folder), EngineConfig())
    theirs = load_tokenizer(resolve(tmp_path / "v.gguf"), EngineConfig())
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
