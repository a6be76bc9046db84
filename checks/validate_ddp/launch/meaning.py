"""What the options of launchers mean: nodes, processes, where the ranks meet, by whatever name each has for it."""

from __future__ import annotations

import re
from typing import NamedTuple

from validate_ddp.findings import Span
from validate_ddp.launch.records import Config, Job, Launch, Srun, Start, Word, as_number

LAUNCHERS = ("torchrun", "launch", "accelerate", "deepspeed")
NODES = {"torchrun": "nnodes", "launch": "nnodes", "accelerate": "num_machines", "deepspeed": "num_nodes"}
PROCESSES = {
    "torchrun": "nproc_per_node",
    "launch": "nproc_per_node",
    "accelerate": "num_processes",
    "deepspeed": "num_gpus",
}
_OF_JOB = {
    "SLURM_NNODES": "nodes",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_NTASKS_PER_NODE": "ntasks_per_node",
    "SLURM_GPUS_PER_NODE": "gpus_per_node",
}
"""What Slurm's variables hold: what the job asks for by an option."""
_LOCAL = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|::1|\[::1\])$")
_GPUS = re.compile(r"(?:gpu(?::[\w.-]+)?:)?(\d+)$")


class Nodes(NamedTuple):
    """How many nodes a command waits for: at least, and at most; and the word that says so."""

    least: int
    most: int
    word: Word


class Meeting(NamedTuple):
    """Where the ranks meet: the word that says so, with the host and the port in it; None where not given."""

    host: Word | None
    port: Word | None


def nodes(start: Start, job: Job | None) -> Nodes | None:
    """The nodes that a command surely is for; None where nothing tells."""
    if start.launcher not in NODES:
        return None
    word = start.option(NODES[start.launcher])
    if word is None:
        return None
    text = _resolved(word, job)
    if text is None:
        return None
    least, colon, most = text.partition(":")
    low, high = as_number(least), as_number(most if colon else least)
    return Nodes(low, high, word) if low is not None and high is not None else None


def _resolved(word: Word, job: Job | None) -> str | None:
    """What a word surely is; a variable of Slurm's is what the job asks for."""
    if word.only is not None:
        return word.only
    if not word.texts and len(word.names) == 1 and word.names[0] in _OF_JOB and job is not None:
        asked = job.option(_OF_JOB[word.names[0]])
        return asked.only if asked is not None and asked.number is not None else None
    return None


def processes(start: Start, job: Job | None) -> tuple[int, Word] | None:
    """The processes on each node, and the word that says so; None where nothing surely tells."""
    if start.launcher not in PROCESSES:
        return None
    word = start.option(PROCESSES[start.launcher])
    count = as_number(_resolved(word, job)) if word is not None else None
    if word is None or count is None:
        return None
    if start.launcher != "accelerate":
        return count, word
    machines = start.option("num_machines")
    if machines is None:
        return (count, word) if start.has("config_file") is None else None
    if not machines.number:
        return None
    return count // machines.number, word


def meeting(start: Start) -> Meeting:
    """Where the command says that its ranks meet."""
    if start.launcher == "accelerate":
        return Meeting(start.option("main_process_ip"), start.option("main_process_port"))
    endpoint = start.option("rdzv_endpoint")
    if endpoint is None:
        return Meeting(start.option("master_addr"), start.option("master_port"))
    texts = [text.rpartition(":") if ":" in text else (text, "", "") for text in endpoint.texts]
    host = endpoint._replace(texts=tuple(dict.fromkeys(each[0] for each in texts)))
    ports = tuple(dict.fromkeys(each[2] for each in texts))
    port = endpoint._replace(texts=ports) if any(ports) else None
    if not endpoint.texts:
        port = written_port(endpoint)
    return Meeting(host, port)


def written_port(endpoint: Word) -> Word | None:
    """The port of ``$HOST:29500``, which is known where the host is not."""
    found = re.search(r":(\d+)[\"']?$", endpoint.raw)
    return endpoint._replace(texts=(found.group(1),), open=False, raw=found.group(1)) if found else None


def is_local(text: str) -> bool:
    """Whether a host means the machine itself, on every machine."""
    return _LOCAL.match(text.strip("\"'")) is not None


