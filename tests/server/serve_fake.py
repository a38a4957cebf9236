"""`ramet serve` with another engine factory: python serve_fake.py FACTORY [options]."""

import dataclasses
import sys

import typer

from ramet.runtime.server import launch, options

factory = sys.argv.pop(1)
run = launch.serve
launch.serve = lambda config: run(dataclasses.replace(config, factory=factory))

typer.run(options.serve)
