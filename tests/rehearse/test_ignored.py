"""Parameters that DistributedDataParallel is told to leave alone, as each rank's experts: they may differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
experts = [torch.nn.Linear(4, 4) for _ in range(dist.get_world_size())]
model = torch.nn.ModuleDict({"common": torch.nn.Linear(4, 4), "expert": experts[dist.get_rank()]})
model.forward = lambda x: model["expert"](model["common"](x))
own = [name for name, _ in model.named_parameters() if name.startswith("expert.")]
if IGNORED:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
wrapped = DistributedDataParallel(model)
if not IGNORED:
    model["expert"].weight.data += dist.get_rank()
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(3):
    loss = wrapped(torch.randn(8, 4, generator=generator)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("ignored", "codes"), [(True, set()), (False, {"DDP303"})])
def test_what_the_wrapper_leaves_alone_may_differ(
    ignored: bool, codes: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from validate_ddp.testing import rehearse

    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT.replace("IGNORED", str(ignored)))
    run: Any = rehearse("train.py", static=False, timeout=120)
    assert {finding.code for finding in run.findings} == codes, str(run)
