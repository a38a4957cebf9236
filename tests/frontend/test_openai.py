"""Programs over a service with OpenAI's API, and asking it ahead."""

from __future__ import annotations

import json
import math

import pytest
from stub_service import Stub

import ramet
from ramet import gen, select
from ramet.frontend.speculate import Ahead, cut
from ramet.runtime.protocol import FinishReason, SamplingParams


@pytest.fixture
def service():
    opened = []

    def open_service(say, model="gpt-x", *, per_piece=1, score=None, write=None, **options):
        stub = Stub(say, per_piece, score, write)
        backend = ramet.OpenAI(model, base_url=stub.url, api_key="k", max_retries=0, **options)
        opened.append((stub, backend))
        return stub, backend

    yield open_service
    for stub, backend in opened:
        backend.shutdown()
        stub.close()


COMPLETION = {"model": "gpt-3.5-turbo-instruct"}


def run(body, backend, spec=None, **options):
    return ramet.function(body, num_api_spec_tokens=spec).run(backend=backend, **options)


def test_chat(service):
    stub, backend = service(lambda messages, body: f"answer {len(messages)}")

    def body(s):
        s += ramet.system("Be kind.") + ramet.user("hi")
        s += ramet.assistant(gen("a", max_tokens=9, temperature=0, stop="."))
        s += ramet.user("more") + ramet.assistant(gen("b"))

    state = run(body, backend)
    assert (state["a"], state["b"]) == ("answer 2", "answer 4")
    assert stub.requests[1]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "answer 2"},
        {"role": "user", "content": "more"},
    ]
    first = stub.requests[0]
    assert (first["max_completion_tokens"], first["temperature"], first["stop"]) == (9, 0.0, ["."])
    assert state.get_meta_info("b")["completion_tokens"] == 3
    assert backend.token_usage.completion_tokens == 6 and backend.token_usage.prompt_tokens > 0


def test_completion(service):
    stub, backend = service(lambda prompt, body: " Paris.", **COMPLETION)

    def body(s):
        s += "Q: France?\nA:" + gen("a", stop=".")
        s += ". " + ramet.user("x")

    state = run(body, backend)
    assert state["a"] == " Paris" and stub.requests[0]["prompt"] == "Q: France?\nA:"
    assert state.text() == "Q: France?\nA: Paris. USER:x\n"


def test_streaming(service):
    _, backend = service(lambda messages, body: "one two three")
    state = ramet.function(lambda s: s.__iadd__(ramet.user("x") + ramet.assistant(gen("a"))) and None).run(backend=backend, stream=True)
    assert list(state.text_iter("a")) == ["one", " two", " three"]


def test_json_and_typed_values(service):
    stub, backend = service(lambda messages, body: '{"x": 1}')

    def body(s):
        s += ramet.user("x") + ramet.assistant(ramet.gen_as("v", dict[str, int]))

    assert run(body, backend)["v"] == {"x": 1}
    assert stub.requests[0]["response_format"]["json_schema"]["strict"] is True


def writer(weights):
    """What a model of one-letter tokens writes after a text, if it answers an option in proportion to its weight; and it may go astray."""

    def write(text, body):
        options = body["response_format"]["json_schema"]["schema"]["properties"]["choice"]["enum"]
        whole = {json.dumps({"choice": option}, ensure_ascii=False): weights[option] for option in options}
        live = {answer: weight for answer, weight in whole.items() if answer.startswith(text) and answer != text}
        follow = {}
        for answer, weight in live.items():
            follow[answer[len(text)]] = follow.get(answer[len(text)], 0.0) + weight
        total = sum(follow.values()) * 1.25
        astray = {"@": math.log(0.2)} if 0.2 * total < max(follow.values(), default=0.0) else {}
        return {token: math.log(weight / total) for token, weight in follow.items()} | astray if follow else {}

    return write


WEIGHTS = {"yes": 0.5, "yes, but": 0.1, "yesterday": 0.05, "no": 0.2, "no\nway": 0.1, "né": 0.05}


