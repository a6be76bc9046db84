"""A rank fails in any way, anywhere: the job is over at once, and what is printed first is what went wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(120)]


def test_a_job(start_job):
    for a in [{}, {"kind":"raise"}, {"kind":"kill"}, {"kind":"kill","rank":0}, {"kind":"hang","timeout":3}, {"kind":"raise","place":"loader","workers":1},  {"kind":"hang","place":"loader","workers":1,"timeout":3}, {"kind":"kill","place":"saving","rank":0}, {"kind":"raise","place":"evaluation","rank":0}]:
        ended = start_job(2, **a).end()
        print(a, ended, ended.since_struck if a else "", "\n".join(ended.told))
