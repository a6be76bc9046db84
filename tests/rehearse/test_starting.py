"""Scripts that would not start: old launchers, SLURM, missing packages, loops that --max-steps would break."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from validate_ddp import cli
from validate_ddp.findings import Finding
from validate_ddp.rehearse import fake_data, imports
from validate_ddp.rehearse.child.validate_ddp_rehearsed import callers
from validate_ddp.rehearse.parent import environment
from validate_ddp.rehearse.plan import Plan
from validate_ddp.rehearse.reading import option_of_rank


def finding(code: str, path: Path, line: int) -> Finding:
    return Finding(code, "a-rule", "warning", str(path), line, 1, line, 9, "said")


@pytest.mark.parametrize(
    ("code", "name", "option"),
    [("DDP105", "--local_rank", "--local_rank"), ("DDP105", "--local-rank", "--local-rank"),
     ("DDP101", "--local_rank", "")],
)  # fmt: skip
def test_the_option_of_the_old_launcher_is_the_one_that_reading_names(
    tmp_path: Path, code: str, name: str, option: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import argparse\nparser.add_argument({name!r}, type=int)\n")
    assert option_of_rank((finding(code, script, 2),)) == option


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_a_task_of_slurm_has_its_numbers_and_none_of_torchrun(tmp_path: Path) -> None:
    plan = Plan(("train.py",), nproc_per_node=2, nnodes=2, launcher="slurm")
    own = environment.of_rank(plan, 3, 29500)
    assert (own["SLURM_PROCID"], own["SLURM_LOCALID"], own["SLURM_NODEID"]) == ("3", "1", "1")
    shared = environment.base(plan, str(tmp_path), "run", [29500])
    assert (shared["SLURM_NTASKS"], shared["SLURM_NNODES"]) == ("4", "2") and "RANK" not in {**shared, **own}
    ask = ["scontrol", "show", "hostnames", shared["SLURM_JOB_NODELIST"]]
    hosts = subprocess.run(ask, env={**shared, **own}, capture_output=True, text=True, check=True).stdout
    assert hosts.split() == ["localhost", "localhost"]


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("import os\nimport no_such_package.part", "no_such_package"),
        ("from own import thing", "no_such_package"),
        ("try:\n    import no_such_package\nexcept ImportError:\n    pass", None),
        ("def later():\n    import no_such_package", None),
        ("import sys\nsys.path.append('x')\nimport no_such_package", None),
        ("import pytest\nroot = pytest.find_root(__file__)\nimport no_such_package", None),
        ("import os\nos.getcwd()\nimport no_such_package", "no_such_package"),
        ("import torch\nprint(torch.device('cpu'))\nimport no_such_package", "no_such_package"),
        ("import wandb", None),
        ("import beside\nimport json", None),
    ],
)
def test_what_is_imported_at_once_is_looked_for_before_ranks_start(
    tmp_path: Path, script: str, name: str | None
) -> None:
    (tmp_path / "own.py").write_text("import no_such_package\n")
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "train.py").write_text(script + "\n")
    found = imports.missing(str(tmp_path / "train.py"), Plan(("train.py",)))
    assert (found.name if found else None) == name


def test_a_missing_package_is_told_with_its_line_and_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import torch.nn as nn\nimport no_such_package\nimport no_such_other\nnn.DataParallel(nn.Linear(1, 1))\n"
    )
    monkeypatch.setattr(imports, "_is_there", lambda name, places: not name.startswith("no_such"))
    assert cli.main(["run", "--report", "report.json", "train.py"]) == 3
    told = capsys.readouterr().out
    assert "No module named 'no_such_package' (train.py:2)" in told and "Not there either: no_such_other" in told
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["outcome"] == "failed" and report["failure"]["place"] == "train.py:2"


STAND_INS = """
import importlib.util
assert importlib.util.find_spec("wandb") is None
try:
    import tensorboardX
except ImportError:
    tensorboardX = None
import wandb
run = wandb.init(project="p", config={"lr": 0.1})
wandb.log({"loss": 1.0}, step=3)
with wandb.Artifact("model", type="model") as artifact:
    artifact.add_file("x")
