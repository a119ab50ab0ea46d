"""Golden files of a plan with previews (`plan --preview`): `with_previews.*` in `previewed/`.

`python -m pytest tests/cases --update-golden` writes them, for review.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mzplan.model.previews import ChangePreview, PreviewedRows
from mzplan.model.row_comparison import RowsOfBoth
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_page import render_plan_page
from mzplan.render.plan_text import render_plan
from tests.cases.test_cases import FOLDER, check, planned
from tests.unit.small_projects import at

CASE = FOLDER / "previewed"
NUMBER = pa.decimal128(12, 2)
SPENDING = pa.schema([("customer", pa.string()), ("orders", pa.int64()), ("spent", NUMBER)])
LARGE = pa.schema([("id", pa.int64()), ("amount", NUMBER)])


def rows(schema: pa.Schema, *values: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema=schema)


SPENT = RowsOfBoth(
    compared=tuple(SPENDING.names),
    keys=("customer",),
    same=1200,
    only_before=1,
    only_after=0,
    changed=7,
    before_rows=rows(SPENDING, ("***", 1, Decimal("1.00"))),
    after_rows=rows(SPENDING),
    changed_before=rows(SPENDING, ("***", 2, Decimal("14.00")), ("***", 3, None)),
    changed_after=rows(SPENDING, ("***", 1, Decimal("9.00")), ("***", 2, Decimal("8.50"))),
)
BIG = PreviewedRows(
    columns=(("id", "BIGINT"), ("amount", "DECIMAL(12,2)")),
    keys=(),
    rows=rows(LARGE, (3, Decimal("120.00")), (9, Decimal("1000.50"))),
    count=12,
)
PREVIEWS = {
    at("source.orders"): ChangePreview(violations={"positive": 3}, checked=1214),
    at("view.large"): ChangePreview(rows=BIG),
    at("view.spending"): ChangePreview(rows=SPENT, masked=("customer",)),
    at("sink.out"): ChangePreview(
        problem="The collection of source.orders is still empty. None of its steps is committed."
    ),
}


def test_previews_look_like_this(pytestconfig: pytest.Config) -> None:
    plan, _ = planned(CASE)
    page = render_plan_page(plan, PREVIEWS)
    document = plan_to_json(plan, previews=PREVIEWS)
    previews = {change["address"]: change["preview"] for change in document["changes"]}
    for kind, text in {
        "txt": render_plan(plan, previews=PREVIEWS),
        "md": render_plan_markdown(plan, previews=PREVIEWS),
        "json": json.dumps(previews, indent=2, ensure_ascii=False) + "\n",
        "html": page[page.index("<h2>Also in this plan") : page.index("</main>")] + "\n",
    }.items():
        check(CASE / f"with_previews.{kind}", text, pytestconfig)
