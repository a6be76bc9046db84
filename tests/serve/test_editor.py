"""The language server, spoken to by a client over standard input and output, as an editor does."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pygls", reason="the extra `lsp` is not installed")
from editor_client import Client, applied, edit
from lsprotocol import types

HEAD = "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
SAVES = "torch.save({}, 'last.pt')\n"
WRONG = HEAD + "x = '😀'; " + SAVES + "dist.destroy_process_group()\n"
RIGHT = WRONG.replace(SAVES, "\nif dist.get_rank() == 0:\n    " + SAVES)


def test_diagnostics_fixes_and_rules_of_a_text_that_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "train é.py"
    path.write_text("print()\n")

    async def session(client: Client) -> None:
        uri = client.open(path, RIGHT)
        assert await client.diagnostics(uri, 1) == []
        client.type(uri, 2, WRONG)
        (one,) = await client.diagnostics(uri, 2)
        assert (one.code, one.severity, one.source) == ("DDP502", types.DiagnosticSeverity.Warning, "validate-ddp")
        assert one.code_description.href.endswith("/rules/DDP502-save-on-every-rank.md")
        # The character before it has two units of UTF-16, in which this client counts.
        assert (one.range.start, one.range.end) == (types.Position(3, 10), types.Position(3, 35))
        (fix,) = await client.fixes(uri, one.range)
        assert fix.is_preferred and "unsafe" not in fix.title and list(fix.diagnostics) == [one]
        (change,) = fix.edit.document_changes
        assert (change.text_document.uri, change.text_document.version) == (uri, 2)
        params = types.HoverParams(types.TextDocumentIdentifier(uri), one.range.start)
        hover = await client.text_document_hover_async(params)
        assert hover is not None and hover.contents.value.startswith("# DDP502 save-on-every-rank")
        params = types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(0, 0))
        assert await client.text_document_hover_async(params) is None
        client.type(uri, 3, "\n".join(applied(WRONG, change.edits)))
        assert await client.diagnostics(uri, 3) == []
        client.type(uri, 4, WRONG)
        assert await client.fixes(uri, one.range) == []  # nothing is known of this text yet
        client.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri)))

    edit(tmp_path, session)


def test_open_documents_are_one_program_and_a_broken_one_or_broken_settings_end_nothing(tmp_path: Path) -> None:
    main, module, broken = (tmp_path / name for name in ("train.py", "saving.py", "broken.py"))
    for path in (main, module, broken):
        path.write_text("")
    (tmp_path / "run.sh").write_text("")

    async def session(client: Client) -> None:
        script = client.open(main, HEAD + "import saving\nsaving.save()\ndist.destroy_process_group()\n")
        client.open(broken, "def f(:\n" + "(" * 5000)
        launch = client.open(tmp_path / "run.sh", "torchrun python train.py\n")
        uri = client.open(module, "import torch\ndef save():\n    torch.save({}, 'last.pt')\n")
        assert [each.code for each in await client.diagnostics(uri, 1)] == ["DDP502"]
        client.type(script, 2, HEAD + "import saving\nif dist.get_rank() == 0:\n    dist.barrier()\n")
        found = await client.diagnostics(script, 2)
        (one,) = [each for each in found if each.code == "DDP401"]
        (related,) = one.related_information
        assert related.location.uri == script and related.location.range.start.line == 4
        (tmp_path / "pyproject.toml").write_text("[tool.validate-ddp]\nselect = ['NONE']\n")
        client.type(launch, 2, "torchrun python train.py --x\n")
        assert "pyproject.toml" in await client.messages.get()
        (tmp_path / "pyproject.toml").unlink()
        client.type(launch, 3, "torchrun python train.py\n")
        assert [each.code for each in await client.diagnostics(launch, 3)] == ["DDP801"]

    edit(tmp_path, session)


def test_the_server_ends_with_an_editor_that_is_gone(tmp_path: Path) -> None:
    async def whole() -> None:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "validate_ddp", "server")
        server = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdin=pipe, stdout=pipe)
        assert server.stdin is not None
        server.stdin.close()
        await server.wait()

    asyncio.run(asyncio.wait_for(whole(), 60))


AS_VS_CODE = {
    "workspace": {
        "applyEdit": True,
        "workspaceEdit": {"documentChanges": True, "changeAnnotationSupport": {"groupsOnLabel": True}},
        "configuration": True,
        "didChangeWatchedFiles": {"dynamicRegistration": True, "relativePatternSupport": True},
        "diagnostics": {"refreshSupport": True},
    },
    "textDocument": {
        "publishDiagnostics": {"relatedInformation": True, "versionSupport": False, "codeDescriptionSupport": True},
        "synchronization": {"dynamicRegistration": True, "willSave": True, "willSaveWaitUntil": True, "didSave": True},
        "codeAction": {
            "dynamicRegistration": True,
            "isPreferredSupport": True,
            "resolveSupport": {"properties": ["edit"]},
        },
        "hover": {"dynamicRegistration": True, "contentFormat": ["markdown", "plaintext"]},
        "diagnostic": {"dynamicRegistration": True, "relatedDocumentSupport": False},
    },
    "window": {"workDoneProgress": True, "showDocument": {"support": True}},
    "general": {"staleRequestSupport": {"cancel": True, "retryOnContentModified": []}, "positionEncodings": ["utf-16"]},
    "notebookDocument": {"synchronization": {"dynamicRegistration": True, "executionSummarySupport": True}},
}
"""Of what the language client of VS Code says that it can, the parts that have to do with us, and new ones."""


def test_a_session_message_by_message_as_the_language_client_of_vs_code_has_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WRONG)
    uri = (tmp_path / "train.py").as_uri()
    command = (sys.executable, "-m", "validate_ddp", "server")
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        sent = itertools.count()

        def send(method: str, params: Any, **more: int) -> None:
            data = json.dumps({"jsonrpc": "2.0", **more, "method": method, "params": params}).encode()
            server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
            server.stdin.flush()

        def received(key: str, value: object) -> Any:
            while True:
                head = itertools.takewhile(bytes.strip, server.stdout)
                length = dict(line.lower().split(b":") for line in head)[b"content-length"]
                message = json.loads(server.stdout.read(int(length)))
                if message.get(key) == value:
                    return message

        def ask(method: str, params: Any) -> Any:
            number = next(sent)
            send(method, params, id=number)
            return received("id", number)["result"]

        folder = {"rootPath": str(tmp_path), "rootUri": tmp_path.as_uri(), "workspaceFolders": None}
        client = {"processId": os.getpid(), "clientInfo": {"name": "Visual Studio Code"}, "locale": "en"}
        able = ask("initialize", {**client, **folder, "capabilities": AS_VS_CODE, "trace": "verbose"})["capabilities"]
        assert able["hoverProvider"] and able["textDocumentSync"]["change"] == 2
        send("initialized", {})
        document = {"uri": uri, "languageId": "python", "version": 1, "text": WRONG}
        send("textDocument/didOpen", {"textDocument": document})
        (one,) = received("method", "textDocument/publishDiagnostics")["params"]["diagnostics"]
        where = {"textDocument": {"uri": uri}}
        hover = ask("textDocument/hover", {**where, "position": one["range"]["start"]})
        assert hover["contents"]["value"].startswith("# DDP502")
        context = {"diagnostics": [one], "triggerKind": 1}
        (fix,) = ask("textDocument/codeAction", {**where, "range": one["range"], "context": context})
        changes = [
            {"range": each["range"], "text": each["newText"]} for each in fix["edit"]["documentChanges"][0]["edits"]
        ]
        changed = {"textDocument": {"uri": uri, "version": 2}, "contentChanges": changes}
        send("textDocument/didChange", changed)
        assert received("method", "textDocument/publishDiagnostics")["params"]["diagnostics"] == []
        send("textDocument/didSave", where)
        send("textDocument/didClose", where)
        assert ask("shutdown", None) is None
        send("exit", None)
        server.stdin.close()
        assert server.wait(60) == 0