print(tensorboardX, wandb.config.lr, run.name, "torch" in __import__("sys").modules)
"""


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="the package itself is there")
def test_a_stand_in_serves_only_where_the_script_would_fail_without(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STAND_INS)
    rehearsed = {**os.environ, "PYTHONPATH": environment.CHILD, "VALIDATE_DDP_REHEARSAL": "{}"}
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=rehearsed, capture_output=True, text=True)
    assert done.stdout == "None 0.1 rehearsal False\n", done.stderr


def test_a_short_run_that_cannot_be_set_up_does_not_come_to_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('wrote', 'w')\n")
    rehearsed = {**os.environ, "PYTHONPATH": environment.CHILD, "VALIDATE_DDP_REHEARSAL": "{}"}
    rehearsed["VALIDATE_DDP_PARTITION"] = "{}"
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=rehearsed, capture_output=True)
    assert done.returncode == 1
    assert not (tmp_path / "wrote").exists()


BY_HAND = {
    "batch = next(batches)": True,
    "for step in range(2):\n        batch = next(batches)": True,
    "for batch in batches: break": False,
    "batch = next(batches, None)": False,
    "batch = list(batches)": False,
    "try:\n        batch = next(batches)\n    except StopIteration:\n        pass": False,
    "try:\n        batch = next(batches)\n    except ValueError:\n        pass": True,
    "try:\n        batch = next(batches)\n    except Exception:\n        pass": False,
}


@pytest.mark.parametrize("body", BY_HAND)
def test_a_loop_that_asks_for_batches_itself_is_told_from_one_that_ends_with_them(tmp_path: Path, body: str) -> None:
    script = tmp_path / "loop.py"
    script.write_text(f"def loop(batches):\n    {body}\n")
    told: list[bool] = []

    class Batches:
        def __iter__(self) -> Batches:
            return self

        def __next__(self) -> int:
            told.append(callers.takes_by_hand(sys._getframe(1)))
            if len(told) > 2:
                raise StopIteration
            return 1

    space: dict[str, Callable[[object], None]] = {}
    exec(compile(script.read_text(), str(script), "exec"), space)
    space["loop"](Batches())
    assert told[0] is BY_HAND[body]


def test_made_images_of_cifar_read_as_arrays(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    fake_data.make(f"cifar10:{tmp_path / 'data'}")
    folder = tmp_path / "data" / "cifar-10-batches-py"
    batch = pickle.loads((folder / "data_batch_5").read_bytes(), encoding="latin1")  # noqa: S301 - just made
    images = numpy.vstack([batch["data"]]).reshape(-1, 3, 32, 32)
    assert images.shape[0] == len(batch["labels"]) == 128 and images.dtype == numpy.uint8
    assert len({image.tobytes() for image in images}) == 128 and set(batch["labels"]) <= set(range(10))
    names = pickle.loads((folder / "batches.meta").read_bytes(), encoding="latin1")  # noqa: S301
    assert len(names["label_names"]) == 10


@pytest.mark.runtime
def test_stand_ins_compute_what_the_packages_do() -> None:
    import torch
    from validate_ddp.rehearse.child.validate_ddp_rehearsed.standins import flash_attn
    from validate_ddp.rehearse.child.validate_ddp_rehearsed.standins.apex.optimizers import FusedAdam
    from validate_ddp.rehearse.child.validate_ddp_rehearsed.standins.apex.parallel.LARC import LARC
    from validate_ddp.rehearse.child.validate_ddp_rehearsed.standins.xformers import ops

    q, k, v = torch.randn(3, 1, 5, 4, 8).unbind(0)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
    scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    assert torch.allclose(flash_attn.flash_attn_func(q, k, v, causal=True), expected, atol=1e-6)
    assert torch.allclose(ops.memory_efficient_attention(q, k, v, ops.LowerTriangularMask()), expected, atol=1e-6)
    bounds = torch.tensor([0, 2, 5])
    parts = flash_attn.flash_attn_varlen_func(q[0], k[0], v[0], bounds, bounds, 3, 3, causal=True)
    assert torch.allclose(parts[:2], expected[0, :2], atol=1e-6) and not torch.allclose(parts[2:], expected[0, 2:])
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    FusedAdam([weight], lr=0.1, weight_decay=0.5).step()
    assert torch.allclose(weight, torch.full((2,), 0.85))
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    larc = LARC(torch.optim.SGD([weight], lr=0.1, weight_decay=1.0), trust_coefficient=0.02)
    larc.step()  # 0.02 of |w| / (|g| + |w|) is a tenth of the learning rate, of g + w = 2
    assert torch.allclose(weight, torch.full((2,), 1 - 0.1 * 0.1 * 2)) and larc.param_groups[0]["weight_decay"] == 1.0


@pytest.mark.runtime
def test_what_stands_in_for_parts_of_flash_attention_computes_what_they_do() -> None:
    import torch
    from validate_ddp.rehearse.child.validate_ddp_rehearsed.standins.flash_attn import bert_padding
    from validate_ddp.rehearse.child.validate_ddp_rehearsed.standins.flash_attn.layers.rotary import apply_rotary_emb
    from validate_ddp.rehearse.child.validate_ddp_rehearsed.standins.flash_attn.ops.triton import layer_norm

    x, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    tokens, indices, begins, longest, _ = bert_padding.unpad_input(x, mask)
    assert (begins.tolist(), longest) == ([0, 2, 5], 3)
    assert torch.equal(bert_padding.pad_input(tokens, indices, 2, 4), x * mask[..., None])
    angle = torch.rand(5, 4)
    for interleaved in (False, True):
        query = torch.randn(2, 5, 3, 8)
        pairs = query.unflatten(-1, (4, 2)) if interleaved else query.unflatten(-1, (2, 4)).transpose(-1, -2)
        turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(5, 4), angle)[:, None]
        expected = torch.view_as_real(turned)
        expected = (expected if interleaved else expected.transpose(-1, -2)).flatten(-2)
        assert torch.allclose(apply_rotary_emb(query, angle.cos(), angle.sin(), interleaved), expected, atol=1e-6)
    residual, norm = torch.randn(2, 4, 3), torch.nn.LayerNorm(3, eps=1e-6)
    found, total = layer_norm.layer_norm_fn(x, norm.weight, norm.bias, residual=residual, prenorm=True)
    assert torch.allclose(found, norm(x + residual), atol=1e-5) and torch.equal(total, x + residual)
    assert torch.allclose(layer_norm.RMSNorm(3)(x), torch.nn.functional.rms_norm(x, (3,), eps=1e-5), atol=1e-6)


TASK = """
import os, subprocess
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

