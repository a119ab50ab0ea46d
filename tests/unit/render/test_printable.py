"""What draws nothing, or reorders what is drawn, is shown as an escape wherever others' text is shown."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import DriftItem, Pending
from mzplan.model.words import safe
from mzplan.plan import build_plan
from mzplan.render.diagnostics import diagnostics_to_json, render_diagnostics
from mzplan.render.html import element
from mzplan.render.markdown import render_drift_markdown, render_plan_markdown
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_page import render_plan_page
from mzplan.render.plan_text import render_plan
from mzplan.render.text import safe_json
from tests.unit.cli_runs import mzplan, write
from tests.unit.small_projects import at, commit, kafka, shop

# Of Unicode's PropList.txt (17.0), from which DerivedCoreProperties.txt derives Default_Ignorable_Code_Point:
# Other_Default_Ignorable_Code_Point + Variation_Selector + Cf, without White_Space, FFF9..FFFB, 13430..13440
# and Prepended_Concatenation_Mark.
OTHERS = "34F 115F-1160 17B4-17B5 2065 3164 FFA0 FFF0-FFF8 E0000 E0002-E001F E0080-E00FF E01F0-E0FFF"
SELECTORS = "180B-180D 180F FE00-FE0F E0100-E01EF"
SHOWN = "600-605 6DD 70F 890-891 8E2 FFF9-FFFB 110BD 110CD 13430-13440"
UNSEEN = "\ufe0f\U000e0100\u034f\u115f\u3164\uffa0\u180b\u200b\u202e"


def points(ranges: str) -> set[int]:
    found: set[int] = set()
    for one in ranges.split():
        first, _, last = one.partition("-")
        found |= set(range(int(first, 16), int(last or first, 16) + 1))
    return found


def test_every_code_point_that_is_ignored_by_default_is_escaped() -> None:
    formats = {code for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf"}
    ignored = points(OTHERS) | points(SELECTORS) | formats - points(SHOWN)
    assert len(ignored) == 4174  # of Unicode 17.0: what DerivedCoreProperties.txt counts
    raw = [hex(code) for code in sorted(ignored) if safe(chr(code)) == chr(code)]
    assert raw == []
    letters = "plain ünïcode ⟳ 日本語 한국어 ᠮᠣᠩᠭᠣᠯ ខ្មែរ ❤ é e\u0301"
    assert safe(letters) == letters


def test_every_output_escapes_unseen_characters() -> None:
    text = f"a{UNSEEN}\x1b[5m\x1b]0;title\x07\x9b31mb"
    before = commit(shop())
    plan = build_plan(shop(k=kafka(brokers=[f"{text}:1"], description=text, options={text: text})), before)
    plan = replace(
        plan,
        diagnostics=(Diagnostic(severity="warning", code="MZ001", summary=text, detail=text, hint=text),),
        pending=(Pending(address=at("source.orders"), condition="failed", reason=text),),
        drift=(drift := DriftItem(address=text, kind="foreign-query", detail=text),),
    )
    shown = [
        render_plan(plan),
        render_plan(plan, colour=True),
        render_plan_markdown(plan),
        render_drift_markdown("shop", 1, [drift]),
        render_plan_page(plan),
        render_diagnostics(plan.diagnostics, False),
        str(element("p", text, title=text)),
        documents := safe_json(json.dumps(plan_to_json(plan), ensure_ascii=False)),
        safe_json(json.dumps(diagnostics_to_json(plan.diagnostics), ensure_ascii=False)),
    ]
    assert "\x1b[36m⟳\x1b[0m" in shown[1]  # its own colours
    for one in shown:
        assert not set(f"{UNSEEN}\x07\x9b") & set(one) and "\x1b[5m" not in one and "\x1b]" not in one
        for char in UNSEEN:
            assert any(escape in one for escape in (safe(char), json.dumps(char)[1:-1])), char
    assert json.loads(documents) == json.loads(json.dumps(plan_to_json(plan)))


def test_every_command_escapes_unseen_characters(tmp_path: Path) -> None:
    folder, char = write(tmp_path / "p"), UNSEEN
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace("a:9092", f"a{char}:9092", 1))
    said = "\n".join(mzplan(folder, name).out for name in ("validate", "plan", "show", "graph"))
    pipeline.write_text(f"x{char}: 1\nconnections: {{k{char}: {{type: 'kafka{char}', y{char}: 1}}}}\n")
    for arguments in (("plan",), ("plan", "--json"), ("alter", f"ALTER CONNECTION k{char} SET X = '{char}'")):
        ran = mzplan(folder, *arguments)
        assert ran.code
        said += ran.out + ran.err
    assert not set(UNSEEN) & set(said)
