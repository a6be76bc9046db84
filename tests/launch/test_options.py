"""Which options of a launcher take no value is what the launcher itself says, where it is installed."""

from __future__ import annotations

import argparse

import pytest
from validate_ddp.launch.options import FLAGS


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """The options that take no value, as our table writes them."""
    taken = (option for action in parser._actions if action.nargs == 0 for option in action.option_strings)
    return {option.lstrip("-").replace("-", "_") for option in taken}


@pytest.mark.parametrize(
    ("launcher", "module", "maker"),
    [
        ("torchrun", "torch.distributed.run", "get_args_parser"),
        ("accelerate", "accelerate.commands.launch", "launch_command_parser"),
    ],
)
def test_the_flags_are_those_of_the_launcher(launcher: str, module: str, maker: str) -> None:
    parser = getattr(pytest.importorskip(module), maker)()
    valued = {
        option.lstrip("-").replace("-", "_")
        for action in parser._actions
        if action.nargs != 0
        for option in action.option_strings
    }
    assert flags_of(parser) <= FLAGS[launcher]
    assert FLAGS[launcher].isdisjoint(valued)
