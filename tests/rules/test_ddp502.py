"""DDP502 is an error, and its fix safe, only where path, conditions and object are known to be those of every rank."""

from __future__ import annotations

from typing import Any

import pytest

HEAD = """
import time
import uuid
from datetime import datetime
from pathlib import Path


parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.add_argument("--save-every", type=int)
args = parser.parse_args()
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
loader = DataLoader(range(8), sampler=DistributedSampler(range(8)))
"""
MANAGER = """
class Groups:
    def __init__(self, tp, dp):
        self.grid = torch.arange(dist.get_world_size()).view(dp, tp)
        self.dp_rank, self.tp_rank = (self.grid == dist.get_rank()).nonzero().flatten().tolist()
        self.tp_group = dist.new_subgroups_by_enumeration([row.tolist() for row in self.grid])[0]

groups = Groups(2, 2)

class Checkpoints:
    def __init__(self):
        self.dp_rank, self.tp_rank = groups.dp_rank, groups.tp_rank

    def path(self, folder):
        return os.path.join(folder, f"weights_{self.tp_rank}.pt")

    def save(self, net, folder):
        path = self.path(folder)
        if self.dp_rank == 0:
            torch.save(net.state_dict(), path)

Checkpoints().save(torch.nn.Linear(2, 2), args.out)
"""
STATE = "model.module.state_dict()"


def _save(path: str, before: str = "") -> str:
    return f"{before}\ntorch.save({STATE}, {path})\n"


ONE_PATH = {
    "a constant": _save('"model.pt"'),
    "an option": _save('os.path.join(args.out, "model.pt")'),
    "an option as a path": _save('Path(args.out) / "last" / "model.pt"'),
    "an option put in": _save('"{}/model.pt".format(args.out)'),
    "an option, if it is given": _save("args.out", "if args.out is not None:\n    pass"),
    "made absolute": _save('os.path.abspath(os.path.expanduser(args.out)) + "/model.pt"'),
    "a configuration": _save('config["out"]["model"]', 'config = json.load(open("config.json"))'),
    "an epoch": f"for epoch in range(3):\n    torch.save({STATE}, f'{{args.out}}/model_{{epoch}}.pt')\n",
    "a counted step": (
        "step = 0\nfor batch in loader:\n    step += 1\n    if step % args.save_every == 0:\n"
        f"        torch.save({STATE}, f'model_{{step:06d}}.pt')\n"
    ),
    "the number of a batch": (
        "for number, batch in enumerate(loader):\n    if (number + 1) % args.save_every == 0:\n"
        f"        torch.save({STATE}, f'model_{{number}}.pt')\n"
    ),
    "a main that hydra fills": (
        "import hydra\n@hydra.main(config_path=None)\ndef main(cfg):\n    if cfg.keep:\n"
        f"        torch.save({STATE}, os.path.join(cfg.out, 'model.pt'))\nmain()\n"
    ),
    "a variable with a default": _save("os.environ.get('OUT', 'out')"),
    "what fire fills in": f"import fire\ndef main(out='out'):\n    torch.save({STATE}, out)\nfire.Fire(main)\n",
    "a class filled from a file": (
        "class Job:\n    out: str = 'out'\njob = Job(**json.load(open('a.json')))\n" + _save("job.out")
    ),
    "a step that was loaded": (
        'step = torch.load("model.pt", map_location="cpu")["step"]\nfor batch in loader:\n    step += 1\n'
        f"torch.save({STATE}, f'model_{{step}}.pt')\n"
    ),
}


@pytest.mark.parametrize("case", ONE_PATH)
def test_a_path_that_is_equal_on_every_rank_is_an_error(case: str, lint: Any) -> None:
    (finding,) = lint.body(HEAD + ONE_PATH[case]).of("DDP502")
    assert finding.severity == "error" and "to the same path" in finding.message, finding.message


