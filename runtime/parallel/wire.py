"""What rank 0 and its children say to each other: frames over a socket. Passes are int32 as they lie in memory, the rest is JSON."""
from __future__ import annotations

import json
import socket
import struct
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...kernels.interface import AttnMeta, DecoderInput, Segments

HEAD = struct.Struct("<cQ")  # kind, bytes that follow
JSON, PASS = b"J", b"P"
SEGMENTS = ("start", "stop", "owner", "member_start", "members", "tail_start")


class Channel:
    """One end of a socket. Raises EOFError where the other end is gone. `device` is where passes that arrive are put."""

    def __init__(self, end: socket.socket, device: str = "cpu") -> None:
        self.socket, self.device = end, device

    def say(self, **values: Any) -> None:
        self._send(JSON, json.dumps(values).encode())

    def send(self, batch: DecoderInput) -> None:
        self._send(PASS, pack(batch))

    def receive(self) -> DecoderInput | dict[str, Any]:
        """Waits for a pass, or what was said."""
        kind, size = HEAD.unpack(self._read(HEAD.size))
        body = self._read(size)
        return unpack(body, self.device) if kind == PASS else json.loads(body)

    def _send(self, kind: bytes, body: bytes | memoryview) -> None:
        try:
            self.socket.sendall(HEAD.pack(kind, len(body)))
            self.socket.sendall(body)
        except OSError as error:
            raise EOFError from error

    def _read(self, size: int) -> bytearray:
        data, done = bytearray(size), 0
        view = memoryview(data)
        while done < size:
            try:
                n = self.socket.recv_into(view[done:])
            except OSError as error:
                raise EOFError from error
            if not n:
                raise EOFError
            done += n
        return data

    def close(self) -> None:
        self.socket.close()


def pack(batch: DecoderInput) -> memoryview:
    """The integers of a pass end to end, after a line that says how many of each there are."""
    meta = batch.attn
    parts = [batch.input_ids, batch.positions, batch.write_slots, batch.logit_rows, meta.query_start, meta.context_len, meta.tables]
    if meta.segments is not None:
        parts += [getattr(meta.segments, name) for name in SEGMENTS]
    sizes = [part.numel() for part in parts]
    line = np.array([len(parts), meta.max_context, meta.max_query, meta.tables.shape[1], *sizes], dtype=np.int32)
    return np.concatenate([line, *(part.reshape(-1).cpu().numpy() for part in parts)]).data.cast("B")


def unpack(data: bytearray, device: str = "cpu") -> DecoderInput:
    """What `pack` was given, with one copy to the device; on the CPU it lies in `data`."""
    numbers = torch.frombuffer(data, dtype=torch.int32)
    count, max_context, max_query, width = numbers[:4].tolist()
    begin = 4 + count
    borders = list(accumulate(numbers[4:begin].tolist(), initial=begin))
    numbers = numbers.to(device)
    parts: list[Tensor] = [numbers[start:stop] for start, stop in pairwise(borders)]
    input_ids, positions, write_slots, logit_rows, query_start, context_len, tables, *shared = parts
    segments = Segments(**dict(zip(SEGMENTS, shared, strict=True))) if shared else None
    meta = AttnMeta(query_start, context_len, tables.view(-1, width), max_context, max_query, segments)
    return DecoderInput(input_ids, positions, write_slots, logit_rows, meta)
