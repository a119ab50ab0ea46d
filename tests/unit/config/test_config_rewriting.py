"""Edits of YAML text: only the edited nodes change, whatever the style; what can't be done is refused."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.config.edits import Edits
from mzplan.config.yaml.text_edits import CantRewriteError, rewrite
from mzplan.model.address import Address
from mzplan.model.resources import PropertyEdit, edited
from tests.unit.config_files import write

BLOCK = """\
# at the top

connections:
  other: {type: kafka, brokers: [o:1]}   # untouched

  k:
      type: kafka        # four deep
      brokers:
      - "a:1"            # the first
      # in between
      - 'b:1'
      security: {protocol: SASL_SSL, sasl: {mechanism: PLAIN}}   # in one line
      description: |
        several
        lines

  last:
    type: kafka
    brokers: [
      a:1,   # one
      b:1,   # two
    ]
  flow: {
    type: postgres,
    host: h,     # the host
    port: 5433,  # the port

    # about the database
    database: d, # d
    user: u, application_name: a,  # both
    sslmode: require  # the last
  }
  end: {type: postgres, host: h, # the host
      port: 5433}
  items:
    brokers:
    - a:1  # first
    - b:2  # second
    - "c:3" # third
  two: {brokers: [
    a:1,  # first
    b:2   # second
    ]}
"""
OTHER = "  other: {type: kafka, brokers: "
SECURITY = "      security: {protocol: SASL_SSL, sasl: {mechanism: PLAIN}}"
FIRST, THIRD = '      - "%s:1"            # the first', '    - "%s" # third'
USER, LAST = "    user: u, application_name: a", "    sslmode: require  # the last"
HOST = "  end: {type: postgres, host: h"


def put(path: str, value: Any) -> PropertyEdit:
    return PropertyEdit(path=tuple(path.split(".")), value=value)


def drop(path: str) -> PropertyEdit:
    return PropertyEdit(path=tuple(path.split(".")), remove=True)


@pytest.mark.parametrize(
    ("name", "edits", "lines"),
    [
        ("k", [put("brokers", ["c:1"])], [f"-{FIRST % 'a'}", f"+{FIRST % 'c'}", "-      - 'b:1'"]),
        ("k", [put("brokers", ["x:1", "a:1", "b:1"])], ['+      - "x:1"']),
        ("k", [put("brokers", ["a:1", "b:1", "yes"])], ['+      - "yes"']),
        ("k", [drop("security.protocol"), drop("security.sasl.mechanism")], [f"-{SECURITY}   # in one line"]),
        ("k", [drop("nothing.there")], []),
        ("last", [put("brokers", ["a:1", "b:1", "c:1"])], ["+      c:1,"]),
        ("last", [put("tls.mode", "x: y")], ["+    tls:", '+      mode: "x: y"']),
        (
            "other",
            [put("brokers", ["o:1", "p:2"]), put("flag", True)],
            [f"-{OTHER}[o:1]}}   # untouched", f"+{OTHER}[o:1, p:2], flag: true}}   # untouched"],
        ),
        # Comments of neighbours in a flow mapping
        ("flow", [drop("port")], ["-    port: 5433,  # the port"]),
        ("flow", [drop("application_name")], [f"-{USER},  # both", "+    user: u, # both"]),
        ("flow", [drop("sslmode")], [f"-{USER},  # both", f"-{LAST}", f"+{USER}  # both"]),
        ("end", [drop("port")], [f"-{HOST}, # the host", "-      port: 5433}", f"+{HOST} # the host", "+}"]),
        # Comments of items
        (
            "items",
            [put("brokers", ["b:2", "d:4"])],
            ["-    - a:1  # first", f"-{THIRD % 'c:3'}", f"+{THIRD % 'd:4'}"],
        ),
        ("two", [put("brokers", ["b:2"])], ["-    a:1,  # first"]),
        (
            "two",
            [put("brokers", ["a:1"])],
            ["-    a:1,  # first", "-    b:2   # second", "+    a:1  # first"],
        ),
    ],
)
def test_an_edit_changes_only_its_lines(name: str, edits: list[PropertyEdit], lines: list[str]) -> None:
    after = rewrite(BLOCK, "connections", name, edits)
    changed = difflib.unified_diff(BLOCK.splitlines(), after.splitlines(), lineterm="", n=0)
    assert [line for line in changed if line[:3] not in ("---", "+++") and line[:2] != "@@"] == lines


@pytest.mark.parametrize(
    ("newline", "end", "mark"),
    [("\n", False, b""), ("\r\n", True, b"\xef\xbb\xbf"), ("\r\n", False, b""), ("\r", True, b"")],
)
def test_line_ends_and_a_byte_order_mark_stay(tmp_path: Path, newline: str, end: bool, mark: bytes) -> None:
    text = "connections:\n  ü: {type: kafka, brokers: [o:1]}\n  k:\n    type: kafka\n    brokers:\n    - a:1"
    file = mark + (text + "\n" * end).replace("\n", newline).encode()
    write(tmp_path, {"c.yaml": file})
    edits = Edits(str(tmp_path))
    edits.edit(Address("connection", "k"), [put("brokers", ["a:1", "b:1"]), put("security.protocol", "SSL")])
    (found,) = edits.file_edits
    added = "\n    - b:1\n    security:\n      protocol: SSL" + "\n" * end
    assert found.after == mark + (text + added).replace("\n", newline).encode()
    assert found.before == file and found.path == "c.yaml"


ANCHORED = """\
connections:
  z: {type: kafka, security: &sec0 {protocol: SSL}}
  d: &d {type: kafka, brokers: &b [a:1], security: {protocol: SSL}}
  m: {<<: *d, description: mine}
  same: *d
  lone: {type: kafka, brokers: &unused [a:1]}
  uses: {type: kafka, brokers: *b}
  nested: {type: kafka, brokers: [a:1], security: *sec0}
