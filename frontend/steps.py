"""The two nodes that wait for a backend: a generation and a selection."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..runtime.errors import DeadlineError
from ..runtime.protocol import Chunk, GenerateRequest, ScoreRequest, Scores
from . import ir, speculate
from .answer import Answer, kept, logprob_lists, score_meta
from .backends.base import ChunkSink
from .choices import choose, mean_logprob
from .sampling import merged

if TYPE_CHECKING:
    from .branch import Branch, Variable


class Pending:
    """The meeting of an executor that wants to wait and an answer that may already be there: the second one goes on."""

    __slots__ = ("_lock", "_over", "_parked")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parked = self._over = False

    def park(self) -> bool:
        """Called by the executor. False: the answer is there, go on at once."""
        with self._lock:
            self._parked = not self._over
            return self._parked

    def finish(self) -> bool:
        """Called with the answer. True: the executor waits and is to be driven on."""
        with self._lock:
            self._over = True
            return self._parked


def begin_generation(branch: Branch, node: ir.Gen, variable: Variable) -> Pending:
    """Submits a generation under the branch's ids; its last chunk ends the node."""
    run = branch.run
    own = dict(node.params)
    if branch.role == "assistant":
        own["stop"] = (*own.get("stop", run.defaults.get("stop", ())), *run.chat.stop_marks())
    params = merged(run.defaults, own, node.constraint)
    wants = node.logprobs if node.logprobs.wanted else run.logprobs
    request = GenerateRequest(
        run.next_rid(),
        settle(branch),
        params,
        wants.wanted,
        wants.start,
        wants.top,
        (),
        node.priority,
        node.cache_salt,
        deadline=run.remaining(node.timeout),
    )
    answer, pending, begun = Answer(params.n), Pending(), time.monotonic()

    def take(chunk: Chunk) -> None:
        if branch.rid != request.rid:  # cancelled or timed out meanwhile
            return
        if chunk.error is not None:
            branch.fail(chunk.error)
            return
        over = answer.add(chunk)
        if chunk.index == 0 and (chunk.text or chunk.logprobs):
            _show(branch, node, variable, chunk, wants)
        if not over:
            if chunk.text and chunk.index == 0:
                branch.stream.notify()
            return
        try:
            _end_generation(branch, node, variable, answer, wants.with_text)
            run.note("gen", branch, node.name, begun, variable.meta)
        except Exception as exc:  # the text could not be read as the type that was asked for
            branch.fail(exc)
            return
        if pending.finish():
            branch.go_on()

    branch.rid = request.rid
    _submit(branch, node, request, wants, take)
    if node.timeout is not None:
        run.backend.defer(lambda: _expire(branch, request.rid, node), node.timeout)
    return pending


def _submit(branch: Branch, node: ir.Gen, request: GenerateRequest, wants: ir.Logprobs, take: ChunkSink) -> None:
    """To the backend - or, where a remote service may be asked ahead, through what it has said already."""
    run = branch.run
    if not run.spec_tokens or not run.backend.speculates or not speculate.fits(node, request.params, wants):
        branch.ahead = None
        branch.asks.submit(request, take)
        return
    answer = speculate.read_ahead(branch, request.params)
    if answer is not None:
        take(speculate.known(request.rid, answer, tuple(run.backend.encode(answer[0]))))
    else:
        speculate.Asking(branch, request, run.spec_tokens).submit(take)


def _show(branch: Branch, node: ir.Gen, variable: Variable, chunk: Chunk, wants: ir.Logprobs) -> None:
    branch.show(chunk.text)
    if wants.wanted:
        variable.deltas.append(logprob_lists("output", chunk.logprobs, branch.run.backend, wants.with_text))
    variable.pieces.append(chunk.text)


def _end_generation(branch: Branch, node: ir.Gen, variable: Variable, answer: Answer, with_text: bool) -> None:
    backend, n = branch.run.backend, len(answer.texts)
    ids, rest = kept(backend, answer.ids[0], answer.text(), answer.finish())
    branch.ids += ids
    branch.pending = [rest] if rest else []
    branch.began = branch.began or "text"
    metas = [answer.meta(backend, i, with_text) for i in range(n)]
    branch.run.count(metas)
    texts = [answer.text(i) for i in range(n)]
    if node.thinking is not None:
        parts = [_thoughts(text, node.thinking) for text in texts]
        _set(branch, f"{node.name}_reasoning_content", [p[0] for p in parts] if n > 1 else parts[0][0])
        texts = [p[1] for p in parts]
    values = texts if node.read is None else [_read(node, text) for text in texts]
    variable.value = values if n > 1 else values[0]
    variable.meta = metas if n > 1 else metas[0]
    _end(branch, variable)


def _read(node: ir.Gen | ir.Select, text: str) -> Any:
    assert node.read is not None
    try:
        return node.read(text)
    except Exception as exc:
        exc.add_note(f"the text of {node.name!r} was {text!r}; it may have run out of max_tokens")
        raise


def _end(branch: Branch, variable: Variable) -> None:
    branch.rid = None
    variable.done = True
    branch.signal.notify()
    branch.stream.notify()


def _set(branch: Branch, name: str, value: Any) -> None:
    from .branch import Variable

    variable = Variable(name, branch)
    variable.value, variable.done = value, True
    branch.variables[name] = variable


def _thoughts(text: str, marks: tuple[str, str]) -> tuple[str, str]:
    """What stands between the marks, and what follows; a beginning without the first mark counts as thought, too."""
    opening, closing = marks
    head, found, tail = text.partition(closing)
    if not found:
        return ("", text) if opening not in text else (text.partition(opening)[2], "")
    return head.removeprefix(opening).strip(), tail.lstrip()


