"""Frames: what goes in comes out, and what does not fit is dropped, never obeyed."""

from __future__ import annotations

import os
import pickle
import stat
import time
from pathlib import Path

import hypothesis.strategies as st
import pytest
import zmq
from hypothesis import given, settings
from serving import sockets_of

from ramet.runtime import errors
from ramet.runtime.protocol import Chunk, Constraint, FinishReason, GenerateRequest, SamplingParams, Timings, TokenLogprob, Usage
from ramet.runtime.server import ipc

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
numbers = st.floats(allow_nan=False, allow_infinity=False)
logprobs = st.builds(TokenLogprob, st.integers(0, 9), st.none() | numbers, st.lists(st.tuples(st.integers(0, 9), numbers), max_size=2).map(tuple))
params = st.builds(
    SamplingParams,
    max_new_tokens=st.integers(0, 99),
    temperature=numbers,
    logit_bias=st.dictionaries(st.integers(0, 9), numbers, max_size=3),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    n=st.integers(1, 9),
    stop=st.lists(st.text(), max_size=2).map(tuple),
    constraint=st.none() | st.builds(Constraint, st.sampled_from(["regex", "choice", "json_schema"]), st.text()),
)
requests = st.builds(
    GenerateRequest, st.text(), st.text() | ids, params, logprobs=st.booleans(), deadline=st.none() | numbers,
    joined=st.lists(ids, max_size=2).map(tuple),
)  # fmt: skip
chunks = st.builds(
    Chunk,
    st.text(),
    st.integers(0, 9),
    st.text(),
    ids,
    forced=st.lists(st.booleans(), max_size=3).map(tuple),
    logprobs=st.lists(logprobs, max_size=2).map(tuple),
    finish=st.none() | st.builds(FinishReason, st.sampled_from(["stop", "length", "abort"]), st.none() | st.text() | st.integers(0, 9)),
    usage=st.none() | st.builds(Usage, st.integers(0, 9)),
    timings=st.none() | st.builds(Timings, numbers),
)


@given(requests)
@settings(max_examples=60, deadline=None)
def test_requests_survive(request):
    back = ipc.Reader(ipc.ToWorker).read([ipc.encode(ipc.Submit(request))])
    assert back.request == request


@given(st.lists(chunks, max_size=3))
@settings(max_examples=60, deadline=None)
def test_chunks_survive(items):
    assert ipc.Reader(ipc.ToServer).read([ipc.encode(ipc.Chunks(items))]).items == items


@pytest.mark.parametrize(
    "error",
    [
        errors.RequestError("no", field="stop"),
        errors.ConstraintError("no", field="regex"),
        errors.QueueFullError("full", retry_after=2.5),
        errors.EngineClosedError("died"),
        errors.DeadlineError("late"),
        errors.UnsupportedError("never", field="x"),
        errors.BackendError("far", status=502),
    ],
)
def test_errors_keep_their_type(error):
    chunk = ipc.Reader(ipc.ToServer).read([ipc.encode(ipc.Chunks([Chunk("a", error=error)]))]).items[0]
    assert type(chunk.error) is type(error) and str(chunk.error) == str(error) and vars(chunk.error) == vars(error)


def test_an_unknown_error_becomes_an_engine_error():
    chunk = ipc.Reader(ipc.ToServer).read([ipc.encode(ipc.Chunks([Chunk("a", error=OSError("disk"))]))]).items[0]
    assert type(chunk.error) is errors.EngineError and "OSError" in str(chunk.error)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@given(st.lists(st.binary(max_size=1024), max_size=3))
@settings(max_examples=200, deadline=None)
def test_junk_is_dropped(parts):
    reader = ipc.Reader(ipc.ToWorker)
    assert reader.read(parts) is None and reader.dropped == 1


def test_frames_of_the_wrong_shape_are_dropped(tmp_path):
    reader = ipc.Reader(ipc.ToWorker)
    wrong_way = ipc.encode(ipc.Ready(1, {}))
    wrong_type = ipc.encode(ipc.Submit(GenerateRequest("a", "x", SamplingParams(stop="abc"))))  # type: ignore[arg-type]
    bomb = pickle.dumps(Evil(str(tmp_path / "made")))
    for data in (b"", wrong_way, wrong_type, bomb, os.urandom(1024), b"\x91" * 100_000):
        assert reader.read([data]) is None
    assert not (tmp_path / "made").exists()


def test_the_folder_is_private():
    with ipc.Endpoints() as endpoints:
        context = zmq.Context()
        socket = ipc.configure(context.socket(zmq.PULL))
        ipc.bind_private(socket, endpoints.requests)
        assert stat.S_IMODE(endpoints.folder.stat().st_mode) == 0o700
        mode = stat.S_IMODE((endpoints.folder / "requests.sock").stat().st_mode)
        assert mode & 0o077 == 0
        socket.close()
        context.term()
    assert not endpoints.folder.exists()


@pytest.mark.parametrize("side", ["requests.sock", "replies.sock"])
def test_strangers_on_the_sockets_of_a_running_server(serve, tmp_path, side):
    server = serve()
    with server.client() as client:
        folder = sockets_of(server.worker_pid())
        worker = server.worker_pid()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        context = zmq.Context()
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.LINGER, 5000)
        socket.connect(f"ipc://{folder / side}")
        socket.send(os.urandom(1024))
        socket.send_multipart([b"", b""])
        socket.send(pickle.dumps(Evil(str(tmp_path / "made"))))
        socket.send(bytes(100 * 1024 * 1024))
        socket.close()
        context.term()
        end = time.monotonic() + 20
        while server.log.count("dropped a frame") < 4 and time.monotonic() < end:
            time.sleep(0.05)
        assert server.log.count("dropped a frame") == 4, server.log
        assert client.post("/generate", json={"text": "say:fine"}).json()["text"] == "fine"
        assert server.worker_pid() == worker and not (tmp_path / "made").exists()


def test_no_pickle_anywhere():
    root = Path(ipc.__file__).parent
    for path in root.glob("*.py"):
        text = path.read_text()
        assert "import pickle" not in text and "recv_pyobj" not in text and "torch.load" not in text and "eval(" not in text, path
