"""yaml-language-server, which editors run for YAML, spoken to as they do: LSP over its stdin and stdout."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests import programs

HERE = Path(__file__).parent
NAME = "yaml-language-server"
SECONDS = 120.0  # that an answer may take, beside other work
# Nothing is asked of the internet: only the schema that a file names.
SETTINGS = {
    "yaml": {
        "validate": True,
        "hover": True,
        "completion": True,
        "schemaStore": {"enable": False},
        "kubernetesCRDStore": {"enable": False},
    }
}


def missing() -> str | None:
    """What is not there on this machine, for people."""
    return next((f"{name} is not installed" for name in ("node", "npm") if not shutil.which(name)), None)


def installed(folder: Path) -> Path:
    """The server's program, installed by npm as the lock file says."""
    return programs.npm_modules(HERE, folder, NAME) / NAME / "bin" / NAME


class LanguageServer:
    """One server process. Files are opened in it, and what it says of them is asked for."""

    def __init__(self, program: Path, folder: Path):
        node = shutil.which("node") or "node"
        self._process = subprocess.Popen(
            [node, str(program), "--stdio"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._asked = 0
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reports: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        root = folder.as_uri()
        abilities = {"workspace": {"configuration": True}, "textDocument": {"hover": {}, "completion": {}}}
        self.ask("initialize", {"processId": None, "rootUri": root, "capabilities": abilities})
        self._send({"method": "initialized", "params": {}})
        self._send({"method": "workspace/didChangeConfiguration", "params": {"settings": SETTINGS}})

    def close(self) -> None:
        self.ask("shutdown", None)
        self._send({"method": "exit"})
        self._process.wait(SECONDS)

    def problems(self, file: Path) -> list[str]:
        """Opens a file; what is wrong with it, each with its line, from 1."""
        uri = file.as_uri()
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": file.read_text()}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        while True:
            report = self._reports.get(timeout=SECONDS)
            if report["uri"] == uri:
                return [
                    f"{one['range']['start']['line'] + 1}: {one['message']}" for one in report["diagnostics"]
                ]

    def completed(self, file: Path, line: int, column: int) -> list[str]:
        """What it offers at a place of an opened file, counted from 0."""
        found = self.ask("textDocument/completion", _at(file, line, column))
        return [item["label"] for item in found["items"]]

    def explained(self, file: Path, line: int, column: int) -> str:
        """What it shows where the pointer rests."""
        found = self.ask("textDocument/hover", _at(file, line, column))
        return found["contents"]["value"] if found else ""

    def ask(self, method: str, parameters: Any) -> Any:
        self._asked += 1
        self._send({"id": self._asked, "method": method, "params": parameters})
        answer = self._answers.get(timeout=SECONDS)
        assert answer["id"] == self._asked and "error" not in answer, answer
        return answer["result"]

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self._process.stdin.flush()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while line := stream.readline():
            if not line.startswith(b"Content-Length:"):
                continue
            length = int(line.partition(b":")[2])
            while stream.readline().strip():
                pass
            self._take(json.loads(stream.read(length)))

    def _take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            self._answers.put(message)
        elif method == "textDocument/publishDiagnostics":
            self._reports.put(message["params"])
        elif "id" in message:  # the server asks: for settings, or to be told of files
            wanted = message["params"].get("items", []) if method == "workspace/configuration" else None
            result = None if wanted is None else [SETTINGS.get(one.get("section", "")) for one in wanted]
            self._send({"id": message["id"], "result": result})


def _at(file: Path, line: int, column: int) -> dict[str, Any]:
    return {"textDocument": {"uri": file.as_uri()}, "position": {"line": line, "character": column}}
