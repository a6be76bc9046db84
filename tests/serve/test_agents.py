"""The MCP server, spoken to by a client over standard input and output, as an agent does."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

if not importlib.util.find_spec("mcp"):
    pytest.skip("the extra `mcp` is not installed", allow_module_level=True)

SHOWCASE = Path(__file__).resolve().parents[2] / "fixtures" / "showcase" / "train_buggy.py"


class Agent:
    """A client: calls a tool, and sees text."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        return ("error: " if result.is_error else "") + str(content.text)


def work(folder: Path, session: Callable[[Agent], Awaitable[None]]) -> None:
    """Runs a session of an agent, and ends the server with it."""
    from mcp import Client, StdioServerParameters, stdio_client  # a second, which each worker would pay for

    environment = {**os.environ, "VALIDATE_DDP_CACHE_DIR": str(folder.parent / "cache")}
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "validate_ddp", "mcp"], cwd=folder, env=environment
    )

    async def whole() -> None:
        async with Client(stdio_client(command)) as client:
            await session(Agent(client))

    asyncio.run(asyncio.wait_for(whole(), 100))


def test_a_finding_is_read_explained_mended_and_proven(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(SHOWCASE.read_bytes())

    async def session(agent: Agent) -> None:
        tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
        assert set(tools) == {"check", "explain", "fix", "rehearse"}
        assert all(tool.description and not tool.output_schema for tool in tools.values())
        told = await agent("check", paths=["train.py"])
        assert "error DDP201" in told and "patch (safe):" in told and told.endswith("exit code 1")
        assert "## Use instead" in await agent("explain", rule="DDP201")
        diff = await agent("fix", paths=["train.py"], select=["DDP201"])
        assert "+        sampler.set_epoch(epoch)" in diff
        assert script.read_bytes() == SHOWCASE.read_bytes()
        assert "Fixed 1 finding:" in await agent("fix", paths=["train.py"], select=["DDP201"], write=True)
        assert "no findings in 1 file\nexit code 0" in await agent("check", select=["missing-set-epoch"])

    work(tmp_path, session)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    async def session(agent: Agent) -> None:
        for told, line in (
            (await agent("explain", rule="DDP2O1"), "unknown rule `DDP2O1`: did you mean DDP2"),
            (await agent("explain"), "rule Field required"),
            (await agent("check", select=["DDP2", "no-such"]), "unknown rule `no-such`"),
            (await agent("check", since="--output=x"), "no working tree of git"),
            (await agent("fix", paths="train.py"), "paths Input should be a valid list"),
            (await agent("fix", paths=[], write=True), "paths: name the files"),
            (await agent("rehearse", command=["gone.py"]), "gone.py: no such script"),
            (await agent("rehearse", command=["--log", "x", "train.py"]), "begins with the script"),
            (await agent("rehearse", command=[]), "begins with the script"),
        ):
            assert told.startswith("error: ") and "\n" not in told and line in told
        missing = await agent("check", paths=["--fix"])
        assert "--fix:1:1: error DDP001" in missing and missing.endswith("exit code 2")

    work(tmp_path, session)


@pytest.mark.runtime
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel to end the rehearsal with a killed server")
def test_a_rehearsal_tells_what_it_saw_and_ends_with_its_server(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        "import os, sys, time, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "dist.barrier()\nif len(sys.argv) > 1:\n"
        "    open(f'pid{dist.get_rank()}', 'w').write(f'{os.getpid()} {os.getppid()}')\n    time.sleep(600)\n"
    )

    async def session(agent: Agent) -> None:
        told = await agent("rehearse", command=["train.py"])
        assert "DDP101" in told and "exit code 0" in told
        call = asyncio.create_task(agent("rehearse", command=["train.py", "sleep"]))
        files = [tmp_path / "pid0", tmp_path / "pid1"]
        while not all(file.exists() and " " in file.read_text() for file in files):
            await asyncio.sleep(0.1)
        ranks.extend(int(file.read_text().split()[0]) for file in files)
        call.cancel()

    ranks: list[int] = []
    work(tmp_path, session)

    async def gone() -> None:
        while any(Path(f"/proc/{rank}").exists() for rank in ranks):
            await asyncio.sleep(0.1)

    try:
        asyncio.run(asyncio.wait_for(gone(), 30))
    finally:
        for rank in ranks:
            try:
                os.kill(rank, signal.SIGKILL)
            except ProcessLookupError:
                pass
    assert len(ranks) == 2
