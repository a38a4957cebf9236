"""The launches of draw.py and logprobs.py: shapes in, ids and logprobs out. Nothing here waits for the device."""
from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..errors import KernelError
from ..interface import SamplingRows
from . import draw, logprobs


class TritonSampler:
    """`Sampler` of the interface. A row's id and logprobs are the same bits whatever other rows are drawn with it."""

    def draw(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        logits = logits.contiguous()
        n, vocabulary = logits.shape
        out = torch.empty(n, dtype=torch.int32, device=logits.device)
        _check(rows, n, vocabulary)
        if not n:
            return out
        blocks = triton.cdiv(vocabulary, draw.BLOCK.value)
        grid, nb = (n, blocks), triton.next_power_of_2(blocks)

        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=logits.device)

        scaled, values, ids = empty(torch.float32, n, vocabulary), empty(torch.float32, n, vocabulary), empty(torch.int32, n, vocabulary)
        largest, masses, sizes = empty(torch.float32, n, blocks), empty(torch.float64, n, blocks), empty(torch.int32, n)
        rungs = draw.RUNGS.value
        shares, counts = empty(torch.float32, n, blocks, rungs), empty(torch.int32, n, blocks, rungs)
        limits = rows.temperature, rows.top_k, rows.top_p, rows.min_p
        draw.adjust[grid](
            logits, scaled, largest, rows.temperature, rows.top_k, rows.bits, rows.bits_row, rows.bias, rows.bias_row, rows.seen, rows.seen_row,
            rows.penalties, vocabulary, 0 if rows.bits is None else rows.bits.shape[1], blocks,
        )  # fmt: skip
        draw.weigh[grid](scaled, largest, masses, shares, counts, *limits, vocabulary, blocks, NB=nb)
        draw.gather[grid](scaled, largest, masses, shares, counts, values, ids, sizes, *limits, vocabulary, blocks, NB=nb)
        draw.draw[(n,)](
            scaled, largest, masses, values, ids, sizes, out, *limits, rows.seed, rows.position, vocabulary, blocks,
            NB=nb, num_warps=draw.DRAW_WARPS,
        )  # fmt: skip
        return out

    def note(self, ids: Tensor, rows: SamplingRows) -> None:
        if rows.seen is not None and len(ids):
            draw.note[(len(ids),)](ids, rows.seen, rows.seen_row, rows.seen.shape[1])

    def logprobs(self, logits: Tensor, ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        logits, ids = logits.contiguous(), ids.contiguous()
        (n, vocabulary), n_ids = logits.shape, ids.shape[1]
        blocks = triton.cdiv(vocabulary, logprobs.BLOCK.value)

        def empty(dtype: torch.dtype, width: int) -> Tensor:
            return torch.empty((n, width), dtype=dtype, device=logits.device)

        chosen, top_ids, top_values = empty(torch.float32, n_ids), empty(torch.int32, top), empty(torch.float32, top)
        if n:
            best, best_id, sums = empty(torch.float32, blocks), empty(torch.int32, blocks), empty(torch.float32, blocks)
            logprobs.survey[(n, blocks)](logits, best, best_id, sums, vocabulary, blocks)
            logprobs.pick[(n,)](
                logits, best, best_id, sums, ids, chosen, top_ids, top_values, n_ids, top, vocabulary, blocks,
                NB=triton.next_power_of_2(blocks), IDS=triton.next_power_of_2(max(n_ids, 1)),
            )  # fmt: skip
        return chosen, top_ids, top_values


def _check(rows: SamplingRows, n: int, vocabulary: int) -> None:
    """Raises KernelError where a kernel would read past the end of a table. Shapes only: values stay on the device."""
    each = {name: getattr(rows, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position", "bits_row", "bias_row", "seen_row")}
    for name, values in {**each, "penalties": rows.penalties}.items():
        if values is not None and len(values) != n:
            raise KernelError(f"{name} is for {len(values)} rows, the logits have {n}")
    for name, width in (("bits", -(-vocabulary // 32)), ("bias", vocabulary), ("seen", vocabulary)):
        table, places = getattr(rows, name), getattr(rows, f"{name}_row")
        if (table is None) != (places is None):
            raise KernelError(f"{name} and {name}_row go together")
        if table is not None and (table.shape[1] < width if name == "bits" else table.shape[1] != width):
            raise KernelError(f"{name} {tuple(table.shape)} do not cover a vocabulary of {vocabulary}")
    if rows.seen is not None and rows.penalties is None:
        raise KernelError("seen without penalties")
