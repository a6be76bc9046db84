"""Every name that the package promises is there: a lazy one is looked for only when somebody asks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from validate_ddp import testing

pytestmark = pytest.mark.runtime


@pytest.mark.parametrize("name", testing.__all__)
def test_a_name_that_is_promised_can_be_imported(name: str) -> None:
    assert getattr(testing, name) is not None
