"""What runs of a program cost, as a table for people."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Cost = tuple[str, Mapping[str, int], float]  # label, `state.run.totals`, seconds

ROWS = (
    ("prompt tokens", lambda t: f"{t['prompt_tokens']:,}"),
    ("  found in the cache", lambda t: f"{t['cached_tokens']:,} ({t['cached_tokens'] / max(t['prompt_tokens'], 1):.0%})"),
    ("  computed", lambda t: f"{t['prompt_tokens'] - t['cached_tokens']:,}"),
    ("tokens written", lambda t: f"{t['completion_tokens']:,}"),
    ("  forced by the grammar", lambda t: f"{t['forced_tokens']:,}"),
    ("  generated", lambda t: f"{t['completion_tokens'] - t['forced_tokens']:,}"),
    ("requests", lambda t: f"{t['requests']:,}"),
)


def cost_table(runs: Sequence[Cost], title: str = "What it cost") -> Any:
    """A rich table with one column for each run. Computed is what the cache did not save, generated what the grammar did not."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("")
    for label, _, _ in runs:
        table.add_column(label, justify="right")
    for name, value in ROWS:
        table.add_row(name, *(value(totals) for _, totals, _ in runs))
    table.add_row("seconds", *(f"{seconds:.2f}" for _, _, seconds in runs))
    return table


def print_costs(runs: Sequence[Cost], title: str = "What it cost") -> None:
    """Prints `cost_table`."""
    from rich.console import Console

    Console().print(cost_table(runs, title))


def print_saved(*states: Any) -> None:
    """Prints one line on finished states: the share of prompt tokens that were in the cache, and what was not computed."""
    totals = {key: sum(state.run.totals[key] for state in states) for key in ("prompt_tokens", "cached_tokens", "forced_tokens", "requests")}
    hits = totals["cached_tokens"] / max(1, totals["prompt_tokens"])
    saved = totals["cached_tokens"] + totals["forced_tokens"]
    print(
        f"{totals['requests']} requests: cache hit rate {hits:.0%}, {saved:,} tokens saved "
        f"({totals['cached_tokens']:,} of {totals['prompt_tokens']:,} prompt tokens from the cache, {totals['forced_tokens']:,} forced)"
    )
