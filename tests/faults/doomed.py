"""A project whose runners a test starts, and kills or freezes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from examples.servers.process import descendants_of, send
from tests.support import Project


class Doomed:
    """Runners of a project that were started here."""

    def __init__(self, project: Project):
        self.project = project
        self.started: list[subprocess.Popen[bytes]] = []

    def runner(self, failpoint: str = "") -> subprocess.Popen[bytes]:
        """A runner, which dies at the failpoint."""
        log = (self.project.folder / "runner.log").open("ab")
        command = [
            sys.executable,
            "-m",
            "mzplan",
            "-C",
            str(self.project.folder),
            "run",
            "--instance",
            "local",
        ]
        environment = {**os.environ, **self.project.environment, "MZPLAN_FAILPOINT": failpoint}
        self.started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        return self.started[-1]

    def close(self) -> None:
        """End them all."""
        self.project.down()
        for process in self.started:
            if process.poll() is None:
                for pid in (*descendants_of(process.pid), process.pid):
                    send(pid, signal.SIGKILL)
            process.wait(30)
