"""The look at bytes before a parse: never misses an import, and stays linear on hostile text."""

from __future__ import annotations

import ast
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_ddp.source.prefilter import imports, may_matter


def imported_by_ast(code: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found.add(base)
            dot = "" if base.endswith(".") else "."
            found |= {base + dot + alias.name for alias in node.names if alias.name != "*"}
    return found


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import a", {"a"}),
        ("import a.b as c, d", {"a.b", "d"}),
        ("from a import b", {"a", "a.b"}),
        ("from ..x import (y,\n z as w,)", {"..x", "..x.y", "..x.z"}),
        ("from . import y", {".", ".y"}),
        ("from .import y", {".", ".y"}),
        ("from...x import*", {"...x"}),
        ("from . . x import y", {"..x", "..x.y"}),
        ("import a . b", {"a.b"}),
        ("from a . b import c", {"a.b", "a.b.c"}),
        ("from a import(b)", {"a", "a.b"}),
        ("from a import (  # why (not)\n  b,  # 'quoted'\n  c\n)", {"a", "a.b", "a.c"}),
        ("from a \\\n import \\\r\n  b, \\\n c", {"a", "a.b", "a.c"}),
        ("import\\\n a", {"a"}),
        ("import\ta\x0c", {"a"}),
        ("def f():\n\timport a; from b import c", {"a", "b", "b.c"}),
        ("if x: import a", {"a"}),
        ("try: import a\nexcept: from b import c", {"a", "b", "b.c"}),
        ("x = 1\rimport a\ry = 2", {"a"}),
        ("import a;import b", {"a", "b"}),
        ("import a#b", {"a"}),
        ("'''x''';import a", {"a"}),
        ("from importlib import import_module", {"importlib", "importlib.import_module"}),
        ("from from_ import import_", {"from_", "from_.import_"}),
        ("import é.ü", {"é.ü"}),
        ("from ﬁle import x", {"file", "file.x"}),
        ("# from x import (\nimport real\nfrom y import (\n a,\n b)", {"real", "y", "y.a", "y.b"}),
        ("# from x import (a,\n#   b)\nimport real\nf(1)", {"real"}),
        ("# import fake \\\nimport real", {"real"}),
        ("# from x import (a \\\nfrom y import (b)", {"y", "y.b"}),
        ("x = 'from a import ('\nfrom b import (c, d)", {"b", "b.c", "b.d"}),
        ("importlib.import_module('a.b')\n__import__( 'c' )", {"a.b", "c"}),
        ("yield_from = 1\nraise X from e\nimport a", {"a"}),
    ],
)
def test_import_is_found(code: str, names: set[str]) -> None:
    found = imports(code.encode())
    assert names <= set(found)
    assert len(found) == len(set(found))


def test_text_without_imports_gives_none() -> None:
    assert imports(b"") == imports(b"x = important\n") == imports(b"reimport(a)") == []


name = st.sampled_from(["a", "b2", "_c", "from_", "importer", "as_x", "é"])
dotted = st.lists(name, min_size=1, max_size=3)
space = st.sampled_from([" ", "  ", "\t", " \\\n ", "\\\n\t", " \\\r\n"])
gap = st.sampled_from(["", "", " ", "\t", " \\\n"])
inner_gap = st.sampled_from(["", " ", "\n", "\r\n ", " # note (x)\n", "#)\n", "\\\n"])