RANKS_OWN = {
    "a rank of a process group's manager": MANAGER,
    "or": _save("f'{rank}.pt'", 'rank = int(os.environ.get("RANK") or dist.get_rank())'),
    "the caller's": (
        "def rank():\n    return int(os.environ.get('RANK') or dist.get_rank())\n"
        "def save(folder, name):\n    path = Path(folder) / name\n"
        f"    torch.save({STATE}, path)\nsave(args.out, f'train/rank{{rank()}}.pt')\n"
    ),
    "put into a name": _save("NAME.format(dp_rank)", "NAME = 's_{}.pt'\nimport mine\ndp_rank = mine.groups().dp_rank"),
    "of a group": _save("f'{dist.get_rank(group)}.pt'", "from mine import group"),
    "of a group's object": _save("f'{group.rank()}.pt'", "group = dist.new_group([0, 1])"),
    "of a mesh": (
        'from torch.distributed.device_mesh import init_device_mesh\nmesh = init_device_mesh("cpu", (2, 2), '
        'mesh_dim_names=("dp", "tp"))\n' + _save("""f'{mesh["tp"].get_local_rank()}.pt'""")
    ),
    "of the engine's parallelism": _save("f'{engine.get_data_parallel_rank()}.pt'", "from mine import engine"),
    "a moment": _save("f'{datetime.now().timestamp()}.pt'"),
    "a uuid of another library": _save("f'{args.out}/{uuid4()}.pt'", "from mine.names import uuid4"),
    "where the share begins": (
        "rank, size = dist.get_rank(), 4\nstart = rank * size\nfor number in range(start, start + size):\n"
        "    with open(f'{args.out}/{number}.txt', 'w') as file:\n        file.write('x')\n"
    ),
    "an item of the share": (
        "rank, names = dist.get_rank(), json.load(open('names.json'))\nfor number in range(rank * 4, rank * 4 + 4):\n"
        "    with open(f\"{args.out}/{names[number]['id']}.txt\", 'w') as file:\n        file.write('x')\n"
    ),
    "a slice by rank": (
        "names = sorted(os.listdir(args.out))[dist.get_rank()::2]\nfor name in names:\n"
        "    torch.save({'name': name}, name + '.pt')\n"
    ),
    "an error met": (
        "try:\n    model(torch.ones(2)).sum().backward()\nexcept Exception:\n"
        "    torch.save({'loss': 1}, 'bad.pt')\n    raise"
    ),
    "a flag that is the main process's": _save(
        "'model.pt'", "args.keep &= dist.get_rank() == 0\nif not args.keep:\n    sys.exit()"
    ),
    "put into a configuration": (
        "import hydra\n@hydra.main(config_path=None)\ndef main(cfg):\n"
        "    cfg.run.out = os.path.join(cfg.run.out, str(dist.get_rank()))\n"
        f"    torch.save({STATE}, os.path.join(cfg.run.out, 'model.pt'))\nmain()\n"
    ),
    "an item put into a configuration": (
        "from omegaconf import DictConfig\ndef main(cfg: DictConfig):\n    cfg['out'] = f'{dist.get_rank()}'\n"
        f"    torch.save({STATE}, os.path.join(cfg['out'], 'model.pt'))\nimport mine\nmain(mine.configuration())\n"
    ),
    "settings read for the rank": (
        "settings = json.loads(Path(f'{dist.get_rank()}.json').read_text())\n" + _save("settings['out']")
    ),
    "settings of the rank": _save("settings['out']", "settings = json.load(open(f'{dist.get_rank()}.json'))"),
    "a guard of a group": _save(
        "'model.pt'", "from mine import engine\nif engine.get_data_parallel_rank() != 0:\n    sys.exit()"
    ),
}


@pytest.mark.parametrize("case", RANKS_OWN)
def test_a_save_of_the_ranks_own_is_left_alone(case: str, lint: Any) -> None:
    assert lint.body(HEAD + RANKS_OWN[case]).of("DDP502") == []


