"""Builds the C++ sources for the best instruction set that this processor runs, and declares their functions to ctypes.

What a processor lists and what it runs can differ on virtual machines, so each candidate is tried in a child process first;
that it passed is noted beside the library, and later starts only load it.
"""
from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from ctypes import c_char_p, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...runtime import native
from ..errors import KernelError

HERE = Path(__file__).parent
FLAGS = ("-ffp-contract=off", "-fno-math-errno", "-pthread", "-Wno-psabi")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    name: str
    needs: frozenset[str]  # names in /proc/cpuinfo
    flags: tuple[str, ...]


_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_LISTS_AVX2 = frozenset({"avx2", "fma", "f16c"})
_LISTS_AVX512 = _LISTS_AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
BASELINE = InstructionSet("baseline", frozenset(), ())
INSTRUCTION_SETS = {  # by machine, best first
    "x86_64": (
        InstructionSet("amx", _LISTS_AVX512 | {"avx512_vnni", "amx_tile", "amx_int8"}, (*_AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-int8")),
        InstructionSet("avx512-vnni", _LISTS_AVX512 | {"avx512_vnni"}, (*_AVX512, "-mavx512vnni")),
        InstructionSet("avx512", _LISTS_AVX512, _AVX512),
        InstructionSet("avx2", _LISTS_AVX2, _AVX2),
        BASELINE,
    ),
    "aarch64": (InstructionSet("neon-dotprod", frozenset({"asimddp"}), ("-march=armv8.2-a+dotprod",)), BASELINE),
}


@cache
def _listed() -> frozenset[str] | None:
    """What the system says the processor can do; None where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return frozenset(word for line in lines if line.startswith(("flags", "Features")) for word in line.split())


def _runs(path: Path) -> bool:
    """Whether the library passes its own probe, in a process that may die of it. Noted beside the library."""
    note = path.with_suffix(".probe")
    if note.exists():
        return note.read_text() == "runs"
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).ramet_probe() != 1)"
    try:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(path)], capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    note.write_text("runs" if done.returncode == 0 else f"ended with {done.returncode}")
    return done.returncode == 0


@cache
def load(wanted: str | None = None) -> tuple[ctypes.CDLL, str, str]:
    """The library, the name of its instruction set, and what became of better ones ("" where there was none).

    `wanted`, or RAMET_CPU, names a set instead of the best. Raises KernelError: no compiler, a name that this machine does not
    have, or nothing that compiles and runs.
    """
    if not wanted and (named := os.environ.get("RAMET_CPU")):
        library, name, _ = load(named)
        return library, name, "named by RAMET_CPU"
    known = INSTRUCTION_SETS.get(platform.machine(), (BASELINE,))
    if wanted and wanted not in {each.name for each in known}:
        raise KernelError(f"instruction set {wanted!r}: choose one of {', '.join(each.name for each in known)}")
    try:
        native.compiler()
    except native.NativeUnavailable as error:
        raise KernelError(str(error)) from error
    listed = _listed()
    missed: list[str] = []
    sources, headers = sorted(HERE.glob("*.cpp")), sorted(HERE.glob("*.h"))
    for each in known:
        if each.name != wanted if wanted else listed is not None and not each.needs <= listed:
            continue
        try:
            path = native.build(f"cpu-{each.name}", sources, (*FLAGS, *each.flags), headers)
            if _runs(path):
                return _declare(ctypes.CDLL(str(path))), each.name, "; ".join(missed)
            missed.append(f"{each.name} does not run here")
        except (native.NativeUnavailable, OSError) as error:
            missed.append(f"{each.name}: {error}")
    raise KernelError("; ".join(missed) or f"{wanted or 'no instruction set'} is not what this processor lists")


_Fields = list[tuple[str, Any]]


def _pointers(*names: str) -> _Fields:
    return [(name, c_void_p) for name in names]


def _ints(*names: str) -> _Fields:
    return [(name, c_int) for name in names]


class Meta(ctypes.Structure):
    """Meta of attention.h."""

    _fields_ = [
        *_ints("sequences", "segments"), ("table_stride", c_int64),
        *_pointers("query_start", "context_len", "tables", "start", "stop", "owner", "member_start", "members"),
    ]  # fmt: skip


class CLinear(ctypes.Structure):
    """Linear of decoder.h."""

    _fields_ = _pointers("w", "bias")


class LayerSpec(ctypes.Structure):
    """LayerSpec of decoder.h."""

    _fields_ = [
        *_pointers("attn_norm", "mlp_norm", "q_norm", "k_norm"),
        *((name, CLinear) for name in ("q", "k", "v", "o", "gate", "up", "down")),
    ]  # fmt: skip


class DecoderSpec(ctypes.Structure):
    """DecoderSpec of decoder.h."""

    _fields_ = [
        *_ints("layers", "hidden", "heads", "kv_heads", "head_size", "rotary_half"), ("eps", c_float), *_pointers("embed", "norm"),
        ("head", CLinear), *_pointers("cosine", "sine"), *_ints("positions"), ("layer", ctypes.POINTER(LayerSpec)),
    ]  # fmt: skip


class Pass(ctypes.Structure):
    """Pass of decoder.h."""

    _fields_ = [
        *_ints("rows", "logit_count"), *_pointers("input_ids", "positions", "write_slots", "logit_rows"), ("meta", Meta), *_ints("cache"),
        *_pointers("keys", "values"), ("layer_stride", c_int64), ("slots", c_int64), *_pointers("logits"),
    ]  # fmt: skip


_P, _I = c_void_p, c_int
_SIGNATURES = {  # result, arguments
    "ramet_lanes": (_I, []),
    "ramet_pool_new": (_P, [_I]),
    "ramet_pool_free": (None, [_P]),
    "ramet_matrix_new": (_P, [_P, _I, _I, _I, _P]),
    "ramet_matrix_free": (None, [_P]),
    "ramet_matrix_bytes": (c_int64, [_P]),
    "ramet_matrix_rows": (None, [_P, _P, _I, _P, _P]),
    "ramet_linear": (c_char_p, [_P, _P, _P, _I, _P, _P]),
    "ramet_rms_norm": (None, [_P, _I, _I, _P, _P, c_float, _P]),
    "ramet_add_rms_norm": (None, [_P, _I, _I, _P, _P, _P, c_float, _P]),
    "ramet_rope": (None, [_P, _I, _I, _I, _I, _P, _P, _P, _P]),
    "ramet_store_kv": (None, [_P, _I, _I, _I, _P, _P, _P, _P, _P]),
    "ramet_silu_mul": (None, [_P, _I, _I, _P, _P, _P]),
    "ramet_attention": (c_char_p, [_P, ctypes.POINTER(Meta), _I, c_int64, _I, _I, _I, _I, _P, _P, _P, c_float, _P]),
    "ramet_mask_logits": (None, [_P, _I, _I, _I, _P, _P]),
    "ramet_decoder_new": (_P, [_P, ctypes.POINTER(DecoderSpec)]),
    "ramet_decoder_free": (None, [_P]),
    "ramet_decoder_forward": (c_char_p, [_P, _P, ctypes.POINTER(Pass)]),
}


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
