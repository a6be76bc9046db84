"""What every rule's cases imply, so that a rule shows only what each of them is about; and the scripts made of them.

A script is the imports, the head, the case and the tail. Those here hold for a rule that has no IMPORTS, HEAD or TAIL
of its own. A case that begins with ``# alone`` has the imports only: it starts in another way, or ends in one.

Cases of a rule on launch files imply nothing: a shell script, or what a first line ``# file: NAME`` says.
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
    from contextlib import nullcontext
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x)

"""
HEAD = """
    dist.init_process_group("gloo")
"""
TAIL = """
    dist.destroy_process_group()
"""
_IMPLIED = {"IMPORTS": IMPORTS, "HEAD": HEAD, "TAIL": TAIL}


def scripts(rule: ModuleType, name: str) -> tuple[str, ...]:
    """The scripts of a rule's cases: of its ``VALID`` ones, or of its ``INVALID`` ones."""
    if hasattr(rule, "LAUNCH_TRIGGER"):
        return tuple(dedent(case).lstrip("\n") for case in getattr(rule, name, ()))
    imports, head, tail = (dedent(getattr(rule, part, implied)) for part, implied in _IMPLIED.items())
    cases = (dedent(case) for case in getattr(rule, name, ()))
    return tuple(imports + case if case.startswith("\n# alone\n") else imports + head + case + tail for case in cases)