@pytest.mark.parametrize("options", [["yes", "no"], list(WEIGHTS), ["yes", "yes, but"], ["no\nway", "né", "no"], ["yesterday"]])
def test_select_of_a_chat_model_gives_the_whole_distribution(service, options):
    stub, backend = service(lambda messages, body: "", write=writer(WEIGHTS))

    def body(s):
        s += ramet.user("which?") + ramet.assistant(select("v", options))

    state = run(body, backend)
    total = sum(WEIGHTS[o] for o in options)
    assert state.get_meta_info("v")["distribution"] == pytest.approx([WEIGHTS[o] / total for o in options])
    assert state["v"] == max(options, key=WEIGHTS.__getitem__) and state.text().endswith(state["v"] + "\ue0f0\ue0f1")
    asked = [request["response_format"]["json_schema"]["schema"]["properties"]["choice"]["enum"] for request in stub.requests]
    assert len(asked) < len(options) and (not asked or asked[0] == options)
    assert state.run.totals["prompt_tokens"] == 5 * len(asked) == backend.token_usage.prompt_tokens


def test_select_of_a_chat_model_draws_by_the_distribution(service):
    _, backend = service(lambda messages, body: "", write=writer(WEIGHTS))
    program = ramet.function(lambda s, seed: s.__iadd__(ramet.user("?") + ramet.assistant(select("v", ["yes", "no"], temperature=1, seed=seed))) and None)
    drawn = [state["v"] for state in program.run_batch([(seed,) for seed in range(60)], backend=backend, num_threads=4)]
    assert 5 <= drawn.count("no") <= 30


def test_options_that_no_alternative_begins_count_as_the_least_likely(service):
    def write(text, body):
        left = '{"choice": "c0"}'[len(text) :]
        return {"c": -0.1, "x": -4.0} if left.startswith("c0") else {left[0]: 0.0} if left else {}

    _, backend = service(lambda messages, body: "", write=write)
    state = run(lambda s: s.__iadd__(ramet.user("?") + ramet.assistant(select("v", ["c0", "far"]))) and None, backend)
    chosen, far = state.get_meta_info("v")["scores"]
    assert state["v"] == "c0" and far - chosen == pytest.approx(-4.0 + 0.1)


@pytest.mark.parametrize(
    ("write", "error", "words"),
    [
        (lambda text, body: {"I say yes": -0.1} if not text else {}, ramet.BackendError, "one of"),
        (lambda text, body: {'{"choice": "maybe"}': -0.1} if not text else {}, ramet.BackendError, "one of"),
        (lambda text, body: {'{"choice": "': -0.1} if not text else {}, ramet.BackendError, "broke off"),
        (lambda text, body: {}, ramet.UnsupportedError, "no log-probabilities"),
    ],
)
def test_select_of_a_chat_model_that_does_not_choose(service, write, error, words):
    _, backend = service(lambda messages, body: "", write=write)
    with pytest.raises(error, match=words):
        run(lambda s: s.__iadd__(ramet.user("?") + ramet.assistant(select("v", ["yes", "no"]))) and None, backend)


def test_options_by_themselves_are_nothing_a_chat_service_can_score(service):
    _, backend = service(lambda messages, body: "", write=writer(WEIGHTS))
    choice = select("v", ["yes", "no"], choices_method=ramet.unconditional_likelihood_normalized)
    with pytest.raises(ramet.UnsupportedError, match="by itself"):
        run(lambda s: s.__iadd__(ramet.user("?") + ramet.assistant(choice)) and None, backend)


def test_select_of_a_completion_model_is_one_call(service):
    scores = {" yes": -3.0, " no": -1.0}
    stub, backend = service(lambda p, b: "", **COMPLETION, score=lambda token: scores.get(token, -9.0))
    state = run(lambda s: s.__iadd__("Q:" + select("v", [" yes", " no"])) and None, backend)
    assert state["v"] == " no" and state.get_meta_info("v")["scores"] == pytest.approx([-3.0, -1.0])
    assert len(stub.requests) == 1


