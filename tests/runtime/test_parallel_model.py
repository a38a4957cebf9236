"""A model on several ranks against the same on one. The ranks are threads here: a group is an object, not a state of the process."""
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from passes import i32, whole

from ramet.kernels import get_kernels
from ramet.kernels.interface import AttnMeta, DecoderInput, Segments
from ramet.kernels.reference import ReferenceKernels
from ramet.runtime.config import EngineConfig
from ramet.runtime.hub import resolve
from ramet.runtime.models.llama import LlamaModel
from ramet.runtime.models.share import Share, runs
from ramet.runtime.parallel import group as groups
from ramet.runtime.parallel.group import Group, RankLost
from ramet.runtime.weights import load_model

TINY = {"vocab_size": 97, "hidden_size": 60, "intermediate_size": 90, "num_hidden_layers": 2, "max_position_embeddings": 256}
SHAPES = {
    "three KV heads": transformers.LlamaConfig(**TINY, num_attention_heads=6, num_key_value_heads=3, head_dim=16),
    "biased, untied": transformers.LlamaConfig(
        **TINY, num_attention_heads=6, num_key_value_heads=3, head_dim=16, attention_bias=True, mlp_bias=True, tie_word_embeddings=False
    ),
    "qwen2 tied": transformers.Qwen2Config(**TINY, num_attention_heads=6, num_key_value_heads=6, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**TINY, num_attention_heads=4, num_key_value_heads=4, head_dim=24),
}


def together(size: int, work):
    """work(rank) of every rank, each on its own thread; their results in order, or the first error."""
    with ThreadPoolExecutor(size) as pool:
        return [future.result(timeout=60) for future in [pool.submit(work, rank) for rank in range(size)]]


def share(rank: int, size: int) -> Share:
    return Share(rank, size, range(0), range(0), range(0))


class Model:
    """A model on `size` ranks, each with its pools."""

    def __init__(self, folder, meeting, size: int, kernels=lambda: ReferenceKernels("test"), slots: int = 256) -> None:
        def open_rank(rank: int):
            config = EngineConfig(tensor_parallel_size=size, dtype="float32")
            loaded, peer = load_model(resolve(folder), config, rank=rank), kernels()
            ranks = Group(loaded.share, meeting) if size > 1 else None
            pool = torch.full((loaded.config.n_layers, slots, loaded.weights.n_kv_heads, loaded.config.head_dim), torch.nan)
            return LlamaModel(loaded.config, loaded.weights, peer, ranks), pool, pool.clone(), ranks

        self.ranks = together(size, open_rank)

    def forward(self, batch: DecoderInput) -> torch.Tensor:
        outs = together(len(self.ranks), lambda rank: self.ranks[rank][0].forward(batch, *self.ranks[rank][1:3]))
        assert all(not len(out) for out in outs[1:])
        return outs[0]


@pytest.fixture(scope="module", params=SHAPES)
def folder(request, tmp_path_factory):
    """Random weights; biases and norms are random too."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(SHAPES[request.param], dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data = torch.rand_like(parameter) + (0.5 if "norm" in name else -0.5)
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("size", [2, 3])
def test_logits_are_those_of_one_rank(folder, tmp_path, size):
    sequences = [torch.randint(0, 97, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (1, 17, 150)]
    wanted = Model(folder, tmp_path / "one", 1).forward(whole(sequences))
    torch.testing.assert_close(Model(folder, tmp_path / "many", size).forward(whole(sequences)), wanted, atol=1e-4, rtol=0)


def test_chunks_and_tree_segments_on_the_fast_kernels(tmp_path, tmp_path_factory):
    """A prompt in two chunks, then three branches that read it as one segment, each with two rows and one logit row."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(SHAPES["three KV heads"], dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")
    generator = torch.Generator().manual_seed(1)
    root, tails = torch.randint(0, 97, (90,), generator=generator), torch.randint(0, 97, (6,), generator=generator).int()

    def passes():
        for begin, end in ((0, 50), (50, 90)):
            meta = AttnMeta(i32([0, end - begin]), i32([end]), i32(range(end)).view(1, -1), end, end - begin)
            rows = i32(range(begin, end))
            yield DecoderInput(root[begin:end].int(), rows, rows, i32([] if begin == 0 else [39]), meta)
        tables = torch.stack([i32([*range(90), 90 + 2 * i, 91 + 2 * i]) for i in range(3)])
        segments = Segments(i32([0]), i32([90]), i32([0]), i32([0, 3]), i32([0, 1, 2]), i32([90, 90, 90]))
        meta = AttnMeta(i32([0, 2, 4, 6]), i32([92, 92, 92]), tables, 92, 2, segments)
        yield DecoderInput(tails, i32([90, 91] * 3), i32(range(90, 96)), i32([1, 3, 5]), meta)

    def run(size):
        model = Model(tmp_path / "model", tmp_path / str(size), size, lambda: get_kernels("cpu", dtype="float32", threads=1))
        return [model.forward(batch) for batch in passes()]

    wanted = run(1)
    assert [len(logits) for logits in wanted] == [0, 1, 3]
    for size in (2, 3):
        for ours, theirs in zip(run(size), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_a_sum_has_the_same_bits_on_all_ranks_and_beside_any_rows(tmp_path):
    parts = [torch.randn(33, 57, generator=torch.Generator().manual_seed(rank)) * 10 ** (rank - 1) for rank in range(3)]

    def add(rank):
        ranks = Group(share(rank, 3), tmp_path / "meeting")
        return ranks.sum(parts[rank]), torch.cat([ranks.sum(row) for row in parts[rank].split(1)]), ranks.sum(parts[rank].bfloat16())

    results = together(3, add)
    for whole_pass, row_by_row, half in results:
        assert torch.equal(whole_pass, parts[0] + parts[1] + parts[2])
        assert torch.equal(row_by_row, whole_pass)
        wide = sum(part.bfloat16().float() for part in parts)
        assert torch.equal(half, wide.bfloat16())


@pytest.mark.parametrize("total", [10, 11, 12])
def test_gathered_columns_lie_side_by_side_on_rank_0(tmp_path, total):
    whole = torch.arange(4 * total, dtype=torch.float32).view(4, total)

    def gather(rank):
        run = runs(total, 3)[rank]
        return Group(share(rank, 3), tmp_path / "meeting").gather(whole[:, run.start : run.stop], total)

    first, *others = together(3, gather)
    assert torch.equal(first, whole)
    assert others == [None, None]


def test_a_rank_that_does_not_come_is_noticed(tmp_path, monkeypatch):
    """One leaves after the first sum; the other's second ends with an error, not with silence."""
    monkeypatch.setattr(groups, "TIMEOUT", groups.timedelta(seconds=2))

    def work(rank):
        ranks = Group(share(rank, 2), tmp_path / "meeting")
        ranks.sum(torch.ones(1, 4))
        if rank == 0:
            with pytest.raises(RankLost):
                ranks.sum(torch.ones(1, 4))

    together(2, work)
