"""What every rule's cases imply, so that a rule shows only what each of them is about; and the scripts made of them.

A script is the imports, the head, the case and the tail. Those here hold for a rule that has no IMPORTS, HEAD or TAIL
of its own. A case that begins with ``# whole script`` stands alone.
"""

from __future__ import annotations

from textwrap import dedent
from types import ModuleType

IMPORTS = """
    import argparse
    import os
    import sys
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    import torch.nn.functional as F
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
"""
HEAD = """
    dist.init_process_group("gloo")
"""
TAIL = """
    dist.destroy_process_group()
"""
_WHOLE = "# whole script\n"


def scripts(rule: ModuleType, name: str) -> tuple[str, ...]:
    """The scripts of a rule's cases: of its ``VALID`` ones, or of its ``INVALID`` ones."""
    before = dedent(getattr(rule, "IMPORTS", IMPORTS)) + dedent(getattr(rule, "HEAD", HEAD))
    behind = dedent(getattr(rule, "TAIL", TAIL))
    cases = (dedent(case).lstrip() for case in getattr(rule, name, ()))
    return tuple(case if case.startswith(_WHOLE) else before + case + behind for case in cases)
