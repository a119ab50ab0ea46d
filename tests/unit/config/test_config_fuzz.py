"""Any text gives diagnostics, never a traceback; any spelling of a project is the same project."""

from __future__ import annotations

import contextlib
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mzplan.config import load_configuration, load_project
from mzplan.config.yaml.events import ScalarError, resolve
from mzplan.model.diagnostics import MzplanError
from mzplan.model.words import nearest
from mzplan.render.diagnostics import render_diagnostics
from mzplan.schema.columns import DdlError, canonical, parse_columns
from mzplan.schema.sql.expressions import parse_select, parse_where
from tests.unit.config_files import PROJECT, SHOP, write

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
# What YAML and mzplan give a meaning to, so that most texts get past the first character.
WORDS = (
    "connections sources sinks type kafka postgres files brokers topic format schema select where key mode "
    "upsert ${var.env} ${env:X} ${ ${var.x} } &a *a << !!str !x --- ... | > - ? : , [ ] { } ' \" # % @ ` \\ "
    "~ null true 0x1f 1e5 .inf .nan -1 yes 日本"
)
SIGNS = ["\u202e", "\ud7ff", "\x85", "\u2028", "\ufeff", "\x07", "\t", "\n", "\n  ", "\n    ", " "]
SIGNS += ["\r\n", ": ", "- "]
PIECES = st.sampled_from([*WORDS.split(), *SIGNS])
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=60).map("".join)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | PIECES | st.text(max_size=8)
    | st.sampled_from(["shop_kafka", "orders", "shop_pg", "lake", "local", "json", "append", "${env:A}"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


def check(files: dict[str, str | bytes], **options: Any) -> None:
    """Load. Anything but an MzplanError fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        for load in (load_project, load_configuration):
            try:
                load(folder, **options)
            except MzplanError as error:
                for diagnostic in error.diagnostics:
                    assert diagnostic.summary and diagnostic.code.startswith("MZ")
                    if diagnostic.range is not None:
                        assert diagnostic.range.line >= 1 and diagnostic.range.column >= 1
                text = render_diagnostics(error.diagnostics, False, folder)
                text.encode("utf-8")
                assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text


@FUZZ
@given(TEXTS | st.binary(max_size=200))
@example("a: &a\n<<: *a")
@example("? ? a")
@example("<<: {<<: {a: b}}")
@example("a: !!float ''")
@example("!!map []")
@example("!!seq {}")
@example("- &a a\n- *a")
@example("%YAML 9.9\n---\n")
@example("sources:\n  x: {connection: 0x}")
@example('variables: {"": {default: null}}')
@example('variables: {"": {"": {default: 1}}, default: {}}')
def test_anything_as_a_file(content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    check({"a.yaml": data})
    check({"mzplan.yaml": data})
    check({"mzplan.yaml": PROJECT.encode() + data})


@FUZZ
@given(st.data())
def test_a_project_with_characters_changed(data: st.DataObject) -> None:
    text = SHOP + "    select: [id, 'amount * 2 AS twice']\n    where: amount > 0\n"
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + data.draw(PIECES | st.text(max_size=3)) + text[end:]
    check({"a.yaml": text.encode("utf-8", "surrogatepass")}, variables={"env": "x"})


@FUZZ
@given(st.data())
def test_a_project_with_values_changed(data: st.DataObject) -> None:
    more = "variables: {env: {default: dev}}\ninstances: {local: {type: dry}}\n"
    project = yaml.safe_load(PROJECT + more + SHOP)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(list(_places(project))))
        match data.draw(st.sampled_from(["change", "remove", "rename"])):
            case "change":
                container[key] = data.draw(VALUES)
            case "remove":
                del container[key]
            case "rename" if isinstance(container, dict):
                container[data.draw(st.text(max_size=5) | PIECES)] = container.pop(key)
    width = data.draw(st.sampled_from([30, 500]))
    text = yaml.safe_dump(project, allow_unicode=True, sort_keys=False, width=width)
    check({"mzplan.yaml": text.encode("utf-8", "surrogatepass")})


def _places(value: Any) -> Any:
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


@FUZZ
@given(st.dictionaries(st.sampled_from(["env", "x", "y"]), TEXTS, max_size=2), TEXTS)
def test_any_variables(variables: dict[str, str], file: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "variables"
        path.write_bytes(file.encode("utf-8", "surrogatepass"))
        settings = PROJECT + "variables: {env: {default: dev}, x: {}}\n"
        shop = SHOP.replace("localhost:", "${var.env}:").replace("database: shop", "database: ${var.x}")
        files: dict[str, str | bytes] = {"mzplan.yaml": settings, "a.yaml": shop}
        check(files, variables=variables, variable_files=[path])


SQL = "id amount sum ( ) , * + - AS x CASE WHEN THEN END OVER SELECT FROM 'a' `b` 1 . [ ] -> IN NOT"
DDL = "id INT BIGINT DECIMAL ( 10 , 2 ) ARRAY < > MAP STRUCT : NOT NULL COMMENT 'x' `a b`"


def phrases(words: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(words.split()), max_size=15).map(" ".join)


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=40) | TEXTS | phrases(SQL) | phrases(DDL))
def test_any_text_as_an_expression_a_schema_or_a_scalar(text: str) -> None:
    with contextlib.suppress(ScalarError):
        resolve(text)
    for parsed in (parse_select(text), parse_where(text)):
        assert 0 <= parsed.offset <= len(text)
    nearest(text, ["kafka", "postgres", text + "x"])
    try:
        columns = parse_columns(text)
    except DdlError as failure:
        assert 0 <= failure.offset <= len(text) and len(str(failure)) < 1000
        assert canonical(text) == text
    else:
        assert canonical(canonical(text)) == canonical(text)
        assert parse_columns(canonical(text)) == columns


@pytest.mark.parametrize("seed", range(10))
def test_any_spelling_of_the_same_project_is_the_same(seed: int, tmp_path: Path) -> None:
    """In one file or many, flow or block, any quotes, any width, any order of files and keys."""
    shuffle = random.Random(seed)
    files: dict[str, str | bytes] = {}
    for section, resources in yaml.safe_load(SHOP).items():
        for name in shuffle.sample(list(resources), len(resources)):
            keys = shuffle.sample(list(resources[name].items()), len(resources[name]))
            files[f"{shuffle.choice('abcdef')}/{shuffle.randrange(10**6)}.yml"] = yaml.safe_dump(
                {section: {name: dict(keys)}},
                default_flow_style=shuffle.choice([None, True, False]),
                default_style=shuffle.choice([None, "'", '"', "|", ">"]),
                width=shuffle.choice([20, 80, 1000]),
                line_break=shuffle.choice(["\n", "\r\n", "\r"]),
                indent=shuffle.choice([2, 4, 8]),
                sort_keys=False,
            ).encode()
    plain = load_configuration(write(tmp_path / "a", {"a.yaml": SHOP}))
    again = load_configuration(write(tmp_path / "b", files))
    assert list(again.resources) == list(plain.resources)
    for address, resource in again.resources.items():
        assert list(resource.body.items()) == list(plain.resources[address].body.items())
