"""``lint``, which checks scripts; stand-ins for the rules, so that reports, fixes and the command are tested alone."""

from __future__ import annotations

import ast
import gc
import json
import os
import signal
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from syntax_nodes import span_of
from validate_ddp import catalogue, scripts
from validate_ddp import lint as lint_module
from validate_ddp.config import Settings
from validate_ddp.findings import INFO, Edit, Finding, Fix, Place, Proposal, Span
from validate_ddp.lint import check

# As a shell starts what runs in its background, or nohup anything; tests that send a signal would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (getattr(signal, name, None) for name in ("SIGHUP", "SIGQUIT")):
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


# A deadline is a time asserted in a test: it fails where two other jobs have the cores. The same examples each time:
# a change is judged by what it does, and `make search` looks for new ones.
settings.register_profile("house", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("house")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out `slow` tests and `soak`s unless `-m` names them: a `-m` of another kind must not start them."""
    unnamed = [mark for mark in ("slow", "soak") if mark not in (config.option.markexpr or "")]
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in unnamed)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """What is there by now stays to the end: no collection of garbage looks through it again."""
    gc.freeze()


IMPORTS = """
import argparse
import json
import os
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
END = "\ndist.destroy_process_group()\n"


class Found(list[Finding]):
    """Findings in the order of a report, and what assertions ask of them."""

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self}

    @property
    def severities(self) -> list[str]:
        return [finding.severity for finding in self]

    @property
    def told(self) -> list[tuple[str, str]]:
        """Code and severity of each."""
        return [(finding.code, finding.severity) for finding in self]

    @property
    def places(self) -> list[tuple[str, str]]:
        """Code and path of each."""
        return [(finding.code, finding.path) for finding in self]

    @property
    def serious(self) -> Found:
        """Without what is only advice."""
        return Found(finding for finding in self if finding.severity != INFO)

    def of(self, *codes: str) -> Found:
        """Those of these rules."""
        return Found(finding for finding in self if finding.code in codes)

    def but(self, *codes: str) -> Found:
        """Those of other rules."""
        return Found(finding for finding in self if finding.code not in codes)


class Lint:
    """Checks what it writes into an empty folder, which is the working directory.

    A fault of ours on a script is raised, not told as users are told of it: a test of that puts ``own_fault`` back.
    """

    imports, end = IMPORTS, END
    own_fault = staticmethod(scripts.own_fault)

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {"cache_dir": None, "jobs": 1, "root": os.getcwd()}

    def __call__(self, script: str, *select: str, **settings: Any) -> Found:
        """What is found on one script, by all rules or by some."""
        self.write({"train.py": script})
        return self.run("train.py", **({"select": select} if select else {}), **settings)

    def body(self, script: str, *select: str) -> Found:
        """The same where its imports stand above it, and its group is destroyed behind it."""
        return self(IMPORTS + script + END, *select)

    def run(self, *targets: str, stdin: bytes | None = None, **settings: Any) -> Found:
        """What is found on files and folders that are there."""
        return Found(check(targets or (".",), Settings(**{**self.settings, **settings}), stdin).findings)

    def write(self, files: Mapping[str, str | bytes] | None = None, **modules: str) -> None:
        """Files by path, and modules by name."""
        for name, text in {**(files or {}), **{f"{name}.py": text for name, text in modules.items()}}.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))

    @staticmethod
    def notebook(*cells: str | list[str], text: str = "") -> str:
        """A notebook of these code cells, behind a text if there is one."""
        rows = [{"cell_type": "markdown", "source": [text], "metadata": {}}] if text else []
        rows += [{"cell_type": "code", "source": source, "metadata": {}, "outputs": []} for source in cells]
        return json.dumps({"cells": rows, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lint:
    """``lint(script)``: the findings on a script, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scripts, "own_fault", _raised)
    return Lint()


def _raised(path: str, error: Exception) -> None:
    raise error


_NAMES = {
    "DDP001": "unreadable-file",
    "DDP002": "syntax-error",
    "DDP003": "unused-suppression",
    "DDP201": "missing-set-epoch",
    "DDP203": "shuffle-with-sampler",
    "DDP502": "save-on-every-rank",
}


@pytest.fixture
def six_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of six rules, whatever the real one holds."""
    stubs = [catalogue._stub(f"{code.lower()}_{name.replace('-', '_')}.py") for code, name in _NAMES.items()]
    monkeypatch.setattr(catalogue, "_stubs", tuple(stubs))


def propose(text: str, path: str) -> list[Proposal]:
    """A proposal for each statement that is a call: of ``train``, ``save`` and ``load``, each with its kind of fix."""
    proposals = []
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
            continue
        call = node.value
        name = ast.unparse(call.func).rpartition(".")[2]
        span = span_of(node)
        before = ast.unparse(call.args[0]) if call.args else "0"
        if name == "train" and f"set_epoch({before})" not in text:
            edit = Edit("insert_before", path, span, f"sampler.set_epoch({before})")
            code, severity, fix = "DDP201", "error", Fix("Call `sampler.set_epoch`", True, (edit,))
        elif name == "load" and not any(keyword.arg == "map_location" for keyword in call.keywords):
            edit = Edit("add_argument", path, span_of(call), 'map_location="cpu"')
            code, severity, fix = "DDP203", "info", Fix("Load to the CPU", False, (edit,))
        elif name == "save":
            code, severity, fix = "DDP502", "warning", None
        else:
            continue
        first = Span(1, 0, 1, len(text.split("\n")[0].encode()))
        proposals.append(
            Proposal(
                code=code,
                severity=severity,
                path=path,
                span=span_of(call),
                statement=span,
                message=f"`{name}` is called",
                expects=("call", name),
                evidence=(Place(path, first, "the file begins here"),),
                fix=fix,
                entry=path,
                derivation=("seen by the stand-in",),
            )
        )
    return sorted(proposals, key=lambda proposal: proposal.span)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, six_rules: None) -> types.ModuleType:
    """``validate_ddp.lint``, in which ``propose`` stands for all rules, and for the walk of scripts they look at."""

    def proposed(files: list[str], summaries: Any, enabled: frozenset[str], jobs: int) -> Iterator[Any]:
        for file in files:
            source = summaries.source(file)
            found = propose(source.text, summaries.shown(file)) if source else []
            yield [proposal for proposal in found if proposal.code in enabled], [file]

    for name in ("kept", "entries"):
        monkeypatch.setattr(scripts, name, lambda files, summaries: files)
    monkeypatch.setattr(scripts, "propose", proposed)
    monkeypatch.setattr(lint_module, "check", check)  # so that a test may put its own there
    return lint_module
