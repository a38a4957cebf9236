"""A program prepared for a backend: what its graph says can be done once instead of in every run.

- The constant beginning - few-shot examples, a system message - is tokenized once and computed once; every run begins
  from its ids, and its KV is pinned in the prefix cache as long as the compiled program is there, where the backend can do that.
- A batch is submitted in the order in which its prompts share beginnings, and returned in the order of its items.

The body itself runs as ever, so the answers are the same, also where its way depends on values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..runtime.protocol import GenerateRequest, SamplingParams
from . import ir
from .backends.base import Pinning, compute
from .branch import Branch, Do, Prefix
from .defaults import chat_format, resolve
from .graph import Graph
from .pinned import Pinned
from .run import Run
from .steps import settle_most

if TYPE_CHECKING:
    from .program import Program
    from .state import ProgramState


def compile_func(program: Program, backend: Any = None, **arguments: Any) -> CompiledProgram:
    """See `Program.compile`. `arguments` are those that all runs will have in common."""
    return CompiledProgram(program.bind(**arguments) if arguments else program, resolve(backend))


class CompiledProgram:
    """Runs as the program does. `graph` is what it was compiled from, `prefix_tokens` the length of its constant beginning.

    The beginning stays in the backend's cache until `close`, the end of `with`, or until this object is no longer referred to.
    """

    def __init__(self, program: Program, backend: Any) -> None:
        self.program, self.backend = program, backend
        self.graph: Graph = program.trace()
        self.expected = tuple(self.graph.prefix())
        self._pinned: Pinned | None = None
        self.prefix = self._prepare() if self.expected else Prefix()
        self.prefix_tokens = len(self.prefix.ids)

    @property
    def pinned_tokens(self) -> int:
        """How many tokens of the beginning cannot be evicted; 0 with a backend that has no pins, or that refused this one."""
        return 0 if self._pinned is None else self._pinned.tokens

    def close(self) -> None:
        """Lets the beginning be evicted again. The program still runs, and finds it cached or not."""
        if self._pinned is not None:
            self._pinned.close()

    def __enter__(self) -> CompiledProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, *args: Any, **options: Any) -> ProgramState:
        """As `Program.run`, on the backend it was compiled for."""
        return self._started().run(*args, backend=self.backend, **options)

    __call__ = run

    def run_batch(self, batch_kwargs: Sequence[Any], **options: Any) -> list[ProgramState] | Iterator[ProgramState]:
        """As `Program.run_batch`; items whose prompts begin alike run one after the other."""
        from .batch import arguments_of

        calls = [arguments_of(self.program, item, i) for i, item in enumerate(batch_kwargs)]
        openings = [self.graph.opening({**self.program.bound, **call}) for call in calls]
        order = sorted(range(len(calls)), key=openings.__getitem__)
        return self._started().run_batch(calls, backend=self.backend, order=order, **options)

    def print_graph(self) -> None:
        """One line a node: `stream k: %id = %before + what`."""
        self.graph.print_graph()

    def _started(self) -> Program:
        program = self.program.bind()
        if self._pinned is not None:
            self._pinned.renew()
        if self.expected:
            program.begin = lambda branch: Preset(branch, self.expected, self.prefix)
        return program

    def _prepare(self) -> Prefix:
        """Says the constant beginning on a branch of its own, and has it computed."""
        run = Run(self.backend, chat_format(self.backend))
        branch = run.root
        for leaf in self.expected:
            branch.append(leaf)
        branch.wait()
        branch.raise_error()
        settle_most(branch, least=0)
        prefix = branch.prefix()
        if prefix.ids and isinstance(self.backend, Pinning):
            self._pinned = Pinned(self.backend, prefix.ids)
        elif prefix.ids and not self.backend.speculates:
            compute(self.backend, GenerateRequest(run.next_rid(), prefix.ids, SamplingParams(max_new_tokens=0)))
        return prefix


class Preset:
    """Stands between what a body appends and its branch, until the constant beginning is through or the body leaves it."""

    def __init__(self, branch: Branch, expected: tuple[ir.Expr, ...], prefix: Prefix) -> None:
        self._branch, self._expected, self._prefix = branch, expected, prefix
        self._seen = 0

    def pass_on(self, leaves: Sequence[ir.Expr]) -> list[ir.Expr]:
        """What the branch has to run for these leaves."""
        out: list[ir.Expr] = []
        for leaf in leaves:
            if self._seen == len(self._expected):
                out.append(leaf)
                continue
            rest = _beyond(leaf, self._expected[self._seen], last=self._seen == len(self._expected) - 1)
            if rest is None:  # another way than the traced one: say what was held back
                out += [*self._expected[: self._seen], leaf]
                self._seen = len(self._expected)
                continue
            self._seen += 1
            if self._seen == len(self._expected):
                out.append(Do(lambda branch: branch.become(self._prefix)))
                out += [ir.Text(rest)] if rest else []
        return out

    def rest(self) -> list[ir.Expr]:
        """What was held back, when the body has ended or something else is done with the branch."""
        held = list(self._expected[: self._seen]) if self._seen < len(self._expected) else []
        self._seen = len(self._expected)
        return held


def _beyond(leaf: ir.Expr, expected: ir.Expr, *, last: bool) -> str | None:
    """The text of `leaf` after the expected one; None if it is another."""
    if isinstance(leaf, ir.Text) and isinstance(expected, ir.Text):
        if leaf.text == expected.text:
            return ""
        return leaf.text[len(expected.text) :] if last and leaf.text.startswith(expected.text) else None
    if isinstance(leaf, ir.RoleBegin) and isinstance(expected, ir.RoleBegin):
        return "" if (leaf.role, leaf.generates) == (expected.role, expected.generates) else None
    if isinstance(leaf, ir.RoleEnd) and isinstance(expected, ir.RoleEnd):
        return "" if leaf.role == expected.role else None
    return None
