"""The log lines of a query by the runner on this machine, as `mzplan logs` reads them."""

from __future__ import annotations

from collections import deque

from mzplan.features.ui.error_page import linked
from mzplan.features.ui.graph_page import resource_link
from mzplan.features.ui.overview import Overview
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.operations.logs import read_logs
from mzplan.operations.project import Project
from mzplan.render.diagnostics import render_diagnostics
from mzplan.render.html import Content, element
from mzplan.render.text import cut

_MAX_ENTRIES = 200  # the newest entries; `mzplan logs` has all
_MAX_CHARACTERS = 8000  # characters of an entry


def logs_page(project: Project, overview: Overview, address: Address) -> Content:
    """Return the newest entries, the last one at the bottom, or why there is no log here."""
    state, head = overview.state, element("h1", "Logs of ", resource_link(address))
    try:
        entries = deque(read_logs(project, state, [state.resources[address]], None), maxlen=_MAX_ENTRIES)
    except MzplanError as problem:
        return [head, element("pre", linked(render_diagnostics(problem.diagnostics, False)), class_="box")]
    if not entries:
        return [head, element("p", "Its runner has logged nothing about it.", class_="quiet")]
    text = "\n".join(cut(entry.text, _MAX_CHARACTERS) for entry in entries)
    more = element("p", "All of them: ", element("code", f"mzplan logs {address}"), class_="quiet")
    return [head, element("pre", linked(text), class_="box"), more]