def tasks_per_node(srun: Srun | None, job: Job | None) -> tuple[int, Word] | None:
    """The tasks that Slurm starts on each node, and the word that says so; None where nothing surely tells.

    Beside ``--ntasks``, ``--ntasks-per-node`` is only the most that a node gets, says Slurm's manual.
    """
    asked = job.option("ntasks") if job is not None else None
    count = job.option("nodes") if job is not None else None
    if srun is not None:
        tasks, per_node = srun.option("ntasks"), srun.option("ntasks_per_node")
        if tasks is not None:
            return _shared(tasks, srun.option("nodes") or count)
        if per_node is not None:  # `srun` finds the job's `--ntasks` in its environment
            return (per_node.number, per_node) if per_node.number and asked is None else None
        if srun.option("nodes") is not None and job is None:
            return None
    if job is None:
        return None
    if asked is not None:
        return _shared(asked, count)
    per_node = job.option("ntasks_per_node", "tasks_per_node")
    return (per_node.number, per_node) if per_node is not None and per_node.number else None


def _shared(tasks: Word, count: Word | None) -> tuple[int, Word] | None:
    if tasks.number is None:
        return None
    if tasks.number == 1:
        return 1, tasks
    if count is None or not count.number:
        return None
    return -(-tasks.number // count.number), tasks


def gpus_per_node(job: Job) -> tuple[int, Word] | None:
    """The GPUs that a job asks for on each node."""
    word = job.option("gpus_per_node", "gres")
    if word is not None:
        return gpus_asked(job, "gres" if word is job.option("gres") else "gpus_per_node")
    count = job.option("nodes")
    return gpus_asked(job, "gpus") if count is not None and count.number == 1 else None


def gpus_asked(job: Job, name: str) -> tuple[int, Word] | None:
    """The number of GPUs that one option of a job says; ``--gres`` is about other things too."""
    word = job.option(name)
    found = _GPUS.match(word.only or "") if word is not None else None
    if word is None or found is None or (name == "gres" and not (word.only or "").startswith("gpu")):
        return None
    return int(found.group(1)), word


def visible_devices(start: Start) -> tuple[int, Word] | None:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves to a command."""
    setting = start.setting("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return None
    return listed_devices(setting.value)


def listed_devices(word: Word) -> tuple[int, Word] | None:
    """How many devices a list of their numbers has; None for no list, and for none of them."""
    parts = [part.strip() for part in (word.only or "").split(",") if part.strip()]
    if not parts or not all(part.isdigit() for part in parts):
        return None
    return len(set(parts)), word


def ports(launch: Launch) -> list[tuple[Word, Span]]:
    """The words that name a port where ranks meet, each once, with the command or setting that each is of."""
    found: dict[Span, tuple[Word, Span]] = {}
    for start in launch.facts(Start):
        port, setting = meeting(start).port, start.setting("MASTER_PORT")
        if port is not None:
            found.setdefault(port.span, (port, start.statement))
        if setting is not None:
            found.setdefault(setting.value.span, (setting.value, setting.statement))
    for config in launch.facts(Config):
        word = config.option("main_process_port")
        if word is not None:
            found.setdefault(word.span, (word, word.span))
    return list(found.values())


def ranks(start: Start, job: Job | None) -> int | None:
    """How many ranks a command surely starts on all of its nodes together; None where nothing surely tells."""
    each, of_nodes = processes(start, job), nodes(start, job)
    if each is None or not start.complete:
        return None
    if of_nodes is not None:
        return each[0] * of_nodes.least if of_nodes.least == of_nodes.most else None
    others = ("include", "hostfile", "exclude", NODES[start.launcher])
    is_one = start.srun is None and start.has(*others) is None and start.setting("PET_NNODES") is None
    return each[0] if is_one else None


def is_of_several(start: Start, job: Job | None) -> bool:
    """Whether a command starts several ranks of its script, as far as it tells: torch's launchers start one by default,
    and the others as many as there are GPUs."""
    if start.launcher not in LAUNCHERS or ranks(start, job) == 1:
        return False
    each, of_nodes = processes(start, job), nodes(start, job)
    if of_nodes is not None and of_nodes.most > 1:
        return True
    if start.launcher in ("torchrun", "launch"):
        return start.option(PROCESSES[start.launcher]) is not None and (each is None or each[0] > 1)
    shown = visible_devices(start)
    return (each is None or each[0] > 1) and (shown is None or shown[0] > 1)
