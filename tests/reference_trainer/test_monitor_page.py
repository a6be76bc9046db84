"""The page: one file that needs nothing from elsewhere, and what a browser makes of it for runs in each state."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser
from importlib import resources

import pytest

from reference_trainer.monitor.server import MonitorServer

from .monitored import heartbeat, logged, write

PAGE = resources.files("reference_trainer.monitor").joinpath("page.html").read_text(encoding="utf-8")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser", "chrome"))), None)
VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """The elements of a page: their names, attributes, and text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(text)
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))
        if tag not in VOID:
            self._open.append((tag, self.elements[-1]))

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        if tag not in VOID:
            opened, _ = self._open.pop()
            assert opened == tag, f"<{opened}> is ended by </{tag}>"

    def handle_data(self, data):
        for _, (_, _, text) in self._open:
            text.append(data)

    def all(self, tag, **wanted):
        """(attributes, text) of these elements."""
        return [
            (attributes, "".join(text))
            for name, attributes, text in self.elements
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]


def test_it_is_one_file_that_asks_this_server_alone():
    page = Page(PAGE)
    for tag, attributes, _ in page.elements:
        # What the policy that the server sends would not let through either.
        assert not {"src", "srcset", "action", "style"} & attributes.keys(), tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"\b(url\(|import\b(?!ant)|innerHTML|eval\(|document\.write)", PAGE)
    assert re.findall(r'fetch\("([^"]*)"', PAGE) == ["api/training/runs"] and not re.search("https?://", PAGE)


def test_it_can_be_read_without_eyes_and_without_a_script():
    page = Page(PAGE)
    assert page.all("html")[0][0]["lang"] == "en" and page.all("meta", charset="utf-8")
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("noscript")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all("scope" in attributes for attributes, _ in page.all("th"))
    assert page.all("progress")[0][0]["aria-label"]
    assert page.all("span", role="status")
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_script_finds_what_it_looks_for():
    page = Page(PAGE)
    for wanted in re.findall(r'(?:find|inside)\("([^"]*)"\)', PAGE):
        kind = {"#": "id", ".": "class", "[": "role"}.get(wanted[0])
        value = wanted.removeprefix("[role=").strip("#.]")
        assert any(tag == wanted if kind is None else each.get(kind) == value for tag, each, _ in page.elements)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize(
    ("state", "age", "badge"), [("running", 0.0, "running"), ("finished", 1e6, "finished"), ("running", 1e6, "stale")]
)
def test_a_browser_shows_the_state_the_values_and_each_rank(tmp_path, state, age, badge):
    folder = logged(tmp_path / "<i>run", [3.0, float("nan"), 2.0])  # names are text, whatever is in them
    evaluations = {"validation": {"step": 30, "metrics": {"loss": 0.25, "accuracy": 0.5}}}
    write(folder, *(heartbeat(rank, state=state, age=age, evaluations=evaluations) for rank in range(2)))
    with MonitorServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        command = [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
        ]
        done = subprocess.run(
            [*command, "--virtual-time-budget=3000", "--dump-dom", server.url],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        server.shutdown()
        thread.join()
    page = Page(done.stdout.partition("<html")[1] + done.stdout.partition("<html")[2])
    assert page.all("article")[-1][1].lstrip().startswith("<i>run")
    attributes, text = page.all("span", role="status")[0]
    assert (attributes["data-state"], text) == (badge, badge)
    facts = dict(zip((text for _, text in page.all("dt")), (text for _, text in page.all("dd")), strict=True))
    assert (facts["step"], facts["done"], facts["loss"], facts["samples a second"]) == (
        "50 of 200",
        "25 %",
        "0.5",
        "640",
    )
    assert (facts["left"] != "–") == (badge != "stale")
    assert facts["validation accuracy"] == "0.5 at step 30"
    _, ranks = page.all("table")[0]
    assert ranks.count("node1 (10") == 2 and ranks.count(badge) == 2 and "97 %" in ranks and "768 MiB" in ranks
    why = page.all("span", **{"class": "why"})[0][1]
    assert "no heartbeat for" in why if badge == "stale" else why == ""