def test_options_that_merge_with_the_prompt_are_scored_from_there_all_of_them(service):
    """"a" + "b" is one token of the service, "a" + " c" two: both are scored with the "a"."""
    scores = {"ab": -2.0, "a": -0.5, " c": -1.0}
    _, backend = service(lambda p, b: "", **COMPLETION, score=lambda token: scores.get(token, -9.0))
    state = run(lambda s: s.__iadd__("x a" + select("v", ["b", " c"])) and None, backend)
    assert state.get_meta_info("v")["scores"] == pytest.approx([-9.0, (-9.0 - 1.0) / 2])


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        (lambda: "text" + gen("a"), "prompt"),
        (lambda: ramet.user("x" + gen("a")), "prompt"),
        (lambda: ramet.user("x") + ramet.assistant("so" + gen("a")), "prompt"),
        (lambda: ramet.user("x") + ramet.assistant(gen("a", top_k=3)), "top_k"),
        (lambda: ramet.user("x") + ramet.assistant(gen("a", regex="a+")), "regex"),
        (lambda: ramet.user("x") + ramet.assistant(gen("a", return_logprob=True)), "return_logprob"),
        (lambda: ramet.user("x") + ramet.assistant(gen("a", priority=3)), "priority"),
    ],
)
def test_what_the_service_cannot_do_is_refused_by_name(service, expression, field):
    stub, backend = service(lambda messages, body: "x")
    with pytest.raises(ramet.UnsupportedError) as caught:
        run(lambda s: s.__iadd__(expression()) and None, backend)
    assert caught.value.field == field and not stub.requests


def test_extensions_and_prefill(service):
    stub, backend = service(lambda messages, body: "x", extensions=True, prefill=True)
    run(lambda s: s.__iadd__(ramet.user("x") + ramet.assistant("so" + gen("a", top_k=3, regex="x", min_tokens=1))) and None, backend)
    (body,) = stub.requests
    assert (body["top_k"], body["regex"], body["min_tokens"], body["continue_final_message"]) == (3, "x", 1, True)
    assert body["messages"][-1] == {"role": "assistant", "content": "so"}


