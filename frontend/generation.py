"""A `gen` in flight: from its request to its value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..runtime.errors import DeadlineError
from ..runtime.protocol import Chunk, GenerateRequest
from . import ir, speculate
from .answer import Answer, kept, logprob_lists
from .sampling import merged
from .steps import Step, read_value, settle

if TYPE_CHECKING:
    from .branch import Branch, Variable


class Generation(Step):
    """One generation under the branch's ids; its last chunk ends the node."""

    __slots__ = ("answer", "n", "node", "rid", "variable", "wants")

    def __init__(self, branch: Branch, node: ir.Gen, variable: Variable) -> None:
        super().__init__(branch)
        self.node, self.variable = node, variable
        run = branch.run
        self.wants = node.logprobs if node.logprobs.wanted else run.logprobs
        self.rid = run.next_rid()
        self.answer: Answer | None = None  # from its first chunk on
        if self.wants.wanted:
            variable.deltas = []

    def submit(self) -> Generation:
        """To the backend - or, where a remote service may be asked ahead, through what it has said already."""
        branch, run, node = self.branch, self.branch.run, self.node
        request = self._request()
        self.n = request.params.n
        branch.rid = self.rid
        if not run.spec_tokens or not run.backend.speculates or not speculate.fits(node, request.params, self.wants):
            branch.ahead = None
            branch.asks.submit(request, self.take)
        elif (answer := speculate.read_ahead(branch, request.params)) is not None:
            self.take(speculate.known(self.rid, answer, tuple(run.backend.encode(answer[0]))))
        else:
            speculate.Asking(branch, request, run.spec_tokens).submit(self.take)
        if node.timeout is not None:
            run.backend.defer(self._expire, node.timeout)
        return self

    def _request(self) -> GenerateRequest:
        branch, node, run, wants = self.branch, self.node, self.branch.run, self.wants
        own = node.params
        if branch.role == "assistant":
            own = {**own, "stop": (*own.get("stop", run.defaults.get("stop", ())), *run.chat.stop_marks())}
        params = merged(run.defaults, own, node.constraint)
        deadline = run.remaining(node.timeout)
        return GenerateRequest(
            self.rid, settle(branch), params, wants.wanted, wants.start, wants.top, (), node.priority, node.cache_salt, deadline=deadline,
            joined=branch.joined,
        )  # fmt: skip

    def take(self, chunk: Chunk) -> None:
        """The sink: called for every chunk, on the backend's thread."""
        branch = self.branch
        if branch.rid != self.rid:  # cancelled or timed out meanwhile
            return
        if chunk.error is not None:
            branch.fail(chunk.error)
            return
        if self.answer is None:
            self.answer = Answer(self.n)
        answer = self.answer
        over = answer.add(chunk)
        if chunk.index == 0 and (chunk.text or chunk.logprobs):
            self._show(chunk)
        if not over:
            return
        try:
            self._take_in(answer)
        except Exception as exc:  # the text could not be read as the type that was asked for
            branch.fail(exc)
            return
        self.end(self.variable)

    def _show(self, chunk: Chunk) -> None:
        branch, variable = self.branch, self.variable
        branch.show(chunk.text)
        if variable.deltas is not None:
            variable.deltas.append(logprob_lists("output", chunk.logprobs, branch.run.backend, self.wants.with_text))
        variable.pieces.append(chunk.text)
        if not chunk.last:
            branch.stream.notify()

    def _take_in(self, answer: Answer) -> None:
        """The whole answer is there: its ids become the branch's, its text the value."""
        branch, node, variable, n = self.branch, self.node, self.variable, self.n
        backend = branch.run.backend
        text, end = answer.text(), answer.end()
        ids, rest = kept(backend, answer.ids(), text, end.finish if end is not None else None)
        branch.ids += ids
        branch.pending = [rest] if rest else []
        branch.began = branch.began or "text"
        results = [self._result(text, answer, 0)] if n == 1 else [self._result(answer.text(i), answer, i) for i in range(n)]
        if node.thinking is not None:
            thoughts = [thought for _, _, thought in results]
            branch.set_value(f"{node.name}_reasoning_content", thoughts if n > 1 else thoughts[0])
        if n == 1:
            variable.value, variable.meta, _ = results[0]
        else:
            variable.value, variable.meta = [value for value, _, _ in results], [meta for _, meta, _ in results]
        branch.run.note("gen", branch, node.name, self.begun, variable.meta)

    def _result(self, text: str, answer: Answer, index: int) -> tuple[Any, dict[str, Any], str]:
        """Of one output: its value, its meta info and what the model thought before."""
        node, thought = self.node, ""
        if node.thinking is not None:
            thought, text = _thoughts(text, node.thinking)
        value = text if node.read is None else read_value(node.name, node.read, text)
        return value, answer.meta(self.branch.run.backend, index, self.wants.with_text), thought

    def _expire(self) -> None:
        branch = self.branch
        if branch.rid == self.rid:
            branch.fail(DeadlineError(f"gen({self.node.name!r}) took longer than its timeout of {self.node.timeout} s"))
            branch.run.backend.abort(self.rid)


def _thoughts(text: str, marks: tuple[str, str]) -> tuple[str, str]:
    """What stands between the marks, and what follows; a beginning without the first mark counts as thought, too."""
    opening, closing = marks
    head, found, tail = text.partition(closing)
    if not found:
        return ("", text) if opening not in text else (text.partition(opening)[2], "")
    return head.removeprefix(opening).strip(), tail.lstrip()
