"""Whatever a program looks like, the walk ends, tells of no fault of its own, and the other files are still checked."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from validate_ddp.catalogue import describe, every
from validate_ddp.config import Settings
from validate_ddp.findings import Finding
from validate_ddp.lint import check

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SCRIPTS = [path.read_text() for path in sorted(FIXTURES.rglob("*.py"))]
SCRIPTS += [script for stub in every() for script in (*describe(stub).valid, *describe(stub).invalid)]
BUGGY = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


def findings(files: dict[str, str | bytes], *targets: str) -> list[Finding]:
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        paths = [str(Path(folder, target)) for target in targets or files]
        found = check(paths, Settings(cache_dir=None, root=folder, jobs=1)).findings
        return [finding._replace(path=Path(finding.path).name) for finding in found]


def own_faults(found: list[Finding]) -> list[str]:
    return [finding.message for finding in found if "please report" in finding.message]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_scrambled_programs_are_walked_without_a_fault(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(SCRIPTS)).splitlines()
    for _ in range(data.draw(st.integers(1, 6))):
        where = data.draw(st.integers(0, max(len(lines) - 1, 0)))
        action = data.draw(st.sampled_from(["drop", "double", "swap", "dedent", "indent", "graft"]))
        if not lines:
            break
        if action == "drop":
            del lines[where]
        elif action == "double":
            lines.insert(where, lines[where])
        elif action == "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[where], lines[other] = lines[other], lines[where]
        elif action == "dedent":
            lines[where] = lines[where].removeprefix("    ")
        elif action == "indent":
            lines[where] = "    " + lines[where]
        else:
            lines[where:where] = data.draw(st.sampled_from(SCRIPTS)).splitlines()
    assert not own_faults(findings({"train.py": "\n".join(lines)}))


EXPRESSIONS = st.recursive(
    st.sampled_from(
        ["rank", "model", "dist", "x", "None", "0", "'a'", "args", "torch", "self", "loader", "sampler", "..."]
    ),
    lambda inner: st.one_of(
        st.builds("{}.{}".format, inner, st.sampled_from(["rank", "module", "sampler", "state_dict", "x", "append"])),
        st.builds("{}({})".format, inner, inner),
        st.builds("{}(*{}, **{})".format, inner, inner, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds(
            "({} {} {})".format, inner, st.sampled_from(["==", "+", "%", "and", "or", "in", "is", "//", "<"]), inner
        ),
        st.builds("[{0} for {1} in {0}]".format, inner, st.sampled_from(["x", "(x, rank)", "x.y"])),
        st.builds("{{{}: {}, **{}}}".format, inner, inner, inner),
        st.builds("(lambda x=1, *rank, **k: {})({})".format, inner, inner),
        st.builds("(not {})".format, inner),
        st.builds("f'{{{}}}'".format, st.sampled_from(["rank", "x", "args.rank"])),
    ),
    max_leaves=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EXPRESSIONS, min_size=1, max_size=8))
def test_any_expression_is_walked_without_a_fault(expressions: list[str]) -> None:
    body = [
        "import torch, torch.distributed as dist, argparse",
        "from torch.utils.data import *",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "dist.init_process_group('gloo')",
        "args = argparse.ArgumentParser().parse_args()",
        "rank, x = dist.get_rank(), [1]",
        "sampler = DistributedSampler(x)",
        "loader = DataLoader(x, sampler=sampler)",
        "model = DDP(torch.nn.Linear(1, 1))",
        "class self: pass",
    ]
    for index, expression in enumerate(expressions):
        body.append(
            [
                f"x = {expression}",
                f"if {expression}:\n    rank = {expression}\nelse:\n    torch.save({expression}, 'x')",
                f"for x in {expression}:\n    {expression}",
                f"with {expression} as x:\n    {expression}",
                f"def f(x, rank={expression}):\n    return {expression}\nf({expression})",
                f"class C(DDP):\n    y = {expression}\n    def __init__(self, *a):\n        self.x = {expression}\nC({expression})",
                f"try:\n    {expression}\nexcept x as rank:\n    raise {expression}\nfinally:\n    {expression}",
                f"x, *rank = {expression}",
            ][index]
        )
    assert not own_faults(findings({"train.py": "\n".join(body)}))


def cyclic(name: str, other: str) -> str:
    return f"import {other}\nfrom {other} import *\nfrom {other} import f as g\nimport torch.distributed as dist\ndef f():\n    return g()\nf()\n"


PROGRAMS: dict[str, dict[str, str | bytes]] = {
    "modules that import each other": {
        "a.py": cyclic("a", "b"),
        "b.py": cyclic("b", "a"),
        "train.py": "import a\n" + BUGGY,
    },
    "a module that imports itself": {
        "train.py": "import train\nfrom train import *\nfrom train import x as y\n" + BUGGY
    },
    "a package that imports its own name": {
        "train.py": "from pkg import pkg, run\nrun()\n" + BUGGY,
        "pkg/__init__.py": "from .pkg import run\nfrom . import pkg\n",
        "pkg/pkg.py": "from . import run as r\nimport torch.distributed\ndef run():\n    return r()\n",
    },
    "endless recursion": {
        "train.py": BUGGY
        + "def f(n, rank):\n    return f(n + 1, rank) + g(n)\ndef g(n):\n    return f(n, n)\nf(0, 0)\n"
    },
    "a class that derives from itself": {
        "train.py": BUGGY
        + "class A: pass\nclass A(A):\n    def __init__(self):\n        A()\n        super().__init__()\nA().x.y.z()\n"
    },
    "many alternatives": {
        "train.py": BUGGY
        + "import torch\nx = None\n"
        + "".join(f"if a{i}:\n    x = torch.f{i}(x)\n" for i in range(400))
        + "x.state_dict()\n"
    },
    "a wide call tree": {
        "train.py": BUGGY
        + "".join(
            f"def f{i}(rank):\n    "
            + "; ".join(f"f{j}(rank)" for j in range(i + 1, min(i + 9, 40)))
            + ("\n" if i < 39 else "pass\n")
            for i in range(40)
        )
        + "f0(dist.get_rank())\n"
    },
    "nested loops": {
        "train.py": BUGGY
        + "".join("    " * i + f"for rank{i} in range(3):\n" for i in range(18))
        + "    " * 18
        + "dist.barrier()\n"
    },
    "a long elif chain": {
        "train.py": BUGGY
        + "if rank == 0:\n    pass\n"
        + "".join(f"elif rank == {i}:\n    dist.barrier()\n" for i in range(1, 500))
    },
    "iterators that hold each other": {
        "train.py": BUGGY
        + "a = []\nb = {}\na.append(a)\n"
        + "".join(
            f"a.append(zip(a, enumerate(a)))\nb['{i}'] = [b, a]\nfor x in zip(a, b.values()):\n    print(f'{{x}}')\n"
            for i in range(30)
        )
    },
    "a huge literal": {"train.py": BUGGY + "x = [" + "1, " * 100_000 + "]\n"},
    "a long sum": {"train.py": BUGGY + "x = " + " + ".join(["'a'"] * 3000) + "\n"},
    "a long chain": {"train.py": BUGGY + "x" + ".a()" * 900 + "\n"},
}


@pytest.mark.parametrize("files", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_strange_program_is_walked_to_its_end(files: dict[str, str | bytes]) -> None:
    found = findings(files, "train.py")
    assert not own_faults(found)
    assert "DDP101" in {finding.code for finding in found} or {finding.code for finding in found} == {"DDP002"}


UNREADABLE: dict[str, bytes] = {
    "syntax error": b"import torch.distributed as dist\ndef (:\n",
    "python 2": b"import torch.distributed as dist\nprint 'x'\n",
    "nul byte": b"import torch.distributed\nx = '\0'\n",
    "utf-16": "import torch.distributed\n".encode("utf-16"),
    "wrong encoding": b"# coding: utf-8\nimport torch.distributed\nx = '\xff'\n",
    "unknown encoding": b"# coding: klingon\nimport torch.distributed\n",
    "deep nesting": b"import torch.distributed\n" + b"".join(b" " * i + b"if x:\n" for i in range(10_000)),
    "parentheses": b"import torch.distributed\nx = " + b"(" * 3000 + b")" * 3000 + b"\n",
    "elifs": b"import torch.distributed\nif x: pass\n" + b"elif x: pass\n" * 20_000,
    "half a file": b"import torch.distributed\nx = '''",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_cannot_be_read_is_told_and_the_next_is_checked(content: bytes) -> None:
    found = findings({"broken.py": content, "train.py": BUGGY})
    assert not own_faults(found)
    assert {finding.code for finding in found if finding.path == "broken.py"} & {"DDP001", "DDP002"}
    assert {finding.code for finding in found if finding.path == "train.py"} == {"DDP101"}


def test_blocks_that_only_pass_are_walked_without_a_fault() -> None:
    """Nothing is kept of ``pass``: such blocks are empty where a rule looks for their first or last statement."""
    script = """
import os
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
sampler = DistributedSampler([1, 2])
loader = DataLoader([1, 2], sampler=sampler)
for epoch in range(3):
    pass
dist.barrier()
if os.path.exists("done"):
    pass
else:
    pass
try:
    pass
finally:
    pass
with open("done", "w") as stream:
    pass
"""
    assert not own_faults(findings({"train.py": script}, "train.py"))
