"""Files of a run: their bytes, their statements, and what of them can matter."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from validate_ddp.source.syntax import Statement

_ACTS = (
    b".save(",
    b".load(",
    b"open(",
    b".dump(",
    b".module",
    b"load_state_dict",
    b"state_dict()",
    b"DataLoader",
    b"loader",
    b"backward",
    b"set_epoch",
    b"egistry",
    b"import_module",
    b"rank",
    b"Rank",
    b"is_main",
    b"is_master",
    b"basicConfig",
    b"FileHandler",
    b"dictConfig",
    b"SummaryWriter",
    b"download",
    b"makedirs(",
    b"mkdir(",
    b"seed(",
    b"seed_all(",
    b"rand_like",
    b"randn_like",
    b"torch.randint",
)
"""What a module without a word of distributed training may still do to a script that has one."""


_STARTS = (
    b"DataParallel",
    b"init_process_group",
    b"DistributedSampler",
    b"Accelerator",
    b"PartialState",
    b"init_dist",  # and deepspeed's init_distributed
    b"detectron2.engine",
    b"DDP",
    b"FSDP",
    b"FullyShardedDataParallel",
    b"Fabric",
    b"ightning",
    b"HfArgumentParser",
    b"TrlParser",
    b"TrainingArguments",
    b"horovod",
    b"hydra",
    b"hvd",
    b"deepspeed",
    b"spawn",
    b"Process",
    b"start_processes",
)
# A line's start is looked for as the end of the one before: plain bytes, which the engine finds without trying each.
_BARE_CALL = re.compile(rb"\n[A-Za-z_][\w.]*\(")
_ACTING = re.compile(
    rb"\n(?!(?:import|from|def|class|async[ \t]+def)\b|[\s@#\"')\]}]|[A-Za-z_]\w*[ \t]*(?::[^=\n(]+)?=[^\n(]*$)[^\n]",
    re.MULTILINE,
)
"""The start of a line at a file's left margin that does more than define, import, or name a value."""
_BLOCK = re.compile(rb"\n(?:if|with|for|try)\b")


