"""Program sessions: a state on the server, to which a client sends only what is new."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from serving import events, wait_for


def opened(http, **body):
    return http.post("/session", json=body).json()["session_id"]


def test_a_program(http):
    name = opened(http, text="Q: ")
    assert http.post(f"/session/{name}/append", json={"text": "say:yes;"}).json()["tokens"] == 12
    got = http.post(f"/session/{name}/generate", json={"sampling_params": {"max_new_tokens": 10}}).json()
    assert got["text"] == "yes" and got["tokens"] == 15
    state = http.get(f"/session/{name}").json()
    assert state["text"] == "Q: say:yes;yes" and state["input_ids"][0] == 256 and len(state["input_ids"]) == 15
    more = http.post(f"/session/{name}/generate", json={"append": "\nsay:no"}).json()
    assert more["text"] == "no" and http.get(f"/session/{name}").json()["text"] == "Q: say:yes;yes\nsay:nono"
    assert http.delete(f"/session/{name}").json() == {"closed": True}
    assert http.get(f"/session/{name}").json()["error"]["code"] == "session_not_found"


def test_fork_and_rewind(http):
    name = opened(http, text="say:a")
    twins = http.post(f"/session/{name}/fork", json={"n": 2}).json()["session_ids"]
    assert len({name, *twins}) == 3
    assert http.post(f"/session/{twins[0]}/generate", json={"append": "b"}).json()["text"] == "ab"
    assert http.get(f"/session/{twins[1]}").json()["text"] == http.get(f"/session/{name}").json()["text"] == "say:a"
    assert http.post(f"/session/{twins[0]}/rewind", json={"tokens": 6}).json()["tokens"] == 6
    assert http.get(f"/session/{twins[0]}").json()["text"] == "say:a"
    assert http.post(f"/session/{twins[0]}/rewind", json={"tokens": 99}).json()["error"]["param"] == "tokens"
    for each in (name, *twins):
        http.post(f"/session/{each}/close")


def test_stop_strings_leave_the_state_and_utf8_cuts_stay(http):
    name = opened(http, text="say:one END two")
    got = http.post(f"/session/{name}/generate", json={"sampling_params": {"stop": "END"}}).json()
    assert got["text"] == "one " and http.get(f"/session/{name}").json()["text"] == "say:one END twoone "
    cut = opened(http, text="say:é")
    http.post(f"/session/{cut}/generate", json={"sampling_params": {"max_new_tokens": 1}})
    assert http.get(f"/session/{cut}").json()["input_ids"][-1] == "é".encode()[0]


def test_stream_and_keep(http):
    name = opened(http, text="say:one")
    got = events(http.post(f"/session/{name}/generate", json={"stream": True, "incremental": True}))
    assert "".join(item["text"] for item in got) == "one" and http.get(f"/session/{name}").json()["text"] == "say:oneone"
    http.post(f"/session/{name}/generate", json={"keep": False, "sampling_params": {"n": 2}})
    assert http.get(f"/session/{name}").json()["text"] == "say:oneone"
    assert http.post(f"/session/{name}/generate", json={"sampling_params": {"n": 2}}).json()["error"]["param"] == "sampling_params.n"


def test_a_busy_session_is_refused_and_free_again_after_its_client_left(served, http):
    name = opened(http, text="slow:0.2;say:" + "x" * 50)
    with served.client() as client, client.stream("POST", f"/session/{name}/generate", json={"stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        assert http.post(f"/session/{name}/generate", json={}).status_code == 409
        assert http.post(f"/session/{name}/append", json={"text": "a"}).status_code == 409
        assert http.post(f"/session/{name}/fork", json={}).status_code == 200
    wait_for(lambda: http.post(f"/session/{name}/append", json={"text": "a"}).status_code == 200)
    assert "xxa" not in http.get(f"/session/{name}").json()["text"].split("say:")[1][49:]


def test_one_request_opens_and_generates(http):
    got = http.post("/session", json={"text": "say:one", "generate": {"sampling_params": {"max_new_tokens": 9}}}).json()
    assert got["text"] == "one" and got["kept"] == 3 and got["tokens"] == len("?say:oneone")
    assert http.get(f"/session/{got['session_id']}").json()["text"] == "say:oneone"
    streamed = events(http.post("/session", json={"text": "say:two", "generate": {"stream": True, "incremental": True}}))
    assert "".join(e["text"] for e in streamed) == "two" and all("session_id" not in e for e in streamed[:-1])
    assert http.get(f"/session/{streamed[-1]['session_id']}").json()["text"] == "say:twotwo"
    closed = http.post("/session/close", json={"session_ids": [got["session_id"], streamed[-1]["session_id"], "none such"]}).json()
    assert closed == {"closed": 2} and http.get(f"/session/{got['session_id']}").status_code == 404


def test_one_request_goes_back_appends_forks_and_generates(http):
    name = opened(http, text="say:abc")
    body = {"tokens": 5, "append_ids": [*b"xyz"], "fork": True, "sampling_params": {"max_new_tokens": 9}}
    fork = http.post(f"/session/{name}/generate", json=body).json()
    assert fork["text"] == "xyz" and fork["session_id"] != name
    assert http.get(f"/session/{fork['session_id']}").json()["text"] == "say:xyzxyz" and http.get(f"/session/{name}").json()["text"] == "say:abc"
    back = http.post(f"/session/{name}/generate", json=body | {"fork": False}).json()
    assert back["session_id"] == name and http.get(f"/session/{name}").json()["text"] == "say:xyzxyz"
    http.post("/session/close", json={"session_ids": [name, fork["session_id"]]})


def test_an_answer_that_leaves_no_trace(http):
    name = opened(http, text="slow:0.05;say:abc")
    body = {"fork": True, "keep": False, "sampling_params": {"n": 2}}
    got = http.post(f"/session/{name}/generate", json=body).json()
    assert [each["text"] for each in got] == ["abc", "abc"] and got[0]["session_id"] is None
    assert http.get(f"/session/{name}").json()["text"] == "slow:0.05;say:abc"
    refused = http.post("/session", json={"text": "a", "generate": {"keep": False}}).json()
    assert refused["error"]["param"] == "generate.keep"
    http.delete(f"/session/{name}")


def test_options_are_scored_under_a_session(http):
    name = opened(http, text="abc")
    whole = http.post("/score", json={"text": "abc", "options": ["x", "yz"]}).json()
    under = http.post("/score", json={"session_id": name, "options": ["x", "yz"]}).json()
    assert under["logprobs"] == whole["logprobs"] and under["meta_info"]["prompt_tokens"] == whole["meta_info"]["prompt_tokens"] == 4
    assert http.post("/score", json={"session_id": name, "tokens": 2, "text": "bc!", "options": ["x"]}).json()["meta_info"]["prompt_tokens"] == 5
    assert http.post("/score", json={"session_id": name, "tokens": 9, "options": ["x"]}).json()["error"]["param"] == "tokens"
    assert http.post("/score", json={"tokens": 9, "text": "a", "options": ["x"]}).json()["error"]["param"] == "tokens"
    assert http.post("/score", json={"session_id": "none", "options": ["x"]}).status_code == 404
    http.delete(f"/session/{name}")


def test_what_a_trimmed_stop_keeps_of_the_ids(http):
    got = http.post("/session", json={"text": "say:one END", "generate": {"sampling_params": {"stop": "END"}}}).json()
    assert got["text"] == "one " and got["kept"] == 4 < len(got["output_ids"])


def test_an_answer_that_nobody_waited_for_opens_nothing(serve):
    with serve("--max-sessions", "1").client() as client:
        with client.stream("POST", "/session", json={"text": "slow:0.1;say:" + "x" * 50, "generate": {"stream": True}}) as response:
            next(response.iter_lines())
        assert client.post("/session", json={"text": "say:a", "generate": {}}).json()["session_id"]
        refused = client.post("/session", json={"text": "say:a", "generate": {}})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "too_many_sessions"


@pytest.mark.parametrize(
    "body, param",
    [
        ({"tokens": 99}, "tokens"),
        ({"append": "a", "append_ids": [1]}, "append_ids"),
        ({"append_ids": [9999]}, "append_ids"),
        ({"sampling_params": {"n": 2}}, "sampling_params.n"),
        ({"logprob_start_len": "x"}, "logprob_start_len"),
    ],
)
def test_wrong_turns(http, body, param):
    name = opened(http, text="say:a")
    response = http.post(f"/session/{name}/generate", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param
    http.delete(f"/session/{name}")


@pytest.mark.parametrize(
    "body, param",
    [
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"input_ids": [9999]}, "input_ids"),
        ({"text": "x" * 3000}, "text"),
        ({"ttl": 0}, "ttl"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_wrong_openings(http, body, param):
    response = http.post("/session", json=body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_idle_sessions_expire(http):
    name = opened(http, text="a", ttl=0.3)
    time.sleep(0.5)
    assert http.get(f"/session/{name}").status_code == 404


def test_their_number_is_limited(serve):
    with serve("--max-sessions", "2").client() as client:
        names = [opened(client) for _ in range(2)]
        assert client.post("/session", json={}).json()["error"]["code"] == "too_many_sessions"
        assert client.post(f"/session/{names[0]}/fork", json={}).status_code == 503
        refused = client.post(f"/session/{names[0]}/fork", json={"n": 3})  # more than there can ever be
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "n"
        client.delete(f"/session/{names[0]}")
        assert client.post("/session", json={}).status_code == 200


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.text(max_size=6)),
        st.tuples(st.just("generate"), st.integers(0, 4)),
        st.tuples(st.just("rewind"), st.integers(0, 30)),
        st.tuples(st.just("fork"), st.just(1)),
    ),
    max_size=6,
)


@given(steps)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_session_is_the_same_as_its_ids(http, program):
    """Whatever is done to it, its ids are those that the answers said."""
    name, ids = opened(http, text="say:abcd;"), [256, *b"say:abcd;"]
    for action, value in program:
        if action == "append":
            http.post(f"/session/{name}/append", json={"text": value})
            ids += value.encode()
        elif action == "generate":
            got = http.post(f"/session/{name}/generate", json={"sampling_params": {"max_new_tokens": value}}).json()
            ids += [i for i in got["output_ids"] if i != 257]
        elif action == "rewind" and value <= len(ids):
            http.post(f"/session/{name}/rewind", json={"tokens": value})
            ids = ids[:value]
            if not ids:
                break
        elif action == "fork":
            before, name = name, http.post(f"/session/{name}/fork", json={}).json()["session_ids"][0]
            http.delete(f"/session/{before}")
        assert http.get(f"/session/{name}").json()["input_ids"] == ids
    http.delete(f"/session/{name}")