"""


@pytest.mark.parametrize(
    ("name", "edit", "outcome"),
    [
        ("d", put("brokers", ["x:1"]), "its aliases would also change"),
        ("m", put("brokers", ["x:1"]), "{<<: *d, description: mine, brokers: [x:1]}"),
        ("m", put("security.ssl.ca", "x"), "would be lost"),
        ("m", drop("security.protocol"), "comes from an alias or a merge"),
        ("same", put("brokers", ["x:1"]), "comes from an alias or a merge"),
        ("lone", put("brokers", ["x:1"]), "brokers: &unused [x:1]"),
        ("uses", put("brokers", ["x:1"]), "brokers: [x:1]"),
        ("nested", put("security.protocol", "PLAINTEXT"), "security is an alias"),
    ],
)
def test_anchors_aliases_and_merges(name: str, edit: PropertyEdit, outcome: str) -> None:
    try:
        after = rewrite(ANCHORED, "connections", name, [edit])
    except CantRewriteError as problem:
        assert outcome in problem.detail
    else:
        line = next(line for line in after.splitlines() if line.startswith(f"  {name}:"))
        assert outcome in line
        others = [one for one in ANCHORED.splitlines() if not one.startswith(f"  {name}:")]
        assert [one for one in after.splitlines() if not one.startswith(f"  {name}:")] == others


@pytest.mark.parametrize(
    ("edit", "after"),
    [
        (put("aws.x", "y"), '{"type": "kafka", "brokers": ["a:1"], "port": 5, "aws": {"x": "y"}}'),
        (put("port", "x"), '{"type": "kafka", "brokers": ["a:1"], "port": "x"}'),
        (drop("type"), '{"brokers": ["a:1"], "port": 5}'),
    ],
)
def test_json_stays_json(edit: PropertyEdit, after: str) -> None:
    around = '{"connections": {"k": BODY}}'
    text = around.replace("BODY", '{"type": "kafka", "brokers": ["a:1"], "port": 5}')
    assert rewrite(text, "connections", "k", [edit]) == around.replace("BODY", after)


KEYS = st.sampled_from(["alpha", "beta", "gamma"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "), max_size=12)
SCALARS = TEXTS | st.integers(-9, 9) | st.booleans()
VALUES = SCALARS | st.lists(TEXTS, min_size=1, max_size=4)
BODIES = st.dictionaries(KEYS, VALUES | st.dictionaries(KEYS, VALUES, min_size=1, max_size=3), max_size=3)


@settings(max_examples=150, deadline=None)
@given(body=BODIES, key=KEYS, below=KEYS | st.none(), value=VALUES, remove=st.booleans(), flow=st.booleans())
def test_any_edit_of_any_plain_text(
    body: dict[str, Any], key: str, below: str | None, value: Any, remove: bool, flow: bool
) -> None:
    data = {"connections": {"first": {"a": "x"}, "k": {"type": "t", **body}, "z": {"b": ["y"]}}}
    style: dict[str, Any] = {"sort_keys": False, "default_flow_style": flow or None, "allow_unicode": True}
    text = "# above\n" + yaml.safe_dump(data, **style)
    path = (key,) if below is None else (key, below)
    edit = PropertyEdit(path=path, remove=remove, value=None if remove else value)
    try:
        after = rewrite(text, "connections", "k", [edit])
    except CantRewriteError as problem:
        assert below is not None and not isinstance(body.get(key), dict)
        assert "not written as a mapping" in problem.detail
        return
    assert after.startswith("# above\n")
    found = yaml.safe_load(after)
    wanted = edited(data["connections"]["k"], [edit])
    assert found["connections"]["first"] == {"a": "x"} and found["connections"]["z"] == {"b": ["y"]}
    assert found["connections"]["k"] == wanted