class Summaries:
    """Reads each file once. ``problems`` collects what could not be read or parsed."""

    def __init__(self, cache: Any = None) -> None:
        self.cache = cache
        self.problems: dict[str, Any] = {}
        self.consulted: set[str] = set()
        self.absent: set[str] = set()
        """Paths of files that were looked for and are not there; with a separator at the end, of folders."""
        self._digests: dict[str, str] = {}
        self._imports: dict[str, list[str]] = {}
        self._sources: dict[str, Any] = {}
        self._plain: dict[str, bytes] = {}
        """The bytes of files of which the text is no longer kept: it is as large again, and decoded in no time."""
        self._line_starts: dict[str, list[int]] = {}
        self._bodies: dict[str, list[Statement] | None] = {}
        self._asked: set[str] = set()
        self._provided: set[str] = set()
        self._located: dict[str, dict[tuple[str, int, str], str | None]] = {}
        self._files: dict[str, bool] = {}
        self._matters: dict[str, bool] = {}
        self._acts: dict[str, bool] = {}
        self._follows: dict[str, bool] = {}
        self._folders: dict[str, bool] = {}
        self._listed: dict[str, frozenset[str]] = {}
        self._namespaces: dict[str, bool] = {}
        self._init_files: dict[str, str] = {}
        self._found: dict[Any, tuple[Any, set[str], set[str]]] = {}
        self._starts: dict[str, bool] = {}
        self.roots: dict[str, list[str]] = {}
        self.launched: dict[str, Any] = {}
        """Of scripts that launch files start, how: see ``interpreter.started.Launched``."""
        self.named: set[str] = set()
        """What the user names, as absolute paths: of such a file, what nobody in sight calls is looked at too."""
        self._cwd = os.getcwd()

    def shown(self, file: str) -> str:
        """The path as a user reads it: relative to the working directory where it lies below it, forward slashes."""
        if file.startswith(self._cwd + os.sep):
            file = file[len(self._cwd) + 1 :]
        return file.replace(os.sep, "/")

    def begin(self) -> None:
        """Forget which files were consulted and missed so far: what follows is another script."""
        self.consulted, self.absent = set(), set()

    def once(self, key: Any, find: Callable[[], Any]) -> Any:
        """What ``find`` gives, asked once in a run. The files that it consulted and missed count for each who asks."""
        held = self._found.get(key)
        if held is None:
            outer, self.consulted, self.absent = (self.consulted, self.absent), set(), set()
            try:
                held = self._found[key] = (find(), self.consulted, self.absent)
            finally:
                self.consulted, self.absent = outer
        if self.cache is not None:
            self.consulted |= held[1]
            self.absent |= held[2]
        return held[0]

    def located(self, script: str) -> dict[tuple[str, int, str], str | None]:
        """What was found of modules, in the terms of ``Finder.find``, for the scripts of this one's folder."""
        return self._located.setdefault(os.path.dirname(script), {})

    def known(self, key: Any) -> Any:
        """What ``once`` has found before under this key, else None."""
        return self.once(key, tuple) if key in self._found else None

    def is_file(self, path: str) -> bool:
        if path not in self._files:
            folder, _, name = path.rpartition(os.sep)
            self._files[path] = name in self.listed(folder) and os.path.isfile(path)
        if not self._files[path]:
            self.absent.add(path)
        return self._files[path]

    def is_folder(self, path: str) -> bool:
        if path not in self._folders:
            folder, _, name = path.rpartition(os.sep)
            self._folders[path] = name in self.listed(folder) and os.path.isdir(path)
        if not self._folders[path]:
            self.absent.add(path + os.sep)
        return self._folders[path]

    def listed(self, folder: str) -> frozenset[str]:
        """The names in a folder; none where there is no such folder. Most modules asked for are not there."""
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder or os.sep))
            except OSError:
                self._listed[folder] = frozenset()
        return self._listed[folder]

    def init_file(self, path: str) -> str:
        """The file that importing ``path`` walks: a package's ``__init__``, or itself."""
        if path not in self._init_files:
            inside = os.path.join(path, "__init__.py")
            self._init_files[path] = inside if self.is_folder(path) and self.is_file(inside) else path
        return self._init_files[path]

    def has_appeared(self, folder: str, name: str) -> bool:
        """Whether there now is a file, or with a separator at its end a folder, of which there was none."""
        plain = name.removesuffix(os.sep)
        if plain not in self.listed(folder):
            return False
        path = os.path.join(folder, plain)
        return os.path.isdir(path) if name != plain else os.path.isfile(path)

    def is_namespace(self, path: str) -> bool:
        """Whether a folder without ``__init__.py`` holds modules."""
        if path not in self._namespaces:
            self._namespaces[path] = any(name.endswith(".py") for name in self.listed(path))
        return self._namespaces[path]

    def provide(self, file: str, source: Any) -> None:
        """Use ``source`` for a file that is not read from disk: standard input, an editor's buffer."""
        self._sources[file] = source
        self._plain.pop(file, None)
        self._provided.add(file)
        self._line_starts.pop(file, None)
        self._files[file] = True

    def source(self, file: str) -> Any | None:
        """The decoded file; None, and a problem noted, where it cannot be read."""
        if file not in self._sources:
            from validate_ddp.source.decoding import from_bytes, read
            from validate_ddp.source.text import Problem

            found = from_bytes(file, self._plain[file]) if file in self._plain else read(file)
            if isinstance(found, Problem):
                self.problems[file] = found._replace(path=self.shown(file))
            self._sources[file] = None if isinstance(found, Problem) else found
        return self._sources[file]

    def starts_of_lines(self, file: str) -> list[int]:
        """Where the lines of the decoded file begin, see ``catalogue.positions``; none for one that cannot be read."""
        if file not in self._line_starts:
            from validate_ddp.source.positions import line_starts

            source = self.source(file)
            self._line_starts[file] = [] if source is None else line_starts(source.text)
        return self._line_starts[file]

    def digest(self, file: str) -> str:
        """A hash of the file's bytes; empty where it cannot be read."""
        if file not in self._digests:
            from validate_ddp.source.cache import digest

            data = self.data(file)
            self._digests[file] = "" if data is None else digest(data)
        return self._digests[file]

    def data(self, file: str) -> bytes | None:
        """The file's bytes; None where it cannot be read."""
        self.consulted.add(file)
        if file in self._plain:
            return self._plain[file]
        source = self.source(file)
        if source is None:
            return None
        self._forget_text(file)
        data: bytes = source.data
        return data

    def _forget_text(self, file: str) -> None:
        """Keep no more than the bytes of a file, where its text can be had from them."""
        source = self._sources.get(file)
        if source is not None and source.cells is None and file not in self._provided:
            self._plain[file] = source.data
            del self._sources[file]

    def imports(self, file: str) -> list[str]:
        """Dotted names of the modules that the file may import, see ``prefilter.imports``."""
        self.consulted.add(file)
        if file not in self._imports:
            from validate_ddp.source.prefilter import imports

            self._imports[file] = imports(self.data(file) or b"")
        return self._imports[file]

    def matters(self, file: str) -> bool:
        """Whether the file itself has a word of distributed training."""
        self.consulted.add(file)
        if file not in self._matters:
            from validate_ddp.source.prefilter import may_matter

            data = self.data(file)
            self._matters[file] = data is not None and may_matter(data)
        return self._matters[file]

    def acts_at_import(self, file: str) -> bool:
        """Whether importing the file may start ranks or the like: a word of it, and statements that run at import."""
        if file not in self._acts:
            data = b"\n" + (self.data(file) or b"")
            self._acts[file] = self.matters(file) and (
                _BARE_CALL.search(data) is not None
                or (b"init_process_group" in data and _BLOCK.search(data) is not None)
            )
        return self._acts[file]

    def acts(self, file: str) -> bool:
        """Whether running the file does anything: it has a main block, or statements beside its definitions."""
        self.consulted.add(file)
        data = self.data(file) or b""
        return _ACTING.search(b"\n" + data) is not None or b"\n" not in data

    def starts(self, file: str) -> bool:
        """Whether the file has a word without which it cannot start, wrap for, or share data between several ranks."""
        self.consulted.add(file)
        if file not in self._starts:
            data = self.data(file) or b""
            self._starts[file] = any(word in data for word in _STARTS)
        return self._starts[file]

    def parsed(self, file: str) -> None:
        """Note a problem where the file does not parse, without lowering it."""
        source = self.source(file)
        if source is not None and file not in self._bodies:
            from validate_ddp.source.parsing import problem_of

            problem = problem_of(source)
            if problem is not None:
                from validate_ddp.source.lenient import read_anyway

                self._note(file, read_anyway(source, problem)[1])
            self._forget_text(file)

    def _note(self, file: str, problem: Any | None) -> None:
        if problem is not None:
            self.problems[file] = problem._replace(path=self.shown(file))

    def follows(self, file: str) -> bool:
        """Whether an imported file, or anything in its folder that it imports, can do what rules ask about."""
        self.consulted.add(file)
        if file not in self._follows:
            data = self.data(file)
            self._follows[file] = data is not None and (
                self.matters(file) or any(word in data for word in _ACTS) or os.path.basename(file) == "__init__.py"
            )
        return self._follows[file]

    def body(self, file: str) -> list[Statement] | None:
        """The file's statements; None, and a problem noted, where the file does not parse."""
        self.consulted.add(file)
        if file not in self._bodies:
            self._bodies[file] = self._lowered(file)
        self._asked.add(file)
        return self._bodies[file]

    def let_go(self) -> None:
        """Forget the bodies that nobody has asked for since the last time: those of a project that is done with."""
        for file in self._bodies.keys() - self._asked:
            del self._bodies[file]
        for file in list(self._sources):
            self._forget_text(file)
        self._asked = set()

    def _lowered(self, file: str) -> list[Statement] | None:
        source = self.source(file)
        if source is None:
            return None
        from validate_ddp.source.lowering import lower
        from validate_ddp.source.parsing import parse
        from validate_ddp.source.text import Problem

        tree: Any = parse(source)
        if isinstance(tree, Problem):
            from validate_ddp.source.lenient import read_anyway

            tree, problem = read_anyway(source, tree)
            self._note(file, problem)
            if tree is None:
                return None
        self._forget_text(file)
        try:
            return lower(tree)
        except RecursionError:
            self._note(file, Problem(file, 1, 1, "nested too deeply to be checked; split it up", "syntax"))
            return None
