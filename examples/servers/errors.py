"""The one exception of this package."""


class ServerError(Exception):
    """A server can't be had, started or ended.

    ``summary`` is one line: what, why, and how to mend it. ``detail`` is what the server or the download
    itself said last; it may be empty.
    """

    def __init__(self, summary: str, detail: str = "") -> None:
        super().__init__(f"{summary}\n{detail}" if detail else summary)
        self.summary = summary
        self.detail = detail
