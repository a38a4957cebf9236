"""Rank 0: the runner of an engine whose model is computed by several processes."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import EngineConfig
from ..open import open_part
from .children import Children
from .group import Group, RankLost

if TYPE_CHECKING:
    from torch import Tensor

    from ...kernels.interface import Kernels
    from ..batch import ForwardBatch
    from ..hub import ModelFiles
    from ..model_runner import ModelRunner
    from ..request import Plan


def open_parallel(files: ModelFiles, config: EngineConfig, kernels: Kernels) -> ParallelRunner:
    """Starts the other ranks, reads this one's share while they read theirs, and meets them.

    Raises ModelError, ConfigError; EngineClosedError where a rank does not come up."""
    children = Children(files, config)
    try:
        part = open_part(files, config, kernels)
        children.expect("loaded")
        slots = part.slots(config)
        children.say(slots=slots)
        group = Group(part.loaded.share, children.meeting, part.device)
        runner = part.runner(slots, group)
        children.expect("ready")
        children.watch(group)
        return ParallelRunner(runner, children, group)
    except RankLost as error:
        failure = children.give_up(error)
        children.close()
        raise failure from error
    except BaseException:
        children.close()
        raise


@dataclass(slots=True)
class ParallelRunner:
    """`model_runner.Runner` over `inner`, which is rank 0's, and the children. KV stays where it is computed."""

    inner: ModelRunner
    children: Children
    group: Group

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def context_length(self) -> int:
        return self.inner.context_length

    @property
    def slots(self) -> int:
        return self.inner.slots

    def build(self, plan: Plan) -> ForwardBatch:
        return self.inner.build(plan)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """As one rank's. Raises EngineClosedError, naming the rank that failed: the others are somewhere in the pass, so there is no next."""
        try:
            self.children.send(batch.inputs)
            return self.inner.forward(batch)
        except Exception as error:
            raise self.children.give_up(error) from error
        except BaseException as error:  # Ctrl-C
            self.children.give_up(error)
            raise

    def mask_logits(self, logits: Tensor, bits: Tensor) -> None:
        self.inner.mask_logits(logits, bits)

    def describe(self) -> str:
        return f"{self.inner.describe()}; {self.group.share.size} ranks over {self.group.name}"

    def check(self) -> None:
        self.children.check()

    def close(self) -> None:
        self.children.close()
        self.group.close()