def test_errors_of_the_service(service):
    _, backend = service(lambda messages, body: "!no such model")
    with pytest.raises(ramet.RequestError, match="no such model"):
        run(lambda s: s.__iadd__(ramet.user("x") + ramet.assistant(gen("a"))) and None, backend)
    gone = ramet.OpenAI("m", base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
    with pytest.raises(ramet.BackendError, match="could not be asked"):
        run(lambda s: s.__iadd__(ramet.user("x") + ramet.assistant(gen("a"))) and None, gone)
    gone.shutdown()


# ---- asking ahead ----

PAGE = "Page: " + "word " * 200


def fields(s):
    s += PAGE + "\nName:" + gen("name", stop="\n")
    s += "\nBorn:" + gen("born", stop="\n")
    s += "\nPlace:" + gen("place", stop="\n") + "\n"


def well_behaved(prompt, body):
    whole = "Name: Ada\nBorn: 1815\nPlace: London\nNotes: none\n"
    asked = prompt[len(PAGE) + 1 :]
    return whole[len(asked) :] if whole.startswith(asked) else " ?\n"


@pytest.mark.parametrize("per_piece", [1, 3])
def test_three_fields_in_one_call(service, per_piece):
    plain, backend = service(well_behaved, **COMPLETION, per_piece=per_piece)
    alone = run(fields, backend, temperature=0)
    ahead, other = service(well_behaved, **COMPLETION, per_piece=per_piece)
    state = run(fields, other, spec=64, temperature=0)
    assert [state[v] for v in ("name", "born", "place")] == [" Ada", " 1815", " London"]
    assert state.text() == alone.text()
    assert (len(plain.requests), len(ahead.requests)) == (3, 1)
    assert other.token_usage.prompt_tokens <= 0.45 * backend.token_usage.prompt_tokens
    assert "stop" not in ahead.requests[0] and ahead.requests[0]["max_tokens"] == 128


def test_wrong_speculation_costs_calls_only(service):
    """The service would go on with another field than the program's."""

    def say(prompt, body):
        return " Ada\nDied: 1852\n" if prompt.endswith("Name:") else well_behaved(prompt, body)

    stub, backend = service(say, **COMPLETION)
    state = run(fields, backend, spec=64, temperature=0)
    assert [state[v] for v in ("name", "born", "place")] == [" Ada", " 1815", " London"]
    assert len(stub.requests) == 2


def test_other_parameters_are_asked_for_anew(service):
    stub, backend = service(well_behaved, **COMPLETION)

    def body(s):
        s += PAGE + "\nName:" + gen("name", stop="\n") + "\nBorn:" + gen("born", stop="\n", temperature=0.7)

    assert run(body, backend, spec=64, temperature=0)["born"] == " 1815"
    assert len(stub.requests) == 2


def test_forks_and_batches_have_their_own(service):
    stub, backend = service(well_behaved, **COMPLETION)

    @ramet.function(num_api_spec_tokens=64)
    def body(s, i):
        s += PAGE + "\nName:" + gen("name", stop="\n")
        forks = s.fork(2)
        forks[0].__iadd__("\nBorn:" + gen("x", stop="\n"))
        forks[1].__iadd__("\nPlace:" + gen("x", stop="\n"))
        return [f["x"] for f in forks]

    bound = body.bind(i=0)
    assert bound.num_api_spec_tokens == 64
    states = body.run_batch([(i,) for i in range(4)], backend=backend, temperature=0)
    assert [s.ret_value for s in states] == [[" 1815", " ?"]] * 4
    assert len(stub.requests) == 8  # one call a program, and one for the branch that went another way


def test_chat_in_one_call(service):
    stub, backend = service(lambda messages, body: "Name: Ada\nBorn: 1815\nDone")

    def body(s):
        s += ramet.user(PAGE)
        s += ramet.assistant("Name:" + gen("name", stop="\n") + "\nBorn:" + gen("born", stop="\n") + "\n" + gen("rest"))

    state = run(body, backend, spec=64, temperature=0)
    assert [state[v] for v in ("name", "born", "rest")] == [" Ada", " 1815", "Done"]
    assert len(stub.requests) == 1
    assert state.messages()[-1]["content"] == "Name: Ada\nBorn: 1815\nDone"


def test_a_chat_service_that_does_not_follow_is_an_error(service):
    stub, backend = service(lambda messages, body: "Sure! Name: Ada")

    def body(s):
        s += ramet.user("x") + ramet.assistant("Name:" + gen("name", stop="\n"))

    with pytest.raises(ramet.BackendError, match="Name:"):
        run(body, backend, spec=64)
    assert len(stub.requests) == 3


def test_streaming_what_was_asked_ahead(service):
    _, backend = service(well_behaved, **COMPLETION)
    state = ramet.function(num_api_spec_tokens=64)(fields).run(backend=backend, stream=True, temperature=0)
    assert "".join(state.text_iter("name")) == " Ada"
    assert "".join(state.text_iter("place")) == " London"


def test_a_gen_without_stop_has_its_tokens_and_no_more(service):
    text = " ".join(f"w{i}" for i in range(40))
    stub, backend = service(lambda prompt, body: (" " + text)[len(prompt) - 1 :] if prompt != "x" else " " + text, **COMPLETION)

    def body(s):
        s += "x" + gen("a", max_tokens=5) + gen("b", max_tokens=5)

    state = run(body, backend, spec=20, temperature=0)
    assert (state["a"], state["b"]) == (" w0 w1 w2 w3 w4", " w5 w6 w7 w8 w9")
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    ("ahead", "params", "answer"),
    [
        (("a b. c", ("a", " b", ".", " c"), False), {"stop": (".",)}, ("a b", "stop")),
        (("a b. c", ("a", " b", ".", " c"), False), {"stop": (".",), "max_new_tokens": 2}, ("a b", "length")),
        (("a b. c", None, False), {"stop": (".",), "max_new_tokens": 2}, None),
        (("a b. c", None, False), {"stop": (".",), "max_new_tokens": 4}, ("a b", "stop")),
        (("a b", ("a", " b"), True), {}, ("a b", "stop")),
        (("a b", ("a", " b"), False), {}, None),
        (("a b", ("a", " b"), False), {"stop": ("x",)}, None),
        (("", (), False), {}, None),
        (("a\n\nb", ("a", "\n", "\n", "b"), False), {"stop": ("\n\n", "b")}, ("a", "stop")),
    ],
)
def test_what_can_be_told_from_text_ahead(ahead, params, answer):
    text, pieces, ended = ahead
    found = cut(Ahead(text, pieces, len(text), ended, SamplingParams()), SamplingParams(**params))
    assert (found and (found[0], found[1].type)) == answer
    assert found is None or isinstance(found[1], FinishReason)
