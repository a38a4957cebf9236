"""Chats rendered as transformers renders them, and what a template may not do."""

import pytest
from transformers import PreTrainedTokenizerFast
from vocabularies import write_sentencepiece

from ramet.runtime.chat_template import render
from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import ConfigError, RequestError, UnsupportedError
from ramet.runtime.hub import resolve
from ramet.runtime.tokenizer_files import load_tokenizer

TURN = "{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}"
TEMPLATES = {
    "plain": "{{ bos_token }}{% for m in messages %}\n    "
    + TURN
    + "\n{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "trimmed, no BOS": "{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] | trim + '\n' }}{% endfor %}",
    "loop controls": "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}" + TURN + "{% endfor %}",
    "generation tag": "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
    + TURN
    + "{% endgeneration %}{% else %}"
    + TURN
    + "{% endif %}{% endfor %}",
    "tools": "{{ bos_token }}{% if tools %}{% for t in tools %}{{ t | tojson(indent=2) }}\n{% endfor %}{% endif %}{% for m in messages %}"
    + TURN
    + "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endif %}{% endfor %}",
    "namespace and slices": "{%- set ns = namespace(found=false) -%}{{ bos_token }}{%- for m in messages[::-1] -%}"
    "{%- if not ns.found and m.role == 'user' -%}{%- set ns.found = true -%}"
    "{{ m.content.split('b')[0].strip() }}{%- endif -%}{%- endfor -%}",
}
MESSAGES = [
    {"role": "system", "content": ' You <answer> & "say" né. '},
    {"role": "user", "content": "abc\n"},
    {"role": "assistant", "content": "Hi 🫠", "tool_calls": [{"function": {"name": "look", "arguments": {"é": [1, None, "<"]}}}]},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Ours and transformers', of one vocabulary that wants a BOS."""
    folder = tmp_path_factory.mktemp("vocabulary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMET_HOME", str(folder))
        path = write_sentencepiece(folder / "v.gguf")
        ours = {name: load_tokenizer(resolve(path), EngineConfig(chat_template=text)) for name, text in TEMPLATES.items()}
        bare = load_tokenizer(resolve(path), EngineConfig())
    theirs = PreTrainedTokenizerFast(tokenizer_object=bare.backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return ours, theirs, bare


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_equals_transformers(tokenizers, name, prompted, tools):
    ours, theirs, _ = tokenizers
    options = {"add_generation_prompt": prompted, "tools": tools}
    expected = theirs.apply_chat_template(MESSAGES, chat_template=TEMPLATES[name], tokenize=False, **options)
    assert ours[name].render_chat(MESSAGES, **options) == expected
    ids = theirs.apply_chat_template(MESSAGES, chat_template=TEMPLATES[name], tokenize=True, return_dict=False, **options)
    got = ours[name].encode_chat(MESSAGES, **options)
    assert got.count(1) == 1 and got[0] == 1
    assert got == (ids if "BOS" not in name else [1, *ids])  # a model that wants a BOS gets it where its template forgot it


@pytest.mark.parametrize("name", ["plain", "loop controls", "generation tag", "trimmed, no BOS"])
@pytest.mark.parametrize("content", ["Hi", "Hi there, ", "x" * 50])
def test_final_message_is_continued_as_in_transformers(tokenizers, name, content):
    ours, theirs, _ = tokenizers
    messages = [*MESSAGES[:2], {"role": "assistant", "content": content}]
    expected = theirs.apply_chat_template(messages, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True)
    text = ours[name].render_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.rstrip() == expected.rstrip()
    assert text.endswith(content)  # the space before what follows is not lost, as it is there where the template trims


def test_default_model_equals_transformers(embedded_model):
    ours = load_tokenizer(embedded_model, EngineConfig())
    theirs = PreTrainedTokenizerFast(tokenizer_object=ours.backend, bos_token="<|im_start|>", eos_token="<|im_end|>")
    theirs.chat_template = ours.chat_template
    for messages in ([{"role": "user", "content": "hi"}], [{"role": "system", "content": "s"}, {"role": "user", "content": " a\n"}]):
        for prompted in (True, False):
            expected = theirs.apply_chat_template(messages, add_generation_prompt=prompted, return_dict=False)
            assert ours.encode_chat(messages, add_generation_prompt=prompted) == expected


def test_a_prefix_of_a_chat_is_a_prefix_of_its_ids(embedded_model):
    """So that the next turn finds the last one in the cache."""
    tokenizer = load_tokenizer(embedded_model, EngineConfig())
    first = [{"role": "user", "content": "hi"}]
    second = [*first, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "more"}]
    prompt = tokenizer.encode_chat(first)
    assert tokenizer.encode_chat(second)[: len(prompt)] == prompt
    begun = tokenizer.encode_chat(
        [*first, {"role": "assistant", "content": "Hello."}], add_generation_prompt=False, continue_final_message=True
    )
    assert begun[: len(prompt)] == prompt


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", MESSAGES, "roles must alternate"),
        ("{{ messages[0].content.nothing.more }}", MESSAGES, "refuses these messages"),
        ("{{ ''.__class__.__mro__ }}", MESSAGES, "refuses these messages"),
        ("{{ messages.append(1) }}", MESSAGES, "refuses these messages"),
        ("{% for i in range(10**9) %}{% endfor %}", MESSAGES, "refuses these messages"),
        ("{{ 'x' * 10 ** 400 }}", MESSAGES, "refuses these messages"),
        ("{{ messages }}", [{"content": "x"}], "needs a role"),
        ("{{ messages }}", ["x"], "needs a role"),
        ("{{ messages }}", [{"role": "user", "content": object()}], "JSON values only"),
    ],
)
def test_refusals_name_the_messages(template, messages, words):
    with pytest.raises(RequestError, match=words) as caught:
        render(template, messages)
    assert caught.value.field == "messages"


def test_other_refusals(tokenizers):
    with pytest.raises(ConfigError, match="does not parse"):
        render("{% for %}", MESSAGES)
    with pytest.raises(UnsupportedError, match="no chat template"):
        tokenizers[2].render_chat(MESSAGES)
    with pytest.raises(RequestError, match="exclude each other"):
        render("x", MESSAGES, continue_final_message=True)
    with pytest.raises(RequestError, match="cannot be continued"):
        render("x", MESSAGES, add_generation_prompt=False, continue_final_message=True)


def test_callers_messages_are_not_changed_and_may_be_parts():
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": None}]
    template = "{% for p in messages[0].content %}{{ p.text }}{% endfor %}{{ 'name' in messages[0] }}"
    assert render(template, parts) == "abFalse"
    assert render(template, parts, add_generation_prompt=False, continue_final_message=True) == "ab"
    assert parts == [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": None}]