UNSURE = {
    "the time": _save("f'{time.time()}.pt'"),
    "the second": _save("f'{int(datetime.now().timestamp())}.pt'"),
    "the day": _save("datetime.now().strftime('%d.pt')"),
    "a parameter of unknown origin": _save("path", "from mine import path"),
    "a variable of the environment": _save("os.environ['OUT']"),
    "a variable that a launcher may set": _save("os.environ.get('FLUX_TASK_ID', '0')"),
    "a field given by position": ("class Job:\n    out = 'out'\njob = Job(f'{dist.get_rank()}')\n" + _save("job.out")),
    "a field set by a name out of sight": (
        "class Job:\n    out: str = 'out'\njob = Job()\nsetattr(job, sys.argv[1], str(dist.get_rank()))\n"
        + _save("job.out")
    ),
    "a line of data": (
        "for line in open(args.out):\n    job = json.loads(line)\n" + "    torch.save({'model': 1}, job['out'])\n"
    ),
    "what lies on disk": _save("os.listdir(args.out)[0]"),
    "a path on each side": _save("path", "path = 'a.pt' if dist.get_rank() == 0 else 'b.pt'"),
    "a loss": (
        "for batch in loader:\n    loss = model(batch).sum()\n    if loss.isnan():\n"
        f"        torch.save({STATE}, 'model.pt')\n"
    ),
    "a way out ahead": (
        "for batch in loader:\n    loss = model(batch).sum()\n    if loss < 3:\n        continue\n"
        f"    torch.save({STATE}, 'model.pt')\n"
    ),
    "an error of one kind": (
        f"try:\n    model(torch.ones(2)).sum().backward()\nexcept ValueError:\n    torch.save({STATE}, 'model.pt')\n"
    ),
    "a setting called after a rank": _save("'model.pt'").replace("torch.save", "if args.on_this_rank:\n    torch.save"),
    "a setting of a rank in the path": _save("f'{args.out}/{args.rank_name}.pt'"),
    "an unknown flag": _save("'model.pt'", "")
    .replace("torch.save", "if mine.wanted():\n    torch.save")
    .replace("\nif", "import mine\nif", 1),
    "sharded": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "whole = FSDP(torch.nn.Linear(2, 2))\nstate = whole.state_dict()\ntorch.save(state, 'model.pt')\n",
    "sharded in place": "from torch.distributed.fsdp import fully_shard\n"
    "net = torch.nn.Linear(2, 2)\nfully_shard(net)\nstate = net.state_dict()\ntorch.save(state, 'model.pt')\n",
    "parallel layers": "from torch.distributed.tensor.parallel import parallelize_module\nfrom mine import mesh, plan\n"
    "net = parallelize_module(torch.nn.Linear(2, 2), mesh, plan)\ntorch.save(net.state_dict(), 'model.pt')\n",
    "stages": "from torch.distributed.pipelining import PipelineStage\nfrom mine import stage_module\n"
    "stage = PipelineStage(stage_module, 0, 2)\ntorch.save(stage_module.state_dict(), 'model.pt')\n",
    "parts of groups": MANAGER.replace("weights_{self.tp_rank}", "weights").replace("if self.dp_rank == 0", "if True"),
    "DeepSpeed": "import deepspeed\nengine, _, _, _ = deepspeed.initialize(model=torch.nn.Linear(2, 2))\n"
    "state = engine.module.state_dict()\ntorch.save({'model': state}, 'model.pt')\n",
}


@pytest.mark.parametrize("case", UNSURE)
def test_what_is_not_known_is_no_error_and_has_no_safe_fix(case: str, lint: Any) -> None:
    (finding,) = lint.body(HEAD + UNSURE[case]).of("DDP502")
    assert finding.severity == "warning" and not (finding.fix and finding.fix.safe), finding


PARTS = ("sharded", "sharded in place", "parallel layers", "stages", "parts of groups", "DeepSpeed")


@pytest.mark.parametrize("case", PARTS)
def test_where_each_rank_may_hold_a_part_no_guard_is_offered(case: str, lint: Any) -> None:
    (finding,) = lint.body(HEAD + UNSURE[case]).of("DDP502")
    assert finding.fix is None and "guard it" not in finding.message, finding


def test_a_replica_is_whole_in_a_program_that_also_makes_groups(lint: Any) -> None:
    (finding,) = lint.body(HEAD + _save("'model.pt'", "nodes = dist.new_group([0, 1])")).of("DDP502")
    assert finding.severity == "error" and finding.fix is not None and finding.fix.safe


