"""`python -m ramet.runtime.server`: the same as `ramet serve`."""

import typer

from .options import serve

if __name__ == "__main__":
    typer.run(serve)