def _expire(branch: Branch, rid: str, node: ir.Gen) -> None:
    if branch.rid == rid:
        branch.fail(DeadlineError(f"gen({node.name!r}) took longer than its timeout of {node.timeout} s"))
        branch.run.backend.abort(rid)


def settle(branch: Branch) -> tuple[int, ...]:
    """Ids of all that the branch has said. Text is tokenized here, everything since the last ids at once."""
    if branch.pending:
        branch.ids += tuple(tokens(branch, "".join(branch.pending)))
        branch.pending = []
    return branch.ids


def tokens(branch: Branch, text: str) -> list[int]:
    """Ids of `text` after the branch's ids. The first of all get what the tokenizer puts before a text, never a second BOS."""
    backend = branch.run.backend
    first = not branch.ids
    ids = backend.encode(text, add_special=first)
    bos = backend.bos_id
    return ids[1:] if first and bos is not None and ids[:2] == [bos, bos] else ids


def settle_most(branch: Branch, least: int = 400) -> None:
    """Tokenizes a long pending text but for its last word, where cutting changes no token, so that forks need not."""
    text = "".join(branch.pending)
    cut = text.rfind(" ", 0, len(text) - 1)
    if len(text) < least or cut <= 0 or text[cut - 1].isspace() or text[cut + 1].isspace():
        return
    whole, head = tokens(branch, text), tokens(branch, text[:cut])
    if whole[: len(head)] == head:
        branch.ids, branch.pending = branch.ids + tuple(head), [text[cut:]]


def begin_selection(branch: Branch, node: ir.Select, variable: Variable) -> Pending:
    """Scores all options under the branch's ids in one request, and says the chosen one.

    The text before them that has no ids yet is tokenized with each option, as the tokenizer would see them together;
    all are scored from the first token at which one of them leaves the prompt.
    """
    run, backend, pending, begun = branch.run, branch.run.backend, Pending(), time.monotonic()
    before = "".join(branch.pending)
    prompt = tokens(branch, before)
    wholes = {choice: tokens(branch, before + choice) for choice in node.choices}
    start = min(_shared(prompt, whole) for whole in wholes.values())
    head = branch.ids + tuple(prompt[:start])
    tails = {choice: tuple(whole[start:]) for choice, whole in wholes.items()}

    def chosen(scores: Scores, alone: Scores | None) -> None:
        known = dict(zip(_distinct(tails.values()), scores.logprobs, strict=True))
        rows = [_entries(backend, tails[c], known.get(tails[c], ())) for c in node.choices]
        bare = None
        if alone is not None:
            own = {c: tuple(backend.encode(c)) for c in node.choices}
            known = dict(zip(_distinct(own.values()), alone.logprobs, strict=True))
            bare = [_entries(backend, own[c], known.get(own[c], ())) for c in node.choices]
        decision = node.method(
            choices=list(node.choices),
            normalized_prompt_logprobs=[mean_logprob(row) for row in rows],
            input_token_logprobs=rows,
            output_token_logprobs=[row[-1:] for row in rows],
            **({} if bare is None else {"unconditional_token_logprobs": bare}),
        )
        seed = node.seed if node.seed is not None else run.defaults.get("seed")
        text, meta = choose(decision, node.choices, node.temperature, random.Random(seed))
        if text not in wholes:
            raise ValueError(f"choices_method chose {text!r}, which is none of the choices")
        branch.ids += tuple(wholes[text])
        branch.pending, branch.began, branch.ahead = [], branch.began or "text", None
        branch.show(text)
        variable.pieces.append(text)
        variable.value = text if node.read is None else _read(node, text)
        variable.meta = {**score_meta(scores), "completion_tokens": len(tails[text]), **meta}
        run.count([variable.meta])
        _end(branch, variable)
        run.note("select", branch, node.name, begun, variable.meta)

    def scored(scores: Scores) -> None:
        if getattr(node.method, "requires_unconditional_logprobs", False):
            alone = _distinct(tuple(backend.encode(c)) for c in node.choices)
            _score(branch, (_start_id(branch),), alone, lambda other: finish(scores, other))
        else:
            finish(scores, None)

    def finish(scores: Scores, alone: Scores | None) -> None:
        chosen(scores, alone)
        if pending.finish():
            branch.go_on()

    _score(branch, head or (_start_id(branch),), _distinct(tails.values()), scored)
    return pending


def _score(branch: Branch, prompt: tuple[int, ...], options: Sequence[tuple[int, ...]], then: Any) -> None:
    """Scores `options`; `then` gets the scores on the backend's thread, and its errors end the branch."""
    run = branch.run
    request = ScoreRequest(run.next_rid(), prompt, tuple(options), deadline=run.remaining(None))

    def take(scores: Scores) -> None:
        if branch.rid != request.rid:
            return
        try:
            if scores.error is not None:
                raise scores.error
            then(scores)
        except Exception as exc:
            branch.fail(exc)

    branch.rid = request.rid
    if options:
        branch.asks.score(request, take)
    else:  # only empty options: nothing to compute
        take(Scores(request.rid))


def _start_id(branch: Branch) -> int:
    """What a text begins after when nothing is before it: the beginning of text, or the end of the one before."""
    backend = branch.run.backend
    return backend.bos_id if backend.bos_id is not None else backend.eos_ids[0]


def _entries(backend: Any, ids: tuple[int, ...], logprobs: Sequence[float]) -> list[tuple[float, int, str]]:
    return [(logprob, i, backend.decode([i])) for i, logprob in zip(ids, logprobs, strict=False)]


def _distinct(tails: Any) -> list[tuple[int, ...]]:
    """The non-empty ones, each once, in order."""
    return [tail for tail in dict.fromkeys(tails) if tail]


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
