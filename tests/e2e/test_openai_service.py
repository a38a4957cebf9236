"""Programs over Ramet's own OpenAI routes, with the real model: the same answers, and fewer calls when it is asked ahead."""
from __future__ import annotations

import pytest
from serving import Served

import ramet
from ramet import gen

PAGE = "Ada Lovelace was born in 1815 in London. She wrote the first program for a machine."
SHOTS = """Alan Turing was born in 1912 in London. He broke ciphers.
Name: Alan Turing
Born: 1912
Place: London

Marie Curie was born in 1867 in Warsaw. She found two elements.
Name: Marie Curie
Born: 1867
Place: Warsaw

Carl Gauss was born in 1777 in Brunswick. He added up numbers.
Name: Carl Gauss
Born: 1777
Place: Brunswick

"""


def fields(s):
    s += SHOTS + PAGE + "\nName:" + gen("name", stop="\n", max_tokens=24)
    s += "\nBorn:" + gen("born", stop="\n", max_tokens=24)
    s += "\nPlace:" + gen("place", stop="\n", max_tokens=24) + "\n"


@pytest.fixture(scope="module")
def url(embedded_model):
    served = Served(factory="ramet.runtime.server.parts")
    yield served.url + "/v1"
    served.end()


def ask(url, spec):
    with ramet.OpenAI("smollm2-135m", is_chat_model=False, base_url=url, api_key="none") as backend:
        state = ramet.function(fields, num_api_spec_tokens=spec).run(backend=backend, temperature=0)
        return state, backend.token_usage.prompt_tokens


def test_asking_ahead_takes_one_call_and_gives_the_same(url):
    alone, paid = ask(url, None)
    ahead, saved = ask(url, 48)
    assert [ahead[v] for v in ("name", "born", "place")] == [alone[v] for v in ("name", "born", "place")]
    assert ahead.text() == alone.text()
    assert saved <= 0.45 * paid


def test_chat_and_select(url):
    with ramet.OpenAI("smollm2-135m", base_url=url, api_key="none", extensions=True) as backend:

        @ramet.function
        def chat(s):
            s += ramet.user("Name a colour.") + ramet.assistant(gen("a", max_tokens=8, temperature=0))
            s += ramet.user("Yes or no?") + ramet.assistant(ramet.select("b", ["yes", "no"]))
            s += ramet.user("A number?") + ramet.assistant(gen("c", regex=r"[1-9]", max_tokens=4, temperature=0))

        state = chat.run(backend=backend)
        assert state["a"] and state["b"] in ("yes", "no") and state["c"].isdigit()


def test_a_completion_model_scores_options_by_echo(url):
    with ramet.OpenAI("smollm2-135m", is_chat_model=False, base_url=url, api_key="none") as backend:
        state = ramet.function(lambda s: s.__iadd__("2 + 2 =" + ramet.select("v", [" 4", " 7"])) and None).run(backend=backend)
        assert state["v"] in (" 4", " 7") and state.get_meta_info("v")["scores"][0] < 0


def test_a_chat_select_gives_a_distribution_in_one_call(url):
    options = ["yes", "no", "perhaps", "nobody knows"]
    with ramet.OpenAI("smollm2-135m", base_url=url, api_key="none") as backend:
        choose = ramet.function(lambda s: s.__iadd__(ramet.user("Is water wet?") + ramet.assistant(ramet.select("v", options))) and None)
        meta = choose.run(backend=backend).get_meta_info("v")
        again = choose.run(backend=backend).get_meta_info("v")
    assert sum(meta["distribution"]) == pytest.approx(1) and all(p > 0 for p in meta["distribution"])
    assert len(set(meta["distribution"])) == len(options) and meta["distribution"] == pytest.approx(again["distribution"], rel=1e-3)
