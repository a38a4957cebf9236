"""Programs and runs as SVG: a graph of steps, and a time line of branches with what each generation cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graph import Graph
    from .run import Run

FONT = 'font-family="ui-monospace, monospace" font-size="11"'
SAYS, ROLE, FORK, DATA, SCOPE = "#e8e8ef", "#d5e3f7", "#e5d4f2", "#f5c6c6", "#eeeeee"
COLOURS = {"text": SAYS, "gen": "#bfe3c0", "select": "#f4e2ae", "role": ROLE, "end": ROLE, "fork": FORK, "join": FORK,
           "call": "#f7d9c4", "branch": DATA, "loop": DATA, "scope": SCOPE, "scope_end": SCOPE}  # fmt: skip
COSTS = (("cached", "#9db8d9"), ("computed", "#e0a458"), ("forced", "#b79ad1"), ("generated", "#7fb685"))


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG image. Notebooks show it; `save(path)` writes it."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.svg, encoding="utf-8")

    def __str__(self) -> str:
        return self.svg


def draw_graph(graph: Graph) -> Picture:
    """Steps from top to bottom, a column for each branch, lines to what each step follows."""
    width, height, gap = 210, 24, 10
    place = {node.id: (20 + node.stream * (width + 24), 40 + row * (height + gap)) for row, node in enumerate(graph.nodes)}
    parts = [_text(20, 22, f"{graph.program}({', '.join(graph.arguments)})", bold=True)]
    for node in graph.nodes:
        x, y = place[node.id]
        for before in node.before:
            bx, by = place[before]
            turn = y - gap / 2
            line = f"M{bx + 14} {by + height} L{bx + 14} {turn} L{x + 14} {turn} L{x + 14} {y}"
            parts.append(f'<path d="{line}" fill="none" stroke="#999"/>')
    for node in graph.nodes:
        x, y = place[node.id]
        parts.append(_box(x, y, width, height, COLOURS[node.kind], f"{node.label}{' - ' + node.note if node.note else ''}"))
        parts.append(_text(x + 6, y + 16, _short(node.label, 30)))
    if graph.stopped:
        parts.append(_text(20, 44 + len(graph.nodes) * (height + gap), f"stopped: {graph.stopped}"))
    return _picture(40 + graph.streams * (width + 24), 64 + len(graph.nodes) * (height + gap), parts)


def draw_run(run: Run) -> Picture:
    """A row for each branch over time; each generation a bar, split by how its tokens came to be."""
    events = sorted(run.events, key=lambda e: e.begun)
    rows = {branch: row for row, branch in enumerate(_rows(events))}
    total = max((e.ended for e in events), default=0.0) or 1e-3
    left, scale, height = 90, 760 / total, 30
    parts = [_text(10, 20, _summary(run.totals, total), bold=True)]
    for event in events:
        y = 60 + rows[event.branch] * height
        if event.kind == "fork":
            parent = 60 + rows.get(event.parent or 0, 0) * height
            x = left + event.begun * scale
            parts.append(f'<path d="M{x:.1f} {parent + 10} L{x:.1f} {y + 10}" stroke="#b48ead" fill="none"/>')
            continue
        x, width = left + event.begun * scale, max(2.0, (event.ended - event.begun) * scale)
        parts += _bar(x, y, width, event)
    for branch, row in rows.items():
        parts.append(_text(10, 74 + row * height, "root" if branch == 0 else f"branch {branch}"))
    bottom = 70 + len(rows) * height
    for i, (name, colour) in enumerate(COSTS):
        parts.append(_box(left + i * 130, bottom, 12, 12, colour, name) + _text(left + i * 130 + 18, bottom + 10, f"{name} tokens"))
    return _picture(left + 780, bottom + 30, parts)


def _rows(events: Iterable[Any]) -> list[int]:
    """Branches with anything to show, children below their parents."""
    parents = {e.branch: e.parent for e in events}
    busy = {e.branch for e in events if e.kind != "fork"}
    for branch in list(busy):
        while (branch := parents.get(branch)) is not None:  # type: ignore[assignment]
            busy.add(branch)

    def path(branch: int | None) -> list[int]:
        return [] if branch is None else [*path(parents.get(branch)), branch]

    return sorted(busy | {0}, key=path)


def _bar(x: float, y: float, width: float, event: Any) -> list[str]:
    metas = event.meta if isinstance(event.meta, list) else [event.meta or {}]
    counts = _counts(metas)
    title = f"{event.kind} {event.name or ''}: " + ", ".join(f"{n} {name}" for (name, _), n in zip(COSTS, counts, strict=True))
    title += f"; {event.ended - event.begun:.3f} s"
    parts, at = [], x
    for (_, colour), count in zip(COSTS, counts, strict=True):
        share = width * count / max(1, sum(counts))
        if share:
            parts.append(_box(at, y, share, 16, colour, title))
        at += share
    return [*parts, _text(x + 3, y + 27, _short(event.name or event.kind, max(3, int(width / 7))))]


def _counts(metas: list[Any]) -> tuple[int, int, int, int]:
    prompt, cached = metas[0].get("prompt_tokens", 0), metas[0].get("cached_tokens", 0)
    forced = sum(m.get("forced_tokens", 0) for m in metas)
    return cached, prompt - cached, forced, max(0, sum(m.get("completion_tokens", 0) for m in metas) - forced)


def _summary(totals: Any, seconds: float) -> str:
    hits = totals["cached_tokens"] / max(1, totals["prompt_tokens"])
    return (
        f"{totals['requests']} requests, {totals['prompt_tokens']} prompt tokens, {hits:.0%} of them cached, "
        f"{totals['completion_tokens']} made ({totals['forced_tokens']} forced), {seconds:.2f} s"
    )


def _box(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="2" fill="{colour}" stroke="#777" stroke-width="0.5">'
        f"<title>{_plain(title)}</title></rect>"
    )


def _text(x: float, y: float, text: str, bold: bool = False) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{" font-weight=" + chr(34) + "bold" + chr(34) if bold else ""}>{_plain(text)}</text>'


def _plain(text: str) -> str:
    """Escaped, without characters that XML does not have."""
    return escape("".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in text))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _picture(width: float, height: float, parts: list[str]) -> Picture:
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" {FONT}>'
    return Picture(f'{head}\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n')
