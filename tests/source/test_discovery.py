"""Which files are checked: targets, walks, .gitignore as git reads it, excludes, links."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from validate_ddp.source.discovery import Found, discover
from validate_ddp.source.gitignore import Patterns

if TYPE_CHECKING:
    from pathlib import Path

TREE = (
    "x.py",
    "a.py",
    "b c.py",
    "#a.py",
    "!a.py",
    "a/x.py",
    "a/a.py",
    "a/b/x.py",
    "a/b/ab.py",
    "a/b/a/x.py",
    "ab/x.py",
    "ab/[a].py",
    "b/a/x.py",
    "b/a/b/a.py",
    "b/x.py ",
    "b/-.py",
)
PIECES = [
    "a",
    "b",
    "ab",
    "x",
    "x.py",
    ".py",
    "*",
    "*",
    "?",
    "**",
    "/",
    "/",
    "!",
    "#",
    " ",
    "\\",
    "[ab]",
    "[!a]",
    "[a-c]",
]
PIECES += ["[", "]", "[]-]", "[[:alpha:]]", "[^x]", "-", "a/b", "**/", "/**", "\r"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*paths: str, text: str = "") -> None:
    for path in paths:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)


def paths(*targets: str, **options: object) -> list[str]:
    found = discover(targets or (".",), **options)  # type: ignore[arg-type]
    assert all(entry.problem is None for entry in found), found
    return [entry.path for entry in found]


# Walks


def test_walk_takes_scripts_and_notebooks_sorted_by_name() -> None:
    write("b.py", "a.ipynb", "c.txt", "d.pyc", "a/z.py", "a/b/c.py", "train.PY")
    assert paths() == ["a/b/c.py", "a/z.py", "a.ipynb", "b.py"]


def test_folder_named_like_a_script_is_walked_as_a_folder() -> None:
    write("x.py/inner.py", "y.ipynb/z.txt")
    assert paths() == ["x.py/inner.py"]
    assert paths("x.py") == ["x.py/inner.py"]


def test_paths_are_relative_below_the_working_directory_and_absolute_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("here/a.py", "there/b.py")
    monkeypatch.chdir(tmp_path / "here")
    there = str(tmp_path / "there")
    assert paths("../here/a.py", str(tmp_path / "here"), "../there") == ["a.py", f"{there}/b.py"]


def test_folder_with_the_working_directory_as_prefix_of_its_name_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("here/a.py", "here2/b.py")
    monkeypatch.chdir(tmp_path / "here")
    assert paths("../here2") == [str(tmp_path / "here2" / "b.py")]


def test_default_excludes_and_virtual_environments_are_not_entered() -> None:
    write(
        ".venv/a.py", "venv/a.py", "node_modules/m/a.py", "__pycache__/a.py", "src/build/a.py", "dist/a.py", ".git/a.py"
    )
    write("my_environment/pyvenv.cfg", "my_environment/lib/a.py", "env/cartpole.py", "venv.py")
    assert paths() == ["env/cartpole.py", "venv.py"]


def test_build_and_dist_are_entered_where_they_are_packages() -> None:
    write("dist/__init__.py", "dist/comm.py", "pkg/build/__init__.py")
    assert paths() == ["dist/__init__.py", "dist/comm.py", "pkg/build/__init__.py"]


def test_excludes_follow_gitignore_patterns_relative_to_the_root() -> None:
    write("a/gen/x.py", "gen/x.py", "a/x_pb2.py", "a/y.py", "venv/v.py")
    assert paths(extend_exclude=["/gen", "*_pb2.py"]) == ["a/gen/x.py", "a/y.py"]
    assert paths(extend_exclude=["./a/gen/"]) == ["a/x_pb2.py", "a/y.py", "gen/x.py"]
    assert paths(exclude=["gen"]) == ["a/x_pb2.py", "a/y.py", "venv/v.py"]
    assert paths(exclude=["/gen"], root="a") == ["a/x_pb2.py", "a/y.py", "gen/x.py", "venv/v.py"]


def test_file_given_by_name_is_taken_though_excluded_ignored_or_of_another_suffix() -> None:
    write(".git/HEAD", "venv/a.py", "script", "ignored.py")
    write(".gitignore", text="ignored.py\n")
    assert paths("venv/a.py", "script", "ignored.py") == ["venv/a.py", "script", "ignored.py"]


def test_excluded_folder_given_by_name_is_walked() -> None:
    write("venv/a.py", "venv/pyvenv.cfg")
    assert paths("venv") == ["venv/a.py"]


def test_tree_deeper_than_python_may_recurse_is_walked() -> None:
    path = "d/" * 400 + "x.py"
    write(path)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    try:
        found = discover(["."])
    finally:
        sys.setrecursionlimit(usual)
    assert found == [Found(path)]


# Problems


def test_missing_target_is_a_problem_and_the_others_are_still_found() -> None:
    write("a.py")
    found = discover(["no.py", "a.py", ""])
    assert found[1] == Found("a.py")
    assert found[0].path == "no.py" and "does not exist" in str(found[0].problem)
    assert found[2].problem


@pytest.mark.parametrize("target", ["a\0b.py", "\0"])
def test_target_with_a_nul_is_a_problem(target: str) -> None:
    (found,) = discover([target])
    assert found.problem and "\0" not in found.path


def test_unreadable_folder_is_a_problem_on_one_line_and_the_walk_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a/x.py", "locked/y.py", "z.py")
    real = os.scandir

    def scandir(path: str) -> object:
        if os.path.basename(path) == "locked":  # permissions do not stop root, who may run this
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = discover(["."])
    assert found == [Found("a/x.py"), Found("locked", "cannot be read: Permission denied"), Found("z.py")]


def test_unreadable_gitignore_does_not_stop_the_walk() -> None:
    write("a.py", ".gitignore/strange.txt")
    assert paths() == ["a.py"]


# Links


def test_file_reached_twice_is_given_once() -> None:
    write("a/x.py")
    assert paths("a", "a/x.py", ".", "a/../a/x.py") == ["a/x.py"]


def test_file_is_given_by_its_own_name_before_a_link_to_it() -> None:
    write("b/x.py")
    os.makedirs("a")
    os.symlink("../b/x.py", "a/x.py")
    os.symlink("b/x.py", "0.py")
    assert paths() == ["b/x.py"]
    assert paths("0.py") == ["0.py"]
    assert paths("0.py", "a") == ["0.py"]


def test_links_that_loop_or_lead_nowhere_do_not_stop_the_walk() -> None:
    write("a/x.py")
    os.symlink("..", "a/up")
    os.symlink(".", "a/self")
    os.symlink("loop.py", "loop.py")
    os.symlink("gone.py", ".#x.py")
    os.symlink("two", "one")
    os.symlink("one", "two")
    assert paths() == ["a/x.py"]


def test_link_to_nowhere_as_target_is_a_problem() -> None:
    os.symlink("gone.py", "x.py")
    (found,) = discover(["x.py"])
    assert found.path == "x.py" and "link" in str(found.problem)


def test_link_to_a_folder_is_walked_as_target_only() -> None:
    write("real/x.py", "other/y.py")
    os.symlink("real", "link")
    assert paths("other", "link") == ["other/y.py", "link/x.py"]
    assert paths() == ["other/y.py", "real/x.py"]


# .gitignore


def test_gitignore_above_the_target_holds_up_to_the_repository_root() -> None:
    write("repo/.git/HEAD", "repo/src/pkg/a.py", "repo/src/pkg/b.py", "repo/src/pkg/c.py")
    write(".gitignore", text="a.py\n")
    write("repo/.gitignore", text="b.py\n/c.py\n")
    assert paths("repo/src/pkg") == ["repo/src/pkg/a.py", "repo/src/pkg/c.py"]
    assert paths("repo/src/pkg", respect_gitignore=False) == [f"repo/src/pkg/{name}.py" for name in "abc"]


def test_gitignore_holds_below_the_target_without_a_repository() -> None:
    write("p/a.py", "p/q/b.py", "p/q/c.py")
    write("p/.gitignore", text="\ufeffa.py\r\n")
    write("p/q/.gitignore", text="c.py")
    assert paths("p") == ["p/q/b.py"]


def test_repository_within_a_repository_begins_anew() -> None:
    write(".git/HEAD", "sub/.git", "sub/a.py", "a.py")
    write(".gitignore", text="a.py\n")
    assert paths() == ["sub/a.py"]


def test_private_excludes_of_the_repository_are_honoured_below_gitignore() -> None:
    write(".git/HEAD", "a.py", "b.py")
    write(".git/info/exclude", text="*.py\n")
    write(".gitignore", text="!b.py\n")
    assert paths() == ["b.py"]


def test_hostile_pattern_takes_no_exponential_time() -> None:
    name = "a" * 250
    assert Patterns("*a" * 60 + "b\n").verdict(name, False) is None
    assert Patterns("**/a/" * 60 + "b\n").verdict("/".join("a" * 120), False) is None


def git(*arguments: str, folder: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "XDG_CONFIG_HOME": folder}
    return subprocess.run(
        ["git", "-C", folder, *arguments], check=True, capture_output=True, text=True, env=environment
    ).stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("git") is None:
        pytest.skip("git is the oracle")
    folder = str(tmp_path_factory.mktemp("repository"))
    git("init", "-q", folder=folder)
    write(*(os.path.join(folder, path) for path in TREE))
    return folder


def pattern_is_documented(line: str) -> bool:
    """Git's own documentation leaves out ``**`` beside other characters; there its matcher does odd things."""
    return all(part.strip("*") in ("", part) or "**" not in part for part in line.lstrip("!").rstrip(" ").split("/"))


lines = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join).filter(pattern_is_documented)
files = st.lists(lines, max_size=4).map("\n".join)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files, files, files)
@example("a/\n!a/b/\n", "", "")
@example("*\n!*/\n!x.py\n", "", "!a.py")
@example("a/**/x.py\n", "/b/**\n", "**/b")
@example("\\#a.py\n\\!a.py\nb c.py  \n", "x.py\\ \n", "")
@example("[a-b].py\nab/[[]a].py\n[!-]b\n", "[[:alpha:]].py", "")
@example("/x.py\n/a/b\n", "/a.py\n!/x.py", "a/")
@example("**\n!a\n", "", "!**/x.py")
@example("a\\", "[", "[]-]")
def test_gitignore_is_read_as_git_reads_it(repository: str, top: str, middle: str, bottom: str) -> None:
    assume("\0" not in top)
    for folder, text in (("", top), ("a", middle), ("a/b", bottom)):
        write(os.path.join(repository, folder, ".gitignore"), text=text)
    listed = git("ls-files", "-z", "--others", "--exclude-standard", folder=repository)
    expected = sorted(path for path in listed.split("\0") if path.endswith(".py"))
    found = [os.path.relpath(path, repository) for path in paths(repository, exclude=())]
    assert sorted(found) == expected
