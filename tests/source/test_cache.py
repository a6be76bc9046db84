"""The cache: a value or a miss, whatever happens to its folder."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_ddp.source import cache as module
from validate_ddp.source.cache import Cache, default_directory, digest

KEY = digest("key")
VALUE = {"calls": [["torch.save", 3, [1, 0, 1, 9]]], "é": None, "x": 1.5}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


def entries(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*/*/*/*.json"))


# Values


def test_value_comes_back_in_a_later_run(folder: str) -> None:
    Cache(folder).put("summary", KEY, VALUE)
    assert Cache(folder).get("summary", KEY) == VALUE


def test_kind_and_key_keep_values_apart(folder: str) -> None:
    cache = Cache(folder)
    cache.put("summary", KEY, 1)
    assert cache.get("findings", KEY) is None
    assert cache.get("summary", digest("other")) is None
    cache.put("summary", KEY, 2)
    assert cache.get("summary", KEY) == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(json_values.filter(lambda value: value is not None))
def test_any_json_value_comes_back(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    cache = Cache(str(tmp_path_factory.getbasetemp() / "values"))
    cache.put("summary", KEY, value)
    assert cache.get("summary", KEY) == value


def test_value_that_json_cannot_hold_is_a_mistake_of_the_caller(folder: str) -> None:
    with pytest.raises(TypeError):
        Cache(folder).put("summary", KEY, {1, 2})


def test_value_nested_too_deeply_is_not_kept(folder: str) -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    Cache(folder).put("summary", KEY, value)
    assert Cache(folder).get("summary", KEY) is None
    while isinstance(value, list):
        (value,) = value


def test_no_folder_is_no_cache() -> None:
    cache = Cache(None)
    cache.put("summary", KEY, VALUE)
    assert cache.get("summary", KEY) is None
    cache.prune()


@pytest.mark.parametrize(
    ("kind", "key"), [("a/b", KEY), ("..", KEY), ("summary", "../../x"), ("summary", ""), ("", KEY)]
)
def test_name_that_could_lead_out_of_the_folder_is_refused(folder: str, kind: str, key: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        Cache(folder).get(kind, key)
    with pytest.raises(ValueError, match="digest"):
        Cache(folder).put(kind, key, 1)


def test_another_version_finds_nothing(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Cache(folder).put("summary", KEY, VALUE)
    monkeypatch.setattr("validate_ddp.__version__", "999")
    assert Cache(folder).get("summary", KEY) is None


# Damage


@settings(max_examples=60)
@given(st.data())
def test_damaged_entry_is_a_miss(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = str(tmp_path_factory.getbasetemp() / "damaged")
    cache = Cache(folder)
    cache.put("summary", KEY, VALUE)
    (entry,) = entries(folder)
    content = entry.read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                content[:position],
                content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :],
                content + b" ",
            ]
        )
    )
    entry.write_bytes(damaged)
    assert cache.get("summary", KEY) is None
    cache.put("summary", KEY, VALUE)
    assert cache.get("summary", KEY) == VALUE


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\n\xff", b"[" * 100_000, json.dumps(VALUE).encode()])
def test_foreign_content_is_a_miss(folder: str, content: bytes) -> None:
    cache = Cache(folder)
    cache.put("summary", KEY, VALUE)
    entries(folder)[0].write_bytes(content)
    assert cache.get("summary", KEY) is None


def test_entry_moved_to_another_key_is_a_miss(folder: str) -> None:
    cache = Cache(folder)
    cache.put("summary", KEY, VALUE)
    other = digest("other")
    (entry,) = entries(folder)
    moved = entry.parent.parent / other[:2] / f"{other}.json"
    moved.parent.mkdir(exist_ok=True)
    entry.rename(moved)
    assert cache.get("summary", other) is None


def test_folder_in_place_of_an_entry_is_a_miss(folder: str) -> None:
    cache = Cache(folder)
    cache.put("summary", KEY, VALUE)
    (entry,) = entries(folder)
    entry.unlink()
    entry.mkdir()
    assert cache.get("summary", KEY) is None
    cache.put("summary", KEY, VALUE)
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


# Folders that cannot be written


def test_file_in_place_of_the_folder_turns_the_cache_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        cache = Cache(str(directory))
        cache.put("summary", KEY, VALUE)
        assert cache.get("summary", KEY) is None
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize("function", ["open", "replace", "makedirs"])
def test_failing_disk_turns_writing_off_silently(
    folder: str, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    calls = []

    def fail(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        raise OSError(code, os.strerror(code))

    cache = Cache(folder)
    if function != "makedirs":
        cache.put("summary", digest("before"), 1)
    monkeypatch.setattr(os, function, fail)
    cache.put("summary", KEY, VALUE)
    cache.put("summary", digest("again"), VALUE)
    assert len(calls) == 1
    monkeypatch.undo()
    assert cache.get("summary", KEY) is None
    if function != "makedirs":
        assert cache.get("summary", digest("before")) == 1
    assert not list(Path(folder).rglob("*.tmp"))


def test_disk_that_fills_up_leaves_no_half_entry(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(folder)
    cache.put("summary", KEY, 1)

    class Full:
        def __init__(self, handle: int, mode: str) -> None:
            self.handle = handle

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            os.close(self.handle)

        def write(self, data: bytes) -> None:
            os.write(self.handle, data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "open", Full, raising=False)
    cache.put("summary", KEY, 2)
    monkeypatch.undo()
    assert cache.get("summary", KEY) == 1
    assert not list(Path(folder).rglob("*.tmp"))


def test_processes_that_write_the_same_entries_never_show_half_of_one(folder: str) -> None:
    script = (
        "import sys; sys.path[:] = sys.argv[2].split('|')\n"
        "from validate_ddp.source.cache import Cache, digest\n"
        "cache = Cache(sys.argv[1])\n"
        "for turn in range(60):\n"
        "    for name in 'abc':\n"
        "        cache.put('summary', digest(name), [name] * 2000)\n"
        "        assert cache.get('summary', digest(name)) == [name] * 2000\n"
    )
    command = [sys.executable, "-c", script, folder, "|".join(sys.path)]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for run in runs:
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
    assert len(entries(folder)) == 3
    assert not list(Path(folder).rglob("*.tmp"))


# Bounds


def fill(folder: str, count: int) -> list[str]:
    cache = Cache(folder)
    keys = [digest(f"{number}") for number in range(count)]
    for age, key in enumerate(keys):
        cache.put("summary", key, "x" * 1000)
        path = cache._path("summary", key)
        os.utime(path, (time.time() - 10_000 + age, time.time() - 10_000 + age))
    return keys


def test_prune_deletes_the_oldest_entries_beyond_the_limit(folder: str) -> None:
    keys = fill(folder, 10)
    cache = Cache(folder)
    cache.prune(limit=5 * 1100)
    assert [cache.get("summary", key) is not None for key in keys] == [False] * 5 + [True] * 5
    cache.prune(limit=0)
    assert not entries(folder)


def test_writing_prunes_now_and_then(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pruned: list[int] = []
    monkeypatch.setattr(Cache, "prune", lambda self, limit=0: pruned.append(1))
    cache = Cache(folder)
    for number in range(600):
        cache.put("summary", digest(f"{number}"), 1)
    assert len(pruned) == 1  # at most once an hour
    stamp = Path(folder) / ".pruned"
    os.utime(stamp, (time.time() - 4000, time.time() - 4000))
    for number in range(600):
        cache.put("summary", digest(f"{number}"), 1)
    assert len(pruned) == 2


def test_prune_deletes_leftovers_of_dead_processes_only(folder: str) -> None:
    fill(folder, 1)
    (entry,) = entries(folder)
    stale, fresh = entry.with_suffix(".7.0.tmp"), entry.with_suffix(".8.0.tmp")
    for path in (stale, fresh):
        path.write_text("x")
    os.utime(stale, (time.time() - 9000, time.time() - 9000))
    Cache(folder).prune()
    assert entry.exists() and fresh.exists() and not stale.exists()


def test_prune_follows_no_link_and_deletes_nothing_foreign(folder: str, tmp_path: Path) -> None:
    fill(folder, 2)
    first, second = entries(folder)
    outside = tmp_path / "outside"
    inner = outside / "summary" / KEY[:2]
    inner.mkdir(parents=True)
    precious = inner / f"{KEY}.json"
    precious.write_text("precious")
    os.symlink(outside, Path(folder) / "linked")
    os.symlink(outside / "summary", first.parents[1].parent / "linked")
    os.symlink(inner, first.parents[1] / "linked")
    link = first.with_name(first.stem[:-1] + "0123.json")
    os.symlink(precious, link)
    foreign = [Path(folder) / "notes.json", first.with_name("notes.json"), first.parent.parent / "a.json"]
    for path in foreign:
        path.write_text("mine")
    Cache(folder).prune(limit=0)
    assert precious.read_text() == "precious"
    assert all(path.read_text() == "mine" for path in foreign)
    assert link.is_symlink() and not first.exists() and not second.exists()


def test_prune_leaves_a_folder_alone_that_is_not_marked_as_a_cache(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    keys = fill(str(tmp_path), 3)
    cache = Cache(str(tmp_path))
    cache.prune(limit=0)
    assert all(cache.get("summary", key) for key in keys)
    assert not (tmp_path / "CACHEDIR.TAG").exists() and not (tmp_path / ".gitignore").exists()


def test_new_folder_is_marked_for_backup_programs_and_git(folder: str) -> None:
    Cache(folder).put("summary", KEY, VALUE)
    assert (Path(folder) / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert (Path(folder) / ".gitignore").read_text() == "*\n"


# Places and digests


def test_folder_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VALIDATE_DDP_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_directory() == os.path.join("/home/me", ".cache", "validate-ddp")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_directory() == os.path.join("/home/me", "Library", "Caches", "validate-ddp")
    monkeypatch.setattr(sys, "platform", "win32")
    assert default_directory() is None
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert default_directory() == os.path.join("/local", "validate-ddp", "Cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_directory() == os.path.join("/local", "validate-ddp", "Cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_directory() == os.path.join("/xdg", "validate-ddp")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VALIDATE_DDP_CACHE_DIR", "here")
    assert default_directory() == str(tmp_path / "here")


def test_digest_tells_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc") != digest("abc", "")
    assert digest("é") == digest("é".encode())
    assert digest() != digest("")
    assert len(digest("\ud800")) == 40 and set(digest("x")) <= set("0123456789abcdef")


def test_the_stamp_of_pruning_writes_over_no_file_that_a_link_leads_to(folder: str, tmp_path: Path) -> None:
    """The folder may be named by the settings of a project, and lie in it, with a link in place of the stamp."""
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    os.utime(precious, (0, 0))
    cache = Cache(folder)
    cache.put("kind", "0" * 40, 1)
    (Path(folder) / ".pruned").unlink(missing_ok=True)
    (Path(folder) / ".pruned").symlink_to(precious)
    cache.put("kind", "1" * 38 + "00", 2)
    assert precious.read_text() == "years of work"
