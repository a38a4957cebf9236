"""What the kernels compute with AVX-512, and with VNNI and AMX, on a machine that need not have them: the same sources, with those
instructions replaced by plain loops (avx512_emulated.h). Speed is not tested, bits are."""
from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from ramet.kernels import KernelError
from ramet.kernels.blocks import FORMATS, dequantize
from ramet.kernels.cpu import library
from ramet.kernels.cpu.peer import CpuKernels
from ramet.kernels.interface import Linear
from ramet.runtime import native

from .conftest import poisoned_pool, ragged
from .test_attention import SLOTS, TREE, naive
from .test_blocks import random_packed
from .test_linear import rounded

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["", "EMULATE_AMX"], ids=["avx512", "amx"])
def emulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CpuKernels:
    try:
        if library.load()[1] not in ("avx2", "avx512", "avx512-vnni", "amx"):
            pytest.skip("the emulation needs AVX2")
        compiler = native.compiler()
    except (KernelError, native.NativeUnavailable) as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("emulated") / "kernels.so"
    subprocess.run(
        [*compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", *library.FLAGS, "-mavx2", "-mfma", "-mf16c",
         *([f"-D{request.param}"] if request.param else []), "-include", str(HERE / "avx512_emulated.h"),
         *map(str, sorted(library.HERE.glob("*.cpp"))), "-o", str(path)],
        check=True, capture_output=True,
    )  # fmt: skip
    patch = pytest.MonkeyPatch()
    patch.setattr(library, "load", lambda wanted=None: (library._declare(ctypes.CDLL(str(path))), "emulated", ""))
    try:
        return CpuKernels(threads=2)
    finally:
        patch.undo()


def test_lanes_and_probe(emulated: CpuKernels) -> None:
    assert emulated.lib.ramet_lanes() == 16
    assert emulated.lib.ramet_probe() == 1


@pytest.mark.parametrize("kind", FORMATS)
def test_packed_products(emulated: CpuKernels, kind: str) -> None:
    w = Linear(random_packed(kind, 101, 768), torch.randn(101))
    x = torch.randn(37, 768)
    want = rounded(x) @ dequantize(w.weight).double().T + w.bias.double()
    size = rounded(x).abs() @ dequantize(w.weight).double().abs().T
    whole = emulated.linear(x, w)
    assert ((whole.double() - want).abs() <= 1e-3 * size + 1e-6).all()
    for begin, end in [(0, 1), (1, 4), (4, 9), (9, 37), (30, 37)]:  # by vectors or by tiles, the same bits
        assert torch.equal(emulated.linear(x[begin:end], w), whole[begin:end])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_products(emulated: CpuKernels, dtype: torch.dtype) -> None:
    w = Linear(torch.randn(45, 70).to(dtype))
    x = torch.randn(9, 70)
    torch.testing.assert_close(emulated.linear(x, w).double(), x.double() @ w.weight.double().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 20])
def test_attention(emulated: CpuKernels, dtype: torch.dtype, size: int) -> None:
    meta = ragged(TREE, SLOTS, share=True)
    k, v = poisoned_pool(meta, SLOTS, 3, size, dtype)
    q = torch.randn(int(meta.query_start[-1]), 9, size)
    torch.testing.assert_close(emulated.attention(q, k, v, meta, 0.125).double(), naive(q, k, v, meta, 0.125), rtol=1e-4, atol=1e-5)


def test_rows(emulated: CpuKernels) -> None:
    x, weight = torch.randn(5, 77), torch.randn(77)
    torch.testing.assert_close(emulated.rms_norm(x, weight, 1e-5), torch.nn.functional.rms_norm(x, (77,), weight, 1e-5))
    torch.testing.assert_close(emulated.silu_mul(x, x), torch.nn.functional.silu(x) * x, rtol=1e-5, atol=1e-6)
