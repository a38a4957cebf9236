"""PageFiles as a state machine: what is read is what was written, within the limit, over any number of openings and accidents."""
from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ramet.runtime.kv_files import PAGE, PageFiles

ROW = 8
PAGES = st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True)


def key(number: int) -> bytes:
    return bytes([number]) * 16


def rows(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (PAGE, ROW), dtype=np.uint8)


class PageMachine(RuleBasedStateMachine):
    """`kept` are pages that must be there: written, and not pushed out by the limit, deleted or damaged since."""

    @initialize(pages=st.integers(1, 40))
    def open(self, pages):
        self.folder = Path(tempfile.mkdtemp())
        self.limit = 4096 + pages * PAGE * ROW
        self.files = PageFiles(self.folder, "f" * 32, ROW, self.limit)
        self.sound = set()  # written since the last accident
        self.room = self.limit

    @rule(numbers=PAGES)
    def write(self, numbers):
        new = [n for n in numbers if key(n) not in self.files]
        wrote = self.files.write([(key(n), rows(n)) for n in numbers])
        assert wrote <= len(new) and (wrote == len(new) or len(new) > (self.limit - 4096) // (PAGE * ROW))
        assert all(key(n) in self.files for n in new[:wrote])

    @rule(numbers=PAGES)
    def read(self, numbers):
        known = [key(n) in self.files for n in numbers]
        got = list(self.files.read([key(n) for n in numbers]))
        assert len(got) <= (known.index(False) if False in known else len(numbers))
        for number, page in zip(numbers, got, strict=False):
            assert (page == rows(number)).all()

    @rule()
    def all_that_is_named_can_be_read(self):
        for number in range(31):
            if key(number) in self.files:
                assert (next(iter(self.files.read([key(number)]))) == rows(number)).all()

    @rule()
    def reopen(self):
        known = {n for n in range(31) if key(n) in self.files}
        self.files.close()
        self.files = PageFiles(self.folder, "f" * 32, ROW, self.limit)
        assert {n for n in range(31) if key(n) in self.files} == known

    @rule(at=st.integers(0, 10_000), data=st.data())
    def damage_and_reopen(self, at, data):
        self.files.close()
        paths = sorted(self.folder.rglob("*.*"))
        if paths:
            path = data.draw(st.sampled_from(paths))
            raw = bytearray(path.read_bytes())
            if raw and data.draw(st.booleans()):
                raw[at % len(raw)] ^= 0xFF
            else:
                raw = raw[: at % (len(raw) + 1)]
            path.write_bytes(raw)
        self.files = PageFiles(self.folder, "f" * 32, ROW, self.limit)
        for number in range(31):  # whatever is still named is right, or gone once it is looked at
            for page in self.files.read([key(number)]):
                assert (page == rows(number)).all()

    @rule()
    def clear(self):
        self.files.clear()
        assert len(self.files) == 0

    @invariant()
    def within_the_limit_and_tidy(self):
        if hasattr(self, "files"):
            on_disk = [path.stat().st_size for path in self.folder.rglob("kv-*")]
            assert sum(on_disk) <= self.limit and sum(on_disk) == self.files.size
            assert not list(self.folder.rglob("*.tmp"))

    def teardown(self):
        if hasattr(self, "files"):
            self.files.close()
            shutil.rmtree(self.folder)


PageMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestPageMachine = PageMachine.TestCase


def test_an_index_that_gives_a_page_another_name_is_caught(tmp_path):
    files = PageFiles(tmp_path, "f" * 32, ROW, 1 << 20)
    files.write([(key(n), rows(n)) for n in range(1, 5)])
    files.close()
    index = next(tmp_path.rglob("index.json"))
    index.write_text(index.read_text().replace(key(1).hex(), key(9).hex()))
    again = PageFiles(tmp_path, "f" * 32, ROW, 1 << 20)
    assert key(9) in again and not list(again.read([key(9)]))
    again.close()


def test_a_page_in_two_files_outlives_one_of_them(tmp_path, monkeypatch):
    files = PageFiles(tmp_path, "f" * 32, ROW, 1 << 20)
    files.write([(key(1), rows(1)), (key(2), rows(2))])
    with monkeypatch.context() as patch:
        patch.setattr(PageFiles, "__contains__", lambda self, wanted: False)  # as a writer sees it that began before the other ended
        files.write([(key(2), rows(2)), (key(3), rows(3))])
    files._forget(files._files[0], "for this test")
    assert len(files) == 2
    assert [(page == rows(n)).all() for n, page in zip((2, 3), files.read([key(2), key(3)]), strict=True)] == [True, True]
    files.close()


def test_readers_and_writers_on_many_threads(tmp_path):
    files = PageFiles(tmp_path, "f" * 32, ROW, 4096 * 8)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        try:
            for _ in range(25):
                numbers = draw.permutation(200)[:5].tolist()
                files.write([(key(n), rows(n)) for n in numbers])
                for number, page in zip(numbers, files.read([key(n) for n in numbers]), strict=False):
                    assert (page == rows(number)).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files.close()
    assert not errors
    again = PageFiles(tmp_path, "f" * 32, ROW, 4096 * 8)
    assert len(again) == len(files) > 0
    again.close()