def test_a_batch_is_no_checkpoint(lint: Any) -> None:
    (finding,) = lint.body(
        HEAD + "for batch in loader:\n    output = model(batch)\n    torch.save(output, 'batch.pt')\n"
    ).of("DDP502")
    assert finding.severity == "warning" and "this file" in finding.message


SAVER = """
def save(state, path):
    torch.save(state, path)

save(model.module.state_dict(), "model.pt")
OTHER
"""


def test_a_guard_in_a_function_is_safe_where_all_its_callers_write_one_path(lint: Any) -> None:
    (finding,) = lint.body(HEAD + SAVER.replace("OTHER", "save(model.module.state_dict(), 'last.pt')")).of("DDP502")
    assert finding.severity == "error" and finding.fix is not None and finding.fix.safe


@pytest.mark.parametrize(
    "other",
    [
        "save(torch.get_rng_state(), f'rng_{dist.get_rank()}.pt')",
        "if dist.get_rank() == 1:\n    save({'seen': 1}, 'second.pt')",
    ],
)
def test_no_guard_is_put_round_a_save_that_another_caller_makes_the_ranks_own(other: str, lint: Any) -> None:
    (finding,) = lint.body(HEAD + SAVER.replace("OTHER", other)).of("DDP502")
    assert finding.severity == "error" and finding.fix is None


def test_a_guard_is_not_safe_where_calls_were_left_unwalked(lint: Any) -> None:
    long = SAVER.replace("    torch.save", "    print(1)\n    print(2)\n    print(3)\n    print(4)\n    torch.save")
    others = "\n".join(f"save(model.module.state_dict(), 'model{number}.pt')" for number in range(8))
    (finding,) = lint.body(HEAD + long.replace("OTHER", others)).of("DDP502")
    assert finding.fix is not None and not finding.fix.safe


NAMED = """
def named(name):
    print(1)
    print(2)
    print(3)
    print(4)
    return os.path.join("out", name + ".pt")

"""


def test_a_path_made_by_a_function_that_is_walked_no_more_keeps_its_rank(lint: Any) -> None:
    calls = "".join(f"print(named('{letter}'))\n" for letter in "abcdefg")
    assert lint.body(HEAD + NAMED + calls + _save("named(f'{dist.get_rank()}')")).of("DDP502") == []
    (finding,) = lint.body(HEAD + NAMED + calls + _save("named(time.ctime())")).of("DDP502")
    assert finding.severity == "warning"


def test_lines_that_each_rank_appends_are_not_left_to_one(lint: Any) -> None:
    (finding,) = lint.body(HEAD + "with open('log.txt', 'a') as file:\n    file.write('x')\n").of("DDP502")
    assert finding.fix is None and finding.severity == "info" and "guard" not in finding.message


@pytest.mark.parametrize(("source", "count"), [("f'trace_{dist.get_rank()}.json'", 0), ("'trace.json'", 1)])
def test_a_copy_of_the_ranks_own_file_keeps_its_name_in_the_folder(source: str, count: int, lint: Any) -> None:
    found = lint.body(HEAD + f"import shutil\nshutil.copy({source}, args.out)\n").of("DDP502")
    assert len(found) == count


@pytest.mark.parametrize(("ranks", "codes"), [(1, set()), (2, {"DDP502"})])
def test_no_rule_speaks_where_the_only_group_has_one_rank(ranks: int, codes: set[str], lint: Any) -> None:
    start = f'dist.init_process_group("gloo", rank=0, world_size={ranks})\nmodel = torch.nn.Linear(2, 2)\n'
    train = "for epoch in range(3):\n    model(torch.ones(2)).sum().backward()\n"
    assert lint.body(f"{start}{train}torch.save(model.state_dict(), 'model.pt')\n").codes == codes


