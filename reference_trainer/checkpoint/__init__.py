"""Checkpoints: whole or not there, found again after any crash, and refused where they are not what was written."""

from ..core.save import load as load
from ..core.save import save as save
from .directory import CheckpointError as CheckpointError
from .directory import latest as latest
from .run import RunCheckpoints as RunCheckpoints
from .weights import export as export
from .weights import initialise as initialise
