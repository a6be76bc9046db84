"""The files by which other programs run the command: pre-commit's hook, GitHub's action, workflows to copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from adopted_project import BUGGY

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sysconfig.get_path("scripts")


def run(*command: str | Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, **environment}
    return subprocess.run(command, cwd=folder, env=whole, capture_output=True, text=True, check=False)


def repository(folder: Path) -> Path:
    """A repository of git with all that lies there."""
    who = [word for part in ("name", "email") for word in ("-c", f"user.{part}=a@b.example")]
    for command in (("init", "--quiet"), ("add", "."), (*who, "commit", "--quiet", "--message", "all")):
        done = run("git", *command, folder=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", sorted(ROOT.glob("docs/workflows/*.yml"))),
        ("vendor.github-actions", [ROOT / "action.yml"]),
    ],
)
def test_what_github_reads_follows_its_schemas(schema: str, files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    assert files
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema)
    done = run(*check, *files, folder=tmp_path)
    assert done.returncode == 0, done.stdout
    broken = tmp_path / "broken.yml"
    broken.write_text(files[0].read_text().replace("runs-on", "runs").replace("using", "use"))
    assert run(*check, broken, folder=tmp_path).returncode == 1


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_has_nothing_to_say_of_the_workflows_to_copy(tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    release = re.findall("```yaml\n(.*?)```", (ROOT / "docs" / "releasing.md").read_text(), re.DOTALL)
    # It reads workflows alone: the action's steps as those of one that is given the same inputs.
    inputs = {name: {"type": "string", "default": each["default"]} for name, each in action["inputs"].items()}
    job = {"runs-on": "ubuntu-latest", "steps": action["runs"]["steps"]}
    called = yaml.safe_dump({"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"action": job}})
    files = sorted(ROOT.glob("docs/workflows/*.yml"))
    for number, text in enumerate([*release, called]):
        files.append(tmp_path / f"{number}.yml")
        files[-1].write_text(text)
    assert len(files) == 4
    done = run("actionlint", *files, folder=tmp_path)
    assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr
    files[0] = tmp_path / "broken.yml"
    files[0].write_text(called.replace("inputs.arguments", "inputs.argument"))
    assert run("actionlint", *files, folder=tmp_path).returncode == 1


def test_the_action_annotates_and_the_words_that_it_is_given_come_last(tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = action["runs"]["steps"]
    assert set(step["env"]) == {"SOURCE", "ARGUMENTS"}
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "pipx").write_text('#!/bin/sh\nshift 3\n[ "$1" = validate-ddp ] && exec "$@"\n')
    (bin / "pipx").chmod(0o755)
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_bytes(BUGGY.read_bytes())

    def act(arguments: str) -> subprocess.CompletedProcess[str]:
        shell = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"])
        path = os.pathsep.join((str(bin), SCRIPTS, os.environ["PATH"]))
        cache = str(tmp_path / "cache")
        return run(*shell, folder=project, PATH=path, SOURCE="here", ARGUMENTS=arguments, VALIDATE_DDP_CACHE_DIR=cache)

    done = act(action["inputs"]["arguments"]["default"])
    assert done.returncode == 1 and "::error title=validate-ddp (DDP502 " in done.stdout, done.stderr
    example = yaml.safe_load((ROOT / "docs" / "workflows" / "code-scanning.yml").read_text())
    (given,) = (each["with"] for each in example["jobs"]["validate-ddp"]["steps"] if "validate-ddp" in each["uses"])
    done = act(given["arguments"])
    assert done.returncode == 0 and done.stdout == "" and (project / "findings.sarif").exists()


@pytest.mark.slow
def test_the_hook_runs_in_pre_commits_own_environment(tmp_path: Path) -> None:
    pytest.importorskip("pre_commit")
    source, project = tmp_path / "source", tmp_path / "project"
    left_out = shutil.ignore_patterns("__pycache__")
    for name in ("checks", "reference_trainer"):
        shutil.copytree(ROOT / name, source / name, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        shutil.copy(ROOT / name, source / name)
    project.mkdir()
    (project / "train.py").write_bytes(BUGGY.read_bytes())
    (project / "notes.yaml").write_text("{{ a template }}\n")
    (project / "run.sh").write_text("torchrun python train.py\n")
    hook = ("-m", "pre_commit", "try-repo", str(repository(source)), "validate-ddp", "--verbose")
    home = str(tmp_path / "pre-commit")
    done = run(sys.executable, *hook, "--all-files", folder=repository(project), PRE_COMMIT_HOME=home)
    assert done.returncode == 1 and "exit code: 1" in done.stdout, done.stdout + done.stderr
    assert "train.py:" in done.stdout and "run.sh:" in done.stdout and "notes.yaml" not in done.stdout
    done = run(sys.executable, *hook, "--files", "notes.yaml", folder=project, PRE_COMMIT_HOME=home)
    assert done.returncode == 0 and "no files to check" in done.stdout, done.stdout + done.stderr
