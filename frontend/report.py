"""What runs of a program cost, as a table for people."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def cost_table(runs: Sequence[tuple[str, Mapping[str, int], float]], title: str = "What it cost") -> Any:
    """A rich table of runs: (label, `state.run.totals`, seconds). Computed is what neither cache nor grammar saved."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in ("prompt tokens", "found in cache", "computed", "generated", "of them forced", "requests", "seconds"):
        table.add_column(column, justify="right")
    for label, totals, seconds in runs:
        prompt, cached = totals["prompt_tokens"], totals["cached_tokens"]
        share = f"{cached:,} ({cached / prompt:.0%})" if prompt else "0"
        table.add_row(
            label, f"{prompt:,}", share, f"{prompt - cached:,}", f"{totals['completion_tokens']:,}", f"{totals['forced_tokens']:,}",
            f"{totals['requests']:,}", f"{seconds:.2f}",
        )  # fmt: skip
    return table


def print_costs(runs: Sequence[tuple[str, Mapping[str, int], float]], title: str = "What it cost") -> None:
    from rich.console import Console

    console = Console()
    console.print(cost_table(runs, title))
