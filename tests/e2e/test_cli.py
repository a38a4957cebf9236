"""The command line on the embedded model: what people type, and what they mistype."""
from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RAMET = [sys.executable, "-m", "ramet.runtime.cli"]


def ramet(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RAMET, *arguments], capture_output=True, text=True, timeout=180, **options)


def test_run_streams_a_program_and_shows_its_cost(embedded_model):
    done = ramet("run", str(ROOT / "examples/hello.py"), "question=What is rain?", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "What is rain?" in done.stdout and "found in the cache" in done.stdout


def test_run_names_programs_and_arguments(embedded_model, tmp_path):
    file = tmp_path / "two.py"
    file.write_text(
        "import ramet\n@ramet.function\ndef a(s, n):\n    s += 'x' * n + ramet.gen('y', max_tokens=2)\n    return n\n@ramet.function\ndef b(s):\n    pass\n"
    )
    assert "result: 3" in ramet("run", f"{file}:a", "n=3").stdout
    assert "it defines: a, b" in ramet("run", str(file)).stderr
    assert "no program 'c'" in ramet("run", f"{file}:c").stderr
    assert "name=value" in ramet("run", f"{file}:a", "3").stderr
    assert "a needs the argument n; it takes: n" in ramet("run", f"{file}:a").stderr
    assert "a has no argument z" in ramet("run", f"{file}:a", "n=1", "z=2").stderr
    assert "not a Python file" in ramet("run", "/etc/hostname").stderr
    assert "no such file" in ramet("run", "nowhere.py").stderr


def test_generate_obeys_a_schema_and_shows_counts(embedded_model):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
    done = ramet("generate", "A number?", "--json-schema", json.dumps(schema), "--max-tokens", "20", "--stats")
    assert 1 <= json.loads(done.stdout)["n"] <= 9
    assert "prompt_tokens=" in done.stderr
    assert ramet("generate", "-", "--max-tokens", "3", "--raw", input="One, two, three,").stdout.strip()


@pytest.mark.parametrize(("arguments", "says"), [
    (["generate", "hi", "--regex", "("], "regex"),
    (["generate", "hi", "--regex", "a", "--json-schema", "{}"], "one form"),
    (["generate", "hi", "--set", "thread=3"], "did you mean 'threads'"),
    (["generate", "hi", "--temperature", "nan"], "temperature"),
    (["generate", "hi", "--max-tokens", "-1"], "max_new_tokens"),
    (["generate", "hi", "--model", "no-such-model"], "smollm2-135m"),
    (["generate", "", "--raw"], "prompt: empty"),
    (["model", "path", "no-such-model"], "smollm2-135m"),
])  # fmt: skip
def test_a_mistake_is_one_clear_line(embedded_model, arguments, says):
    done = ramet(*arguments)
    assert done.returncode == 1 and says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


def test_model_list_and_path(embedded_model):
    assert "smollm2-135m" in ramet("model", "list").stdout
    assert Path(ramet("model", "path").stdout.strip()) == embedded_model.path


class Terminal:
    """`ramet chat` on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [*RAMET, "chat", *arguments])
        self.seen = ""

    def wait_for(self, text: str, seconds: float = 90.0) -> str:
        end = time.monotonic() + seconds
        start = len(self.seen)
        os.set_blocking(self.fd, False)
        while text not in self.seen[start:]:
            assert time.monotonic() < end, f"{text!r} did not come; seen: {self.seen[-500:]!r}"
            try:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)
        return self.seen[start:]

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())


def test_chat_streams_remembers_resets_and_survives_ctrl_c(embedded_model):
    chat = Terminal("--temperature", "0", "--max-tokens", "400")
    try:
        chat.wait_for("> ")
        chat.type("Say hello.\n")
        assert len(chat.wait_for("\n> ")) > 20
        chat.type("Tell me a very long story about the sea.\n")
        time.sleep(1.0)
        os.kill(chat.pid, signal.SIGINT)
        assert "(stopped)" in chat.wait_for("> ")
        chat.type("/reset\n")
        assert "(forgotten)" in chat.wait_for("> ")
        chat.type("/exit\n")
        assert os.waitstatus_to_exitcode(os.waitpid(chat.pid, 0)[1]) == 0
    finally:
        try:
            os.kill(chat.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
