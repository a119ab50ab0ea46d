"""A headless Chromium, and Mermaid to draw with. `make nightly` says first what of it is missing
(tools/prerequisites.sh); pytest by hand skips what it can't draw, except in CI: there it is an error."""

from __future__ import annotations

import html
import shutil
import subprocess
from pathlib import Path

from tests import programs

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
PAGE = """<!doctype html><meta charset="utf-8"><body>{graphs}
<script src="mermaid.tiny.js"></script>
<script>
mermaid.initialize({{startOnLoad: false, securityLevel: "strict"}});
(async () => {{
  for (const [number, place] of [...document.querySelectorAll("pre")].entries()) {{
    const text = place.textContent;
    try {{
      place.outerHTML = `<section>${{(await mermaid.render("g" + number, text)).svg}}</section>`;
    }} catch (problem) {{
      place.outerHTML = `<section class="broken">${{problem}}</section>`;
    }}
  }}
  document.title = "drawn";
}})();
</script>"""


def missing(*, npm: bool = False) -> str | None:
    """Return what this machine is missing, in words; with `npm`, npm as well."""
    if not any(map(shutil.which, BROWSERS)):
        return "no Chromium is installed"
    return "npm is not installed" if npm and not shutil.which("npm") else None


def browser() -> str:
    """The path of an installed Chromium."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise RuntimeError("No Chromium is installed (Debian, Ubuntu: apt-get install chromium).")
    return found


def mermaid(folder: Path) -> Path:
    """Mermaid's one file, installed by npm as the lock file says."""
    return programs.npm_modules(HERE, folder, "Mermaid") / "@mermaid-js" / "tiny" / "dist" / "mermaid.tiny.js"


def drawn(graphs: list[str], library: Path, folder: Path) -> list[str]:
    """Each graph as the browser has drawn it: the inside of a `<section>`."""
    shutil.copy(library, folder / "mermaid.tiny.js")
    page = folder / "page.html"
    shown = "\n".join(f"<pre>{html.escape(graph)}</pre>" for graph in graphs)
    page.write_text(PAGE.format(graphs=shown), encoding="utf-8")
    done = subprocess.run(
        [
            browser(),
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=60000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "<title>drawn</title>" in done.stdout, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    pictures = done.stdout.partition("<script")[0]
    return [part.partition("</section>")[0] for part in pictures.split("<section")[1:]]
