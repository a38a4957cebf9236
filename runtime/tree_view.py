"""The radix tree of a server, drawn in a terminal: what `ramet tree URL` shows."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .errors import BackendError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text
    from rich.tree import Tree

SHOWN = 48  # characters of a node's text


def fetch(url: str, path: str, *, api_key: str | None = None, body: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    """A JSON answer of a server. Raises BackendError saying what it said."""
    import httpx

    key = api_key or os.environ.get("RAMET_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    address = (url if "://" in url else f"http://{url}").rstrip("/") + path
    try:
        answer = httpx.request("GET" if body is None else "POST", address, headers=headers, params=params, json=body, timeout=30)
        data = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise BackendError(f"{address}: {error or type(error).__name__}") from error
    except ValueError:
        raise BackendError(f"{address}: {answer.status_code}, and no JSON; is this a Ramet server?", status=answer.status_code) from None
    if answer.status_code != 200:
        message = data.get("error", {}).get("message", answer.reason_phrase) if isinstance(data, dict) else answer.reason_phrase
        raise BackendError(f"{address}: {message}", status=answer.status_code)
    return dict(data)


def draw(tree: dict[str, Any]) -> RenderableType:
    """The answer of /tree as a rich tree: a node is its tokens, its text, and how often it was hit and what that saved."""
    from rich.text import Text
    from rich.tree import Tree

    title = f"{tree['size']:,} tokens cached"
    for name, what in (("saved_tokens", "saved"), ("evicted_tokens", "evicted")):
        if name in tree:
            title += f", {tree[name]:,} {what}"
    whole = Tree(Text(title, style="bold"), guide_style="dim")
    for root in tree["roots"]:
        names = [f"tenant {root['tenant']}"] if root.get("tenant") else []
        names += ["a salt"] if root.get("salted") else []
        branch = whole.add(Text(" and ".join(names) or "shared", style="italic")) if names or len(tree["roots"]) > 1 else whole
        _add(branch, root["children"])
    return whole


def _add(branch: Tree, nodes: list[dict[str, Any]]) -> None:
    for node in sorted(nodes, key=lambda node: (-node["hits"], -node["tokens"])):
        _add(branch.add(_label(node)), node["children"])


def _label(node: dict[str, Any]) -> Text:
    from rich.text import Text

    text = node.get("text", "").replace("\n", "⏎")
    label = Text(f"{node['tokens']:>5,} ", style="cyan")
    label.append(text if len(text) <= SHOWN else f"{text[: SHOWN // 2 - 1]} … {text[2 - SHOWN // 2 :]}")
    if node["hits"]:
        label.append(f"  {node['hits']:,} hits, {node.get('saved_tokens', node['hits'] * node['tokens']):,} tokens saved", style="green")
    if node["refs"]:
        label.append(f"  in use by {node['refs']}", style="yellow")
    return label


def svg(picture: RenderableType, title: str) -> str:
    """A picture of a terminal that shows it, 110 columns wide."""
    import io
    import re

    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=110, force_terminal=True)
    console.print(picture)
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=title), flags=re.S)  # fonts would come from the net


def explain(answer: dict[str, Any]) -> RenderableType:
    """The answer of /tree/explain as text."""
    from rich.text import Text

    lines = Text(f"{answer['cached']:,} of {answer['tokens']:,} tokens are cached", style="bold")
    if answer.get("below", 0) > answer["cached"]:
        lines.append(f", {answer['below']:,} lie in host memory or on disk")
    if answer["cached"] < answer["tokens"]:
        lines.append(f"\nthe prompt goes on with  {answer['asked_text']!r}", style="not bold")
        for way in answer["instead_text"]:
            lines.append(f"\nthe tree has            {way!r}", style="not bold")
        if answer["branches"] > len(answer["instead_text"]):
            lines.append(f"\n                        and {answer['branches'] - len(answer['instead_text'])} more ways", style="not bold")
    for gone in answer["evicted"]:
        lines.append(f"\ntokens {gone['start']:,} to {gone['stop'] - 1:,} were evicted {gone['seconds_ago']:.0f} s ago", style="red not bold")
        lines.append(f" for {gone['owner'] or 'another request'}", style="red not bold")
    return lines
