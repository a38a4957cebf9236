"""Tensor parallelism: one model computed by several processes, each with its share of the weights and of the KV (models/share.py).

Rank 0 is the engine's own process: it plans, draws and commits alone (runner.py). The others (rank.py) are its children. A pass
goes to them over a socket each (wire.py); what they add and gather meanwhile goes through torch.distributed (group.py).
"""