asked = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
os.environ["MASTER_ADDR"] = subprocess.check_output(asked, text=True).split()[0]
os.environ["MASTER_PORT"] = "29511"
dist.init_process_group("nccl", rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_NTASKS"]))
torch.manual_seed(0)
torch.cuda.set_device(-1)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
validation = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).cuda()
model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = iter(loader)
for step in range(len(loader)):
    x, y = next(batches)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
model.eval()
total = torch.zeros(1)
with torch.no_grad():
    for x, y in validation:
        total += nn.functional.mse_loss(model(x), y)
dist.all_reduce(total)
if dist.get_rank() == 0:
    torch.save(net.state_dict(), "last.pt")
dist.barrier()
net.load_state_dict(torch.load("last.pt", map_location="cpu"))
dist.destroy_process_group()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ports are held on Linux")
def test_ports_of_a_run_are_given_to_nobody_else_and_a_store_listens_on_them() -> None:
    with ExitStack() as stack:
        port = environment.free_ports(stack)[0]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((environment.HOST, port))
        with socket.create_server(("", port), reuse_port=False):  # which may reuse addresses, as torch's stores
            assert socket.create_connection((environment.HOST, port)).close() is None
    with socket.create_server((environment.HOST, port)):
        pass


@pytest.mark.runtime
@pytest.mark.slow
def test_tasks_of_slurm_start_and_are_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TASK)
    options = ["--launcher", "slurm", "--max-steps", "2", "--no-static", "--no-partition", "--report", "report.json"]
    command = [sys.executable, "-m", "validate_ddp", "run", *options, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["faults"] == [], done.stderr
    found = {each["code"] for each in report["findings"]}
    assert {"DDP102", "DDP321"} <= found, done.stdout + done.stderr
    assert report["facts"]["optimizer_steps"] == 4  # by `next`: not ended after two
    assert "--max-steps does not end the loop at" in done.stderr


LOOKED_AT = """
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
data = torch.utils.data.TensorDataset(torch.randn(64, 2))
loader = torch.utils.data.DataLoader(data, 4, sampler=torch.utils.data.DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = len(next(iter(loader))[0])
for (x,) in loader:
    model(x).sum().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""


@pytest.mark.runtime
@pytest.mark.slow
def test_a_batch_that_is_only_looked_at_is_no_loop(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOKED_AT)
    options = ["--max-steps", "2", "--no-static", "--no-partition", "--report", "report.json"]
    command = [sys.executable, "-m", "validate_ddp", "run", *options, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert json.loads((tmp_path / "report.json").read_text())["facts"]["optimizer_steps"] == 2
    assert "does not end the loop" not in done.stdout + done.stderr


ONE_FIRST = """
import torch
import torch.multiprocessing as mp

def work(rank, size):
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29511", rank=rank, world_size=size)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    mp.spawn(work, (1,), 1)
    mp.spawn(work, (3,), 3)
"""


@pytest.mark.runtime
@pytest.mark.slow
def test_a_run_ends_after_its_steps_however_many_ranks_the_script_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ONE_FIRST)
    options = ["--stop-after", "2", "--timeout", "60", "--no-static", "--no-partition", "--report", "report.json"]
    command = [sys.executable, "-m", "validate_ddp", "run", *options, "train.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["outcome"] == "stopped" and report["facts"]["optimizer_steps"] == 2


WITHOUT_A_LOADER = """
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(3, 2)).sum().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""


@pytest.mark.runtime
@pytest.mark.slow
def test_that_no_loader_is_there_to_be_ended_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITHOUT_A_LOADER)
    command = [sys.executable, "-m", "validate_ddp", "run", "--max-steps", "2", "--no-partition", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "--max-steps does not end this run, whose batches come from no loader" in done.stderr, done.stdout
