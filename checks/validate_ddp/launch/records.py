"""What is known of a launch file: words with what they can be, and facts, one class a kind.

Rules ask ``launch.facts(records.Start)``. Named tuples: what is here is data, and is made of text that was never run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from validate_ddp.findings import Span
from validate_ddp.source.text import Comment


class Word(NamedTuple):
    """A word of a command, an option's value, or what a variable is set to.

    texts: what it can be, as far as the file tells. open: it can be something else too, as a default that the
    environment overrides. names: the variables that it is made of. raw: as it is written. many: it may be any number
    of words, since nothing tells what stands in it. fallback: what is known is only what a failed command leaves.
    tail: of ``--name=$VALUE``, where the value stands.
    """

    raw: str
    texts: tuple[str, ...]
    open: bool
    span: Span
    names: tuple[str, ...] = ()
    many: bool = False
    fallback: bool = False
    tail: Span | None = None

    @property
    def only(self) -> str | None:
        """What it surely is; None where that is not known."""
        return self.texts[0] if len(self.texts) == 1 and not self.open else None

    @property
    def number(self) -> int | None:
        """The number that it surely is."""
        return as_number(self.only)


def as_number(text: str | None) -> int | None:
    """A count as people write it; None for anything else, and for one that no machine has."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


class Given(NamedTuple):
    """An option that is given: its name with underscores, without leading hyphens; None as value of a flag."""

    name: str
    value: Word | None
    word: Word


class Setting(NamedTuple):
    """A variable is set where programs of the file find it in their environment.

    how: "export" (for all that follows) or "prefix" (for one command). statement: where suppressions count.
    """

    name: str
    value: Word
    how: str
    span: Span
    statement: Span


class Srun(NamedTuple):
    """The ``srun`` that runs a command, with its options."""

    options: tuple[Given, ...]
    span: Span

    def option(self, *names: str) -> Word | None:
        return _last(self.options, names)


class Start(NamedTuple):
    """A command that starts training, or any program of Python.

    launcher: "torchrun", "launch" (``python -m torch.distributed.launch``), "accelerate", "deepspeed" or "python".
    options: the launcher's own. script: what it runs, None where that is not told. arguments: the script's.
    complete: no word before the script hides options. srun: what runs it on the nodes. settings: what the command finds
    in its environment, the last one first. head: the words that name the launcher. folder: the one that the script has
    gone to, as seen from where it was started; empty where it has not, or that is not known.
    """

    launcher: str
    head: tuple[Word, ...]
    options: tuple[Given, ...]
    script: Word | None
    arguments: tuple[Word, ...]
    complete: bool
    srun: Srun | None
    settings: tuple[Setting, ...]
    span: Span
    statement: Span
    folder: str = ""

    def option(self, *names: str) -> Word | None:
        """The value of the option that is given last under one of these names; None where none is."""
        return _last(self.options, names)

    def has(self, *names: str) -> Given | None:
        """The option given under one of these names, with or without a value."""
        return next((given for given in reversed(self.options) if given.name in names), None)

    def setting(self, name: str) -> Setting | None:
        """What sets a variable of its environment."""
        return next((setting for setting in self.settings if setting.name == name), None)


class Job(NamedTuple):
    """The directives of a batch script, ``#SBATCH``, or what a cluster's YAML asks for."""

    options: tuple[Given, ...]
    span: Span

    def option(self, *names: str) -> Word | None:
        return _last(self.options, names)


class Positional(NamedTuple):
    """An optional positional parameter is taken, and the rest handed on, whatever the first one was."""

    name: str
    position: int
    span: Span
    statement: Span
    handed: Span


class Misquoted(NamedTuple):
    """Quoting that ends a command early, or never: what is wrong, and what comes of it."""

    message: str
    span: Span
    statement: Span


class Unheard(NamedTuple):
    """A launch whose failure is lost.

    how: "pipe" (its last command decides), "ignored" (``|| true``), "exit" (``exit 0`` at the end), "said" (``echo``
    is), "wait" (for nobody in particular), "background" (nothing waits), "call" (of Python, whose result is dropped).
    by: the text of that.
    """

    start: Start
    how: str
    by: str
    span: Span


class Config(NamedTuple):
    """Accelerate's configuration."""

    options: tuple[Given, ...]
    span: Span

    def option(self, *names: str) -> Word | None:
        return _last(self.options, names)


class DeepSpeed(NamedTuple):
    """DeepSpeed's own configuration. options: named as in the file, inner ones behind a dot."""

    options: tuple[Given, ...]
    span: Span

    def option(self, *names: str) -> Word | None:
        return _last(self.options, names)


def _last(options: tuple[Given, ...], names: tuple[str, ...]) -> Word | None:
    return next((given.value for given in reversed(options) if given.name in names and given.value is not None), None)


Record = Start | Setting | Job | Positional | Misquoted | Unheard | Config | DeepSpeed
R = TypeVar("R", Start, Setting, Job, Positional, Misquoted, Unheard, Config, DeepSpeed)

KINDS: tuple[type[Record], ...] = (Start, Setting, Job, Positional, Misquoted, Unheard, Config, DeepSpeed)
BY_NAME: dict[str, tuple[type[Record], ...]] = {
    "records.Record": KINDS,
    **{f"records.{kind.__name__}": (kind,) for kind in KINDS},
}
"""The kinds of facts by what a rule's ``LAUNCH_TRIGGER`` calls them; ``Record`` is any."""


class Launch:
    """A launch file as rules see it. path: as findings name it. used: the variables that it reads itself."""

    __slots__ = ("comments", "path", "records", "text", "used")

    def __init__(
        self, path: str, text: str, records: list[Record], comments: list[Comment], used: frozenset[str]
    ) -> None:
        self.path = path
        self.text = text
        self.records = records
        self.comments = comments
        self.used = used

    def facts(self, kind: type[R]) -> Iterator[R]:
        """The facts of a kind, in the order of the file."""
        for record in self.records:
            if isinstance(record, kind):
                yield record

    @property
    def job(self) -> Job | None:
        """The job that the file asks for; None where it asks for several, as in scripts that it writes."""
        jobs = list(self.facts(Job))
        return jobs[0] if len(jobs) == 1 else None