@st.composite
def statement(draw: st.DrawFn) -> str:
    alias = st.one_of(st.just(""), name.map("as {}".format))

    def item(parts: list[str], between: str) -> str:
        renamed = draw(alias)
        return f"{draw(gap)}.{draw(gap)}".join(parts) + (f"{draw(space)}{renamed}" if renamed else "") + between

    if draw(st.booleans()):
        items = [item(draw(dotted), draw(gap)) for _ in range(draw(st.integers(1, 3)))]
        return f"import{draw(space)}" + f",{draw(gap)}".join(items)
    level = draw(st.integers(0, 4))
    module = draw(dotted) if level == 0 or draw(st.booleans()) else []
    start = "".join("." + draw(gap) for _ in range(level)) + f"{draw(gap)}.{draw(gap)}".join(module)
    head = f"from{draw(space)}{start}{draw(space)}import"
    form = draw(st.sampled_from("*n("))
    if form == "*":
        return f"{head}{draw(gap)}*"
    items = [item([draw(name)], draw(inner_gap if form == "(" else gap)) for _ in range(draw(st.integers(1, 3)))]
    if form == "n":
        return head + draw(space) + ",".join(items)
    listed = ",".join(draw(inner_gap) + one for one in items)
    return f"{head}{draw(gap)}({listed}{draw(st.sampled_from(['', ',']))}{draw(inner_gap)})"


noise = st.sampled_from(
    [
        "x = f(1, (2,\n 3))",
        "# from x import (a,",
        "# import y \\",
        "'from q import ('",
        "'''\nfrom doc import (a,\n b)\n'''",
        '"""import (""" # (',
        "y = '#'",
        "'''# from q import ('''",
        "pass",
    ]
)
joint = st.sampled_from(["\n", "\n\n", "\r\n", "\r"])


@settings(max_examples=150)
@given(st.lists(st.one_of(statement(), statement(), noise), min_size=1, max_size=6), st.data())
def test_no_import_statement_is_missed(statements: list[str], data: st.DataObject) -> None:
    code = ""
    for one in statements:
        opening = data.draw(st.sampled_from(["", "if 1: "])) if not one.startswith("#") else ""
        ending = data.draw(joint) if "#" in one else data.draw(st.one_of(joint, st.just("; pass\n")))
        code += opening + one + ending
    expected = {unicodedata.normalize("NFKC", module) for module in imported_by_ast(code)}
    assert expected <= set(imports(code.encode()))


@given(
    st.lists(st.sampled_from(["from", "import", " ", "a", ".", "(", ")", "#", "\n", "\\", ",", "as", "'"]), max_size=40)
)
def test_any_text_is_survived(pieces: list[str]) -> None:
    imports("".join(pieces).encode())


@given(st.binary(max_size=80))
def test_any_bytes_are_survived(data: bytes) -> None:
    imports(b"import " + data)
    may_matter(data)


@pytest.mark.parametrize(
    "unit",
    [
        "import ",
        "from a import (",
        "from a import (#",
        "from a import (\n",
        "# from a import (\n",
        "import \\\n",
        "from.",
        "from a ",
        "a.",
        "from \\\n",
        "import a, ",
        "import_module(",
    ],
)
def test_hostile_repetition_does_not_take_quadratic_time(unit: str) -> None:
    # Not a measure of speed: the quadratic form of these takes minutes.
    start = time.process_time()
    imports((unit + "import ").encode() + unit.encode() * (200_000 // len(unit)))
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    "code",
    [
        "import torch.distributed as dist",
        "from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(m)  # distributed",
        "model = nn.DataParallel(model)",
        "from accelerate import Accelerator",
        "acc = Accelerator()",
        "import horovod.torch as hvd",
        "import deepspeed",
        "from lightning.fabric import Fabric",
        "import pytorch_lightning as pl",
        "from mpi4py import MPI",
        'int(os.environ["LOCAL_RANK"])',
        "if args.local_rank == 0: pass",
        "if get_rank() == 0: pass",
        "os.environ['WORLD_SIZE']",
        "steps // world_size",
        "import torch_xla.core.xla_model as xm",
        "os.environ['SLURM_PROCID']",
        "subprocess.run(['torchrun', 'a.py'])",
    ],
)
def test_file_of_distributed_training_may_matter(code: str) -> None:
    assert may_matter(code.encode())


def test_plain_file_does_not_matter() -> None:
    assert not may_matter(b"import torch\n\nmodel = torch.nn.Linear(2, 2)\ntorch.save(model, 'x')\n")
    assert not may_matter(b"")
