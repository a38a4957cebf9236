"""Text that arrives token by token: never half a character, never the prompt, never another space."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import write_byte_level, write_sentencepiece

from ramet.runtime.config import EngineConfig
from ramet.runtime.hub import resolve
from ramet.runtime.tokenizer import TextStream
from ramet.runtime.tokenizer_files import load_tokenizer

EMOJI = "né 漢字 🧑‍🚀🫠 ok"
SPACES = " lead  two   three\n\tindent trailing "


@pytest.fixture(scope="module", params=["byte level", "sentencepiece"])
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMET_HOME", str(folder))
        write = write_byte_level if request.param == "byte level" else write_sentencepiece
        path = write(folder / "v.gguf", "llama-bpe") if request.param == "byte level" else write(folder / "v.gguf")
        return load_tokenizer(resolve(path), EngineConfig())


def pieces(tokenizer, ids, size=1, prompt=(), **options):
    stream = TextStream(tokenizer, prompt, **options)
    deltas = [stream.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    return [*deltas, stream.flush()]


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("text", [EMOJI, SPACES, "", "\n", "  ", "a"])
@pytest.mark.parametrize("prompt", ["", "hello", "hello ", "🫠"])
def test_pieces_joined_are_the_text_after_the_prompt(tokenizer, text, size, prompt):
    before, ids = tokenizer.encode(prompt), tokenizer.encode(text)
    deltas = pieces(tokenizer, ids, size, before)
    assert tokenizer.decode(before) + "".join(deltas) == tokenizer.decode([*before, *ids])
    assert not any("\ufffd" in delta for delta in deltas)


def test_a_character_is_given_out_whole(tokenizer):
    ids = [tokenizer.encode("🫠")[-4 + i] for i in range(4)]
    assert pieces(tokenizer, ids) == ["", "", "", "🫠", ""]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_ending_inside_a_character_gives_one_replacement(tokenizer, kept):
    ids = [*tokenizer.encode("ok"), *tokenizer.encode("🫠")[-4:][:kept]]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == "ok\ufffd"
    assert pieces(tokenizer, ids)[-1] == "\ufffd"


@pytest.mark.parametrize("held", [1, 2, 3])
def test_prompt_that_ends_inside_a_character(tokenizer, held):
    character = tokenizer.encode("🫠")[-4:]
    prompt = [*tokenizer.encode("hello "), *character[:held]]
    ok = tokenizer.encode("ok")[-2:]  # without a space before it
    assert "".join(pieces(tokenizer, [*character[held:], *ok], prompt=prompt)) == "🫠ok"
    assert "".join(pieces(tokenizer, ok, prompt=prompt)) == "ok"  # never completed: the prompt's own damage is not shown
    assert "".join(pieces(tokenizer, [], prompt=prompt)) == ""


def test_special_tokens(tokenizer):
    end = next(iter(tokenizer.eos_ids))
    ids = [*tokenizer.encode("ok"), end]
    assert "".join(pieces(tokenizer, ids)) == "ok"
    assert "".join(pieces(tokenizer, ids, skip_special=False)) == "ok" + tokenizer.token_text(end)


def test_special_tokens_alone_are_no_text_before(tokenizer):
    """After BOS only, the space that sentencepiece puts before a text is still dropped."""
    prompt = [tokenizer.bos_id]
    assert "".join(pieces(tokenizer, tokenizer.encode("hello"), prompt=prompt)) == "hello"


def test_ids_beyond_the_vocabulary_are_no_text(tokenizer):
    assert tokenizer.decode([10**6, *tokenizer.encode("ok"), -1]) == "ok"


@given(st.data())
@settings(deadline=None)
def test_any_ids_any_pieces(tokenizer, data):
    ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20)
    output, prompt = data.draw(ids), data.draw(ids)
    cuts = sorted(data.draw(st.lists(st.integers(0, 20), max_size=4)))
    stream = TextStream(tokenizer, prompt)
    joined = "".join(stream.push(output[i:j]) for i, j in itertools.pairwise([0, *cuts, len(output)])) + stream.flush()
    assert joined == "".join(pieces(tokenizer, output, prompt=prompt))
    if not prompt:
        assert joined == tokenizer.decode(output)
    inside = TextStream(tokenizer, prompt).flush()
    assert inside == ""
    if not tokenizer.decode(prompt).endswith("\ufffd"):
        assert tokenizer.decode(prompt) + joined == tokenizer.decode([*prompt, *output])
