"""Roles as text: the ids of a program are those of the template for the same messages."""

from __future__ import annotations

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

import ramet
from ramet import gen

CHATML_DEFAULT_SYSTEM = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING_WITH_BOS = (
    "{{ '<s>' }}{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
ALTERNATING = (
    "{{ '<s>' }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system messages here') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Templated(ramet.Fake):
    def __init__(self, template, *args, **options):
        super().__init__(*args, **options)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = self._refuse
        self.template = environment.from_string(template)

    @staticmethod
    def _refuse(message):
        raise jinja2.TemplateError(message)

    def render_chat(self, messages, *, add_generation_prompt=False):
        return self.template.render(messages=messages, add_generation_prompt=add_generation_prompt)


@pytest.fixture
def templated():
    opened = []
    yield lambda *args, **options: opened.append(Templated(*args, **options)) or opened[-1]
    for backend in opened:
        backend.shutdown()


def said(backend, body):
    return ramet.function(body).run(backend=backend)


@pytest.mark.parametrize("template", [CHATML_DEFAULT_SYSTEM, TRIMMING_WITH_BOS, ALTERNATING])
def test_prompts_are_what_the_template_renders(templated, template):
    backend = templated(template, ["one", "two", "three"])
    messages = [{"role": "user", "content": " hi "}]

    def body(s):
        s += ramet.user(" hi ") + ramet.assistant(gen("a"))
        s += ramet.user("more?") + ramet.assistant(gen("b"))

    said(backend, body)
    assert backend.decode(backend.calls[0].prompt) == backend.render_chat(messages, add_generation_prompt=True)
    messages += [{"role": "assistant", "content": "one"}, {"role": "user", "content": "more?"}]
    whole = backend.render_chat(messages, add_generation_prompt=True)
    if template is not ALTERNATING:  # there the model writes the space that the template puts before an answer
        assert backend.decode(backend.calls[1].prompt) == whole
    assert whole.count("<s>") <= 1


def test_a_system_message_of_ones_own_replaces_the_default(templated):
    def body(s):
        s += ramet.system("Mine.") + ramet.user("hi")

    state = said(templated(CHATML_DEFAULT_SYSTEM), body)
    assert state.text() == "<|im_start|>system\nMine.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"


def test_a_template_that_refuses_says_so(templated):
    with pytest.raises(ramet.RequestError, match="no system messages here"):
        said(templated(ALTERNATING), lambda s: s.system("x") and None)
    with pytest.raises(ramet.RequestError, match="must alternate"):
        said(templated(ALTERNATING), lambda s: [s.user("x"), s.user("y")])


def test_a_template_that_rewrites_the_last_answer(templated):
    backend = templated(THINKING, ["one"])

    def body(s):
        s += ramet.user("a") + ramet.assistant("b") + ramet.user("c") + ramet.assistant(gen("d"))

    said(backend, body)
    assert backend.decode(backend.calls[0].prompt) == "<|user|>a<|end|><|assistant|><think></think>b<|end|><|user|>c<|end|><|assistant|>"


def test_roles_after_plain_text_bring_no_second_beginning(templated):
    state = said(templated(TRIMMING_WITH_BOS), lambda s: s.__iadd__("Intro. ").user("hi"))
    assert state.text() == "Intro. <|head|>user<|/head|>\n\nhi<|eot|>"


def test_exactly_one_beginning_of_text(fake):
    backend = fake(["x", "y"], bos=True)

    def body(s):
        s += "plain" + gen("a") + "more" + gen("b")

    said(backend, body)
    assert [list(call.prompt).count(256) for call in backend.calls] == [1, 1]
    assert backend.calls[0].prompt[0] == 256


def test_the_end_of_a_message_stops_the_model(templated):
    backend = templated(TRIMMING_WITH_BOS, ["one<|eot|>rest"])
    state = said(backend, lambda s: s.__iadd__(ramet.user("x") + ramet.assistant(gen("a"))) and None)
    assert state["a"] == "one"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (None, "SYSTEM:s\nUSER:u\nASSISTANT:"),
        ("chatml", "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"),
        ("llama-2-chat", "<s>[INST] <<SYS>>\ns\n<</SYS>>\n\nu [/INST]"),
        (
            "llama-3-instruct",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
)
def test_templates_by_name(fake, name, text):
    def body(s):
        s += ramet.system("s") + ramet.user("u") + ramet.assistant_begin()

    assert ramet.function(body).run(backend=fake(chat=False), chat_template=name).text() == text


def test_default_system_messages_of_named_templates(fake):
    def body(s):
        s += ramet.user("u")

    assert "You are a helpful assistant." in ramet.function(body).run(backend=fake(), chat_template="qwen").text()
    with pytest.raises(ramet.RequestError, match="unknown chat template"):
        ramet.function(body).run(backend=fake(), chat_template="qwern")


roles = st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(roles, st.booleans(), st.sampled_from([CHATML_DEFAULT_SYSTEM, TRIMMING_WITH_BOS]))
def test_any_conversation(order, with_system, template):
    order = (["system"] if with_system else []) + order
    messages = [{"role": role, "content": f"{i} text"} for i, role in enumerate(order)]
    backend = Templated(template)

    def body(s):
        for m in messages:
            getattr(s, m["role"])(m["content"])

    try:
        state = said(backend, body)
        assert state.text() == backend.render_chat(messages)
        assert state.messages() == messages
    finally:
        backend.shutdown()
