"""What objects hold where some ranks have left early: a field set before a return is theirs, one set after it is not."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
from settings import args

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank % 8)


class Logger:
    def __init__(self):
{made}

    def save(self, model):
        if self.saves:
            torch.save(model.state_dict(), "model.pt")


Logger().save(torch.nn.Linear(2, 2))
"""
ON_RANK_ZERO = {
    "set by the others before they return": "if rank > 0:\n    self.saves = False\n    return\nself.saves = True",
    "a setting beside the rank": "if rank > 0 or not args.log:\n    self.saves = False\n    return\nself.saves = args.save",
    "no return": "if rank > 0 or not args.log:\n    self.saves = False\nelse:\n    self.saves = True",
    "set before": "self.saves = False\nif rank > 0:\n    return\nself.saves = args.save",
    "in a method": "self.saves = False\nself.start()\n\ndef start(self):\n    if rank:\n        return\n    self.saves = True",
}
ON_ALL = {
    "the other way round": "if rank > 0:\n    self.saves = args.save\n    return\nself.saves = args.save",
    "set anew behind": "if rank > 0:\n    self.saves = False\nself.saves = True",
    "a return that has nothing to do with it": "if args.plain:\n    self.saves = args.save\n    return\nself.saves = True",
}


def _script(made: str) -> str:
    body = made.partition("\n\ndef")
    lines = [" " * 8 + line for line in body[0].split("\n")]
    rest = [" " * 4 + line for line in (body[1].strip() + body[2]).split("\n")] if body[1] else []
    return SCRIPT.format(made="\n".join([*lines, "", *rest]))


@pytest.mark.parametrize("made", ON_RANK_ZERO.values(), ids=ON_RANK_ZERO.keys())
def test_what_only_rank_zero_has_set_is_true_there_alone(lint: Any, made: str) -> None:
    assert lint.body(_script(made), "DDP502").codes == set()


@pytest.mark.parametrize("made", ON_ALL.values(), ids=ON_ALL.keys())
def test_what_all_have_set_is_told(lint: Any, made: str) -> None:
    assert lint.body(_script(made), "DDP502").codes == {"DDP502"}


def test_a_flag_that_rank_zero_may_have_set_is_not_surely_set(lint: Any) -> None:
    script = """
rank = dist.get_rank()
stops = os.environ.get("STOPS")
done = False


def finish():
    global done
    if rank != 0:
        return
    if stops:
        done = True


for step in range(3):
    finish()
    if done:
        break
    dist.barrier()
"""
    assert "error" not in lint.body('dist.init_process_group("gloo")\n' + script, "DDP401").severities
