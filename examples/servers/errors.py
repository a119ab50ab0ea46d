"""The only exception of this package."""


class ServerError(Exception):
    """A server can't be downloaded, started or stopped.

    ``summary``: one line with the problem, its cause and its fix.
    ``detail``: the last output of the server or of the download; it may be empty.
    """

    def __init__(self, summary: str, detail: str = "") -> None:
        super().__init__(f"{summary}\n{detail}" if detail else summary)
        self.summary = summary
        self.detail = detail
