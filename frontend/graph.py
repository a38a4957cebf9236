"""A program as a graph: what `trace` finds, and what `compile` and `draw` work from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import ir

OPEN, CLOSE = "\ue0a0", "\ue0a1"  # around a symbol's name inside text
_SYMBOL = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)


@dataclass(slots=True, eq=False)
class Node:
    """One step of a branch. `kind`: text, gen, select, role, end, scope, scope_end, fork, join, call, branch or loop.

    A "branch" or "loop" marks where the program's way depended on a value, with the file and line in `note`.
    """

    id: int
    kind: str
    stream: int  # which branch of the program, the root being 0
    before: tuple[int, ...]  # ids of the nodes that it follows
    expr: ir.Expr | None = None
    name: str | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """The node as a line of text, symbols as {name}."""
        if isinstance(self.expr, ir.Text):
            return repr(readable(self.expr.text))
        if isinstance(self.expr, ir.Select):
            return f"select({self.name!r}, {len(self.expr.choices)} choices)"
        if isinstance(self.expr, ir.Gen):
            kind = f", {self.expr.constraint.kind}" if self.expr.constraint is not None else ""
            return f"gen({self.name!r}{kind})"
        return f"{self.kind} {self.name or self.note}".strip()


@dataclass(slots=True)
class Graph:
    """The nodes in the order in which the body said them. `stopped`: why the trace could not go to the end, if it could not."""

    program: str
    arguments: tuple[str, ...]
    nodes: list[Node] = field(default_factory=list)
    stopped: str | None = None

    def stream(self, number: int) -> list[Node]:
        """The nodes of one branch."""
        return [node for node in self.nodes if node.stream == number]

    @property
    def streams(self) -> int:
        return 1 + max((node.stream for node in self.nodes), default=0)

    @property
    def is_static(self) -> bool:
        """Whether the program says the same steps for any arguments."""
        return self.stopped is None and not any(node.kind in ("branch", "loop") for node in self.nodes)

    def prefix(self) -> list[ir.Expr]:
        """What every run says first: fills and roles up to the first symbol, generation or fork. The last text may be a part of a fill."""
        out: list[ir.Expr] = []
        for node in self.stream(0):
            if node.kind not in ("text", "role", "end") or node.expr is None:
                break
            if isinstance(node.expr, ir.Text):
                constant, found, _ = node.expr.text.partition(OPEN)
                if found:
                    if constant:
                        out.append(ir.Text(constant))
                    break
            out.append(node.expr)
        return out

    def opening(self, arguments: dict[str, str]) -> str:
        """The text that a run with these arguments says before its first generation, as far as it can be told."""
        parts = []
        for node in self.stream(0):
            if node.kind in ("gen", "select", "fork", "branch", "loop"):
                break
            if isinstance(node.expr, ir.Text):
                parts.append(_SYMBOL.sub(lambda m: str(arguments.get(m[1], "")), node.expr.text))
        return "".join(parts)

    def lines(self) -> Iterator[str]:
        """One line a node: `stream k: %id = %before + what`."""
        for node in self.nodes:
            before = " + ".join(f"%{i}" for i in node.before)
            yield f"stream {node.stream}: %{node.id} = {before + ' + ' if before else ''}{node.label}"
        if self.stopped:
            yield f"stopped: {self.stopped}"

    def print_graph(self) -> None:
        print(self)

    print_graph_dfs = print_graph

    def __str__(self) -> str:
        return "\n".join(self.lines())


def readable(text: str) -> str:
    return _SYMBOL.sub(r"{\1}", text)
