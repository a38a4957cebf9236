"""The scheduler on a model of a machine instead of a model on a machine: discrete events, no tensors."""
