"""Which command starts training: wrappers (srun, env, nohup, containers) taken off, launchers and options read."""

from __future__ import annotations

from validate_ddp.findings import Span
from validate_ddp.launch import options
from validate_ddp.launch.records import Setting, Srun, Start, Word

_PYTHON = ("python", "pypy")
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_RUNNERS = {"torchrun": "torchrun", "deepspeed": "deepspeed", "accelerate-launch": "accelerate"}
_WRAPPERS = frozenset(
    "srun mpirun mpiexec env nohup time exec sudo nice ionice stdbuf numactl taskset timeout xvfb-run unbuffer setsid"
    " conda mamba micromamba uv poetry pipenv pdm hatch rye pixi singularity apptainer docker podman nsys ncu strace"
    " command builtin caffeinate chrt gdb catchsegv dlprof perf sg prlimit systemd-run run_with_lock kernprof"
    " torchx rocprof uvx".split()
)
"""Commands that run the command behind their own options."""
_SPEAKERS = frozenset("echo printf cat grep sed awk which pip pip3 ls cp mv rm test [ alias man type info".split())
SHELLS = frozenset("bash sh zsh dash ksh".split())


class Context:
    """What a command finds around it. srun: what runs it already, as a string given to ``bash -c``."""

    __slots__ = ("settings", "srun")

    def __init__(self, settings: tuple[Setting, ...], srun: Srun | None = None) -> None:
        self.settings = settings
        self.srun = srun


def start(words: list[Word], prefix: tuple[Setting, ...], context: Context, statement: Span) -> Start | None:
    """The command as one that starts training or Python; None for any other."""
    at = launcher_at(words)
    if at is None:
        return None
    srun = sruns(words[:at]) or context.srun
    settings = (*reversed(prefix), *env_settings(words[:at]), *context.settings)
    name = base(words[at])
    if name in _RUNNERS:
        return _start(_RUNNERS[name], words, at, at + 1, srun, settings, statement)
    if name == "accelerate":
        return _start("accelerate", words, at, at + 2, srun, settings, statement)
    interpreter = options.read(words[at + 1 :], "python")
    module = at + 1 + interpreter.at
    if module < len(words) and _text(words[module]).startswith("-m"):
        joined = _text(words[module])[2:]
        named = joined or (_text(words[module + 1]) if module + 1 < len(words) else "")
        after = module + (1 if joined else 2)
        if named in _MODULES:
            return _start(_MODULES[named], words, at, after, srun, settings, statement)
        if named == "accelerate" and after < len(words) and _text(words[after]) == "launch":
            return _start("accelerate", words, at, after + 1, srun, settings, statement)
        return _python(words, at, after - 1, srun, settings, statement) if named else None
    if module >= len(words) or _text(words[module]).startswith("-"):
        return None
    return _python(words, at, module, srun, settings, statement)


def launcher_at(words: list[Word]) -> int | None:
    """Where the launcher stands, behind the wrappers; None where the command is something else."""
    if not words:
        return None
    first = base(words[0])
    if is_launcher(words, 0):
        return 0
    # `$PREFIX torchrun ...`: what stands in it is not known, and what it runs is.
    if first in _SPEAKERS or not (first in _WRAPPERS or words[0].only is None):
        return None
    if words[0].only is None and first not in _WRAPPERS:
        follows = len(words) > 1 and (is_launcher(words, 1) or base(words[1]) in _WRAPPERS)
        if not follows:
            return 0 if len(words) > 2 and _text(words[1]) == "-m" and _text(words[2]) in _MODULES else None
    for index in range(1, len(words)):
        if is_launcher(words, index):
            return index
        if base(words[index]) in SHELLS or base(words[index]) in _SPEAKERS:
            return None
    return None


def is_launcher(words: list[Word], index: int) -> bool:
    """Whether the word there starts Python, by whatever launcher."""
    name = base(words[index])
    if name in _RUNNERS or (name.startswith(_PYTHON) and not _text(words[index]).endswith(".py")):
        return name in _RUNNERS or name.rstrip("0123456789.") in _PYTHON
    return name == "accelerate" and index + 1 < len(words) and _text(words[index + 1]) == "launch"


def sruns(words: list[Word]) -> Srun | None:
    """The ``srun`` among the wrappers of a command."""
    for index, word in enumerate(words):
        if base(word) == "srun":
            found = options.read(words[index + 1 :], "srun")
            return Srun(found.given, word.span)
    return None


def env_settings(words: list[Word]) -> list[Setting]:
    """``A=1`` of ``env A=1 torchrun``, the last one first."""
    if not any(base(word) == "env" for word in words):
        return []
    found = []
    for word in reversed(words):
        name, equals, _ = word.raw.partition("=")
        if equals and name.isidentifier():
            found.append(Setting(name, options.after_equals(word), "prefix", word.span, word.span))
    return found


def _start(
    launcher: str,
    words: list[Word],
    at: int,
    after: int,
    srun: Srun | None,
    settings: tuple[Setting, ...],
    statement: Span,
) -> Start:
    found = options.read(words[after:], launcher)
    script = after + found.at
    return Start(
        launcher=launcher,
        head=tuple(words[at:after]),
        options=found.given,
        script=words[script] if script < len(words) else None,
        arguments=tuple(words[script + 1 :]),
        complete=found.complete,
        srun=srun,
        settings=settings,
        span=words[at].span,
        statement=statement,
    )


def _python(
    words: list[Word], at: int, script: int, srun: Srun | None, settings: tuple[Setting, ...], statement: Span
) -> Start:
    head, rest = tuple(words[at:script]), tuple(words[script + 1 :])
    return Start("python", head, (), words[script], rest, True, srun, settings, words[at].span, statement)


def base(word: Word) -> str:
    """The last part of a word's path: what a command is called."""
    return _text(word).rpartition("/")[2].removesuffix(".exe")


def _text(word: Word) -> str:
    """What a word is, or by default is; empty where nothing is known."""
    return word.texts[0] if len(set(word.texts)) == 1 else ""