ONE_PROCESS = {
    "a world of one": ("", 'dist.init_process_group("gloo", rank=0, world_size=1)'),
    "a world of one in the environment": (
        'os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"',
        'dist.init_process_group("gloo")',
    ),
    "a tool with a world of one for itself": (
        'os.environ.setdefault("RANK", "0")\nos.environ.setdefault("WORLD_SIZE", "1")',
        'dist.init_process_group("gloo")',
    ),
    "a clean-up that others need": ("", 2 * "if dist.is_initialized():\n    dist.destroy_process_group()\n"),
    "one process spawned": (
        "",
        "import torch.multiprocessing as mp\ndef work(rank, size):\n    dist.init_process_group('gloo', rank=rank, "
        "world_size=size)\n    torch.save(torch.nn.Linear(2, 2).state_dict(), 'model.pt')\n"
        "def launch(tp, dp):\n    world_size = tp * dp\n    mp.spawn(work, args=(world_size,), nprocs=world_size)\n"
        "launch(1, 1)",
    ),
}


@pytest.mark.parametrize("case", ONE_PROCESS)
def test_one_process_is_no_several_ranks(case: str, lint: Any) -> None:
    before, start = ONE_PROCESS[case]
    save = "\ntorch.save(torch.nn.Linear(2, 2).state_dict(), 'model.pt')\n"
    assert lint.body(f"{before}\n{start}{save}").of("DDP502") == []


SEVERAL = {
    "a world of one in some runs": (
        'import sys\nif len(sys.argv) > 1:\n    os.environ["WORLD_SIZE"] = "1"\ndist.init_process_group("gloo")'
    ),
    "two processes spawned": ONE_PROCESS["one process spawned"][1].replace("launch(1, 1)", "launch(2, 1)"),
    "a trainer with a world of one for itself": (
        'os.environ.setdefault("WORLD_SIZE", "1")\ndist.init_process_group("gloo")\n'
        "torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()"
    ),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_what_may_be_several_ranks_is_reported(case: str, lint: Any) -> None:
    spawned = "mp.spawn" in SEVERAL[case]
    save = "" if spawned else "\ntorch.save(torch.nn.Linear(2, 2).state_dict(), 'model.pt')\n"
    assert len(lint.body(SEVERAL[case] + save).of("DDP502")) == 1


TRAINED = """
from accelerate import Accelerator, notebook_launcher
import torch

def train():
    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    accelerator.wait_for_everyone()
    torch.save({"model": accelerator.unwrap_model(model).state_dict()}, "model.pt")
"""
NOTEBOOKS = {
    "train()": 0,
    "notebook_launcher(train, (), num_processes=2)": 1,
    "notebook_launcher(train, (), num_processes=1)": 0,
}


@pytest.mark.parametrize("call", NOTEBOOKS)
def test_a_notebook_is_one_process_but_for_what_it_launches(call: str, lint: Any) -> None:
    lint.write({"train.ipynb": lint.notebook(TRAINED, call)})
    assert len(lint.run("train.ipynb").of("DDP502")) == NOTEBOOKS[call]


@pytest.mark.parametrize("drawn_by", ["main", "worker", "the module"])
def test_what_was_drawn_before_the_ranks_were_started_is_one_name(lint: Any, drawn_by: str) -> None:
    draw = {name: f"{line}\n" for name, line in [(drawn_by, "path = str(uuid.uuid4())")]}
    script = f"""
import uuid
{draw.get("the module", "path = None")}
def worker(rank, path_):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    {draw.get("worker", "path = path_") if drawn_by != "the module" else ""}
    torch.save({{"model": torch.nn.Linear(2, 2).state_dict()}}, path)
    dist.destroy_process_group()

def main():
    {draw.get("main", "path = ''") if drawn_by != "the module" else ""}
    mp.spawn(worker, args=({"path" if drawn_by == "main" else "None"},), nprocs=2)

if __name__ == "__main__":
    main()
"""
    assert ("DDP502" in lint.body(script).codes) is (drawn_by == "main")


@pytest.mark.parametrize(
    "opened, severity",
    [
        ('logging.FileHandler("train.log")', "info"),
        ('logging.FileHandler("train.log", "w")', "warning"),
        ('logging.basicConfig(filename="train.log")', "info"),
        ('logging.basicConfig(filename="train.log", filemode="w")', "warning"),
    ],
)
def test_a_log_is_appended_to_unless_it_says_otherwise(lint: Any, opened: str, severity: str) -> None:
    start = 'import logging\ndist.init_process_group("gloo")\n'
    assert lint.body(f"{start}{opened}\n", "DDP502").severities == [severity]
