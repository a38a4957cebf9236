"""A plan of integers becomes the tensors of one forward pass."""
from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ..kernels.interface import AttnMeta, DecoderInput, Segments
from .request import Plan, PlanItem

# Reading a shared run once saves this many KV reads at least, or the plan says nothing of it (splitting costs a merge).
MIN_SHARED_READS = 256
_NONE = range(0)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """What a forward pass is given, and which of its logit rows belongs to which item.

    Item i owns logits[row_start[i]:row_start[i+1]]: rows for prompt logprobs first, the row to sample from last."""

    inputs: DecoderInput
    row_start: tuple[int, ...]


def build_batch(plan: Plan, *, tree_attention: bool = True) -> ForwardBatch:
    """Lists to tensors: T rows of all items in order. Raises nothing; the scheduler's plan is right by construction."""
    items = plan.items
    first_rows = [0, *accumulate(item.n_tokens for item in items)]
    starts = np.array([item.start for item in items], dtype=np.int32)
    query_start = np.array(first_rows, dtype=np.int32)
    counts = query_start[1:] - query_start[:-1]
    context_len = starts + counts
    longest = int(context_len.max())
    tables = np.zeros((len(items), longest), dtype=np.int32)
    input_ids = np.empty(first_rows[-1], dtype=np.int32)
    write_slots = np.empty_like(input_ids)
    for table, item, begin in zip(tables, items, first_rows, strict=False):
        start, n = item.start, item.n_tokens
        stop, slots = start + n, item.slots.view
        table[:stop] = slots[:stop]
        if n == 1:
            input_ids[begin] = item.request.ids[start]
            write_slots[begin] = slots[start]
        else:
            input_ids[begin : begin + n] = item.request.ids.view[start:stop]
            write_slots[begin : begin + n] = slots[start:stop]
    positions = np.arange(first_rows[-1], dtype=np.int32) - np.repeat(query_start[:-1] - starts, counts)
    rows_of = [_logit_rows(item, first) for item, first in zip(items, first_rows, strict=False)]
    meta = AttnMeta(
        query_start=torch.from_numpy(query_start),
        context_len=torch.from_numpy(context_len),
        tables=torch.from_numpy(tables),
        max_context=longest,
        max_query=int(counts.max()),
        segments=_segments(items) if tree_attention and len(items) > 1 else None,
    )
    inputs = DecoderInput(
        input_ids=torch.from_numpy(input_ids),
        positions=torch.from_numpy(positions),
        write_slots=torch.from_numpy(write_slots),
        logit_rows=_int32([row for rows in rows_of for row in rows]),
        attn=meta,
    )
    return ForwardBatch(inputs, (0, *accumulate(map(len, rows_of))))


def logprob_positions(item: PlanItem) -> range:
    """Positions whose logprob this pass makes known: ids that are there already (prompt, forced text) and are asked for."""
    request = item.request
    if not request.source.logprobs:
        return _NONE
    begin = max(item.start + 1, request.next_logprob)
    return range(begin, max(begin, min(item.stop + 1, len(request.ids))))


def _logit_rows(item: PlanItem, first_row: int) -> list[int]:
    """Rows of an item whose logits are needed: those that predict wanted logprobs, and the last if it samples."""
    positions = logprob_positions(item)
    rows = [first_row + position - 1 - item.start for position in positions] if positions else []
    if item.samples and item.request.needs_logits:
        rows.append(first_row + item.n_tokens - 1)
    return rows


def _segments(items: tuple[PlanItem, ...]) -> Segments | None:
    """The tree's nodes that at least two items of the batch see, from the items' paths. None if reading them once saves too little."""
    members: dict[tuple[int, int, int], list[int]] = {}
    for i, item in enumerate(items):
        begin = 0
        for node, stop in item.path:
            members.setdefault((node, begin, stop), []).append(i)
            begin = stop
    shared = [(begin, stop, rows) for (_, begin, stop), rows in members.items() if len(rows) > 1]
    if sum((stop - begin) * (len(rows) - 1) for begin, stop, rows in shared) < MIN_SHARED_READS:
        return None
    runs: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for begin, stop, members_of in shared:  # nodes with the same members lie end to end: one run
        spans = runs.setdefault(tuple(members_of), [])
        if spans and spans[-1][1] == begin:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((begin, stop))
    tail = [0] * len(items)
    flat = [(begin, stop, rows) for rows, spans in runs.items() for begin, stop in spans]
    for _, stop, seen_by in flat:
        for row in seen_by:
            tail[row] = max(tail[row], stop)
    sizes = [0, *accumulate(len(rows) for _, _, rows in flat)]
    return Segments(
        start=_int32([begin for begin, _, _ in flat]),
        stop=_int32([stop for _, stop, _ in flat]),
        owner=_int32([rows[0] for _, _, rows in flat]),
        member_start=_int32(sizes),
        members=_int32([row for _, _, rows in flat for row in rows]),
        tail_start=_int32(tail),
    )


def _int32(values: list[int]) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int32))
