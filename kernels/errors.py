"""The one error that kernels raise on purpose; the engine translates it."""


class KernelError(Exception):
    """No such peer, a peer that cannot run here, or a weight or shape that it does not take. Says what to do."""
