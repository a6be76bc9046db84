"""The options of launchers: which of them take a value, and which are other names of one."""

from __future__ import annotations

from typing import NamedTuple

from validate_ddp.launch.records import Given, Word

FLAGS: dict[str, frozenset[str]] = {
    "torchrun": frozenset("standalone m module no_python run_path virtual_local_rank h help".split()),
    "launch": frozenset("standalone m module no_python run_path virtual_local_rank use_env h help".split()),
    "accelerate": frozenset(
        "cpu use_cpu multi_gpu tpu ipex use_xpu use_mps_device use_deepspeed use_fsdp use_megatron_lm use_tpu use_hpu"
        " use_parallelism_config downcast_bf16 dynamo_use_dynamic dynamo_use_fullgraph dynamo_use_regional_compilation"
        " fp8_use_autocast_during_eval m module no_python debug q quiet same_network enable_cpu_affinity tpu_cluster"
        " no_tpu_cluster tpu_use_cluster tpu_use_sudo h help".split()
    ),
    "deepspeed": frozenset(
        "module no_python no_local_rank force_multi save_pid elastic_training enable_each_rank_log bind_cores_to_rank"
        " no_ssh no_ssh_check h help".split()
    ),
    "python": frozenset("b B d E h i I O OO q s S u v V P x bb".split()),
    "srun": frozenset(
        "exclusive overlap l label u unbuffered v verbose Q quiet pty K kill_on_bad_exit no_kill k oversubscribe s E X"
        " O overcommit contiguous mpi_combine preserve_env Z test_only".split()
    ),
}
"""The options without a value, by launcher; all others take the next word."""

ALIASES: dict[str, dict[str, str]] = {
    "torchrun": {"r": "redirects", "t": "tee", "m": "module"},
    "launch": {"r": "redirects", "t": "tee", "m": "module"},
    "accelerate": {"m": "module", "q": "quiet"},
    "deepspeed": {"H": "hostfile", "i": "include", "e": "exclude"},
    "python": {},
    "srun": {},
}
SLURM = {
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus_per_task",
    "w": "nodelist",
    "G": "gpus",
    "p": "partition",
    "J": "job_name",
    "t": "time",
    "o": "output",
    "e": "error",
    "A": "account",
}
"""The short options of Slurm's commands and directives."""
ALIASES["srun"] = SLURM


class Options(NamedTuple):
    """What a launcher's command line says. at: where, among the words, the script stands; complete: as in Start."""

    given: tuple[Given, ...]
    at: int
    complete: bool


def read(words: list[Word], launcher: str) -> Options:
    """The options at the front of ``words``, up to the first word that is neither one nor the value of one."""
    flags, aliases = FLAGS[launcher], ALIASES[launcher]
    given: list[Given] = []
    complete = True
    index = 0
    while index < len(words):
        word = words[index]
        text = _shown(word)
        if word.many and not text.startswith("-"):
            if not _script_follows(words, index):
                return Options(tuple(given), index, complete)
            complete = False
            index += 1
            continue
        if not text.startswith("-") or text == "-":
            return Options(tuple(given), index, complete)
        if text == "--":
            return Options(tuple(given), index + 1, complete)
        name, equals, _ = text.partition("=")
        plain = name.lstrip("-").replace("-", "_")
        plain = aliases.get(plain, plain)
        if equals:
            given.append(Given(plain, after_equals(word), word))
            index += 1
        elif launcher == "python" and not name.startswith("--") and plain[:1] in "WXmc":
            return Options(tuple(given), index, complete) if plain[:1] in "mc" else _python_value(words, index, given)
        elif plain in flags or (launcher != "srun" and launcher != "python" and _takes_nothing(words, index)):
            given.append(Given(plain, None, word))
            index += 1
        elif launcher == "srun" and not name.startswith("--") and len(name) > 2:
            short = aliases.get(name[1], name[1])
            value = word._replace(texts=tuple(each[2:] for each in word.texts))
            given.append(Given(short, value, word))
            index += 1
        else:
            value_word = words[index + 1] if index + 1 < len(words) else None
            given.append(Given(plain, value_word, word))
            index += 2
    return Options(tuple(given), index, complete)


def _python_value(words: list[Word], index: int, given: list[Given]) -> Options:
    """``-W x`` and ``-X x`` of Python, joined or not; then the rest."""
    joined = len(_shown(words[index])) > 2
    step = 1 if joined else 2
    rest = read(words[index + step :], "python")
    return Options((*given, *rest.given), rest.at + index + step, rest.complete)


def _takes_nothing(words: list[Word], index: int) -> bool:
    """Whether what follows an option is another one, or the script: then the option is a flag that is not known."""
    if index + 1 >= len(words):
        return True
    following = _shown(words[index + 1])
    return following.startswith("--") or following.endswith(".py")


def _script_follows(words: list[Word], index: int) -> bool:
    """Whether a word that may be many hides options: further on stands what must be the script, or an option."""
    return any(_shown(word).endswith(".py") or _shown(word) in ("-m", "--module") for word in words[index + 1 :])


def _shown(word: Word) -> str:
    """A word's text where one is known, else as it is written."""
    return word.texts[0] if len(word.texts) == 1 else word.raw


def after_equals(word: Word) -> Word:
    """The value of ``--name=value``."""
    return word._replace(
        raw=word.raw.partition("=")[2],
        texts=tuple(text.partition("=")[2] for text in word.texts),
        many=False,
        span=word.tail or word.span,
    )
