"""Imported by multiprocessing's forkserver before it forks: see ``adopt``."""

from .adopt import import_first

import_first()
