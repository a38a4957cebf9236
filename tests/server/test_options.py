"""Options: the same from the command line, a variable or a file, in that order; every one named in the help, none ignored."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from ramet.runtime.config import EngineConfig, ServerConfig
from ramet.runtime.errors import ConfigError
from ramet.runtime.server import launch, options


@pytest.fixture
def run(monkeypatch):
    """Runs the command with a `serve` that only keeps the configuration."""
    kept: list[ServerConfig] = []
    monkeypatch.setattr(launch, "serve", lambda config: kept.append(config) or 0)
    app = typer.Typer()
    app.command()(options.serve)

    def call(*arguments: str, **environment: str):
        kept.clear()
        result = CliRunner().invoke(app, arguments, env=environment)
        return (kept[0] if kept else None), result

    return call


def test_defaults_are_those_of_the_types(run):
    config, result = run()
    assert result.exit_code == 0 and config == ServerConfig(engine=EngineConfig())


def test_every_field_has_help_and_a_place_in_it(run):
    assert set(options.option_fields()) == set(options.HELP)
    text = run("--help")[1].output
    for panel in {panel for panel, _ in options.HELP.values()}:
        assert panel in text


def test_the_order_of_precedence(run, tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nmax-n = 2\ncors_origins = ["https://a.example", "https://b.example"]\njump_forward = false\n')
    config, _ = run("--config", str(file), "--port", "3", RAMET_PORT="2", RAMET_MAX_N="5")
    assert (config.port, config.max_n, config.cors_origins, config.engine.jump_forward) == (
        3,
        5,
        ("https://a.example", "https://b.example"),
        False,
    )
    config, _ = run(RAMET_CONFIG=str(file), RAMET_API_KEY="k", RAMET_MODEL_PATH="m")
    assert (config.port, config.api_key, config.engine.model_path) == (1, "k", "m")


@pytest.mark.parametrize("text, word", [("prot = 1", "did you mean 'port'"), ("port = ", "serve.toml"), ("port = 'x'", "integer")])
def test_wrong_files(run, tmp_path, text, word):
    file = tmp_path / "serve.toml"
    file.write_text(text)
    config, result = run("--config", str(file))
    assert config is None and result.exit_code == 2 and word in " ".join(result.output.replace("│", " ").split())


def test_other_systems_names(run):
    config, _ = run("--model", "m", "--max-model-len", "99", "--max-num-seqs", "7", "--max-num-batched-tokens", "64", "--tp", "2", "--no-jump-forward")
    engine = config.engine
    assert (engine.model_path, engine.context_length, engine.max_running_requests, engine.chunked_prefill_size, engine.jump_forward) == (
        "m",
        99,
        7,
        64,
        False,
    )
    assert engine.tensor_parallel_size == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"log_level": "x"},
        {"max_n": 0},
        {"body_timeout": 0.0},
        {"drain_timeout": -1.0},
        {"api_key": " "},
        {"session_ttl": float("inf")},
        {"watchdog_timeout": 0.0},
    ],
)
def test_wrong_values(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ServerConfig(**wrong)


def test_the_key_is_not_shown():
    assert "the-key" not in repr(ServerConfig(api_key="the-key"))
