"""A secret that someone wrote into a file is refused, and never shown: whatever else is wrong around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mzplan.config.locations import locate
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.render.diagnostics import render_diagnostics
from tests.unit.cli_runs import mzplan
from tests.unit.config_files import PROJECT, SHOP, all_text, brief, errors, write

SECRET = "hunter2-Tr0ub4dor"
FLOW = f"security: {{protocol: SASL_SSL, sasl: {{mechanism: PLAIN, username: app, password: {SECRET}}}}}"


def kafka(rest: str) -> str:
    return f"connections:\n  k:\n    type: kafka\n    brokers: ['a:1']\n    {rest}\n"


def outputs(found: list[Diagnostic], folder: Path) -> str:
    """Every form in which the diagnostics leave the program."""
    rendered = [render_diagnostics(found, colour, str(folder)) for colour in (True, False)]
    error, document = MzplanError(found), json.dumps([d.to_json() for d in found])
    return "\n".join([all_text(found), document, *rendered, str(error), repr(error)])


# Each writes the secret out somewhere, most with another mistake on the same line.
LEAKS = {
    "block": SHOP.replace('"${env:PG_PASSWORD}"', SECRET),
    "flow": kafka(FLOW),
    "a wrong value beside it": kafka(FLOW.replace("PLAIN", "PLANE")),
    "an unknown key beside it": kafka(FLOW.replace("username", "usrname")),
    "the wrong type of connection": kafka(FLOW).replace("type: kafka", "type: kafak"),
    "no type": kafka(FLOW).replace("    type: kafka\n", ""),
    "one line": f"connections: {{k: {{type: kafak, password: {SECRET}}}}}\n",
    "not in a section": f"k: {{type: kafka, password: {SECRET}}}\n",
    "a wrong section": f"connection: {{k: {{type: kafka, key: {SECRET}}}}}\n",
    "at the wrong place": kafka(f"password: {SECRET}"),
    "misspelled": kafka(FLOW.replace("password", "pasword")),
    "a mapping under an unknown key": kafka(f"sasl: {{a: {{b: {SECRET}}}, mechanism: PLAIN}}"),
    "a list": kafka(FLOW.replace(SECRET, f"[{SECRET}]")),
    "a key in lines": kafka(f"security:\n      ssl:\n        ca: a\n        key: |\n          {SECRET}\n"),
    "an option": kafka(f'options: {{"sasl.jaas.config": "{SECRET}", "linger.ms": [1]}}'),
    "an option by a bad name": kafka(f'options: {{"SSL Key": "{SECRET}"}}'),
    "twice": kafka(FLOW + f"\n    security: {{sasl: {{password: {SECRET}}}}}"),
    "an alias": kafka(FLOW.replace(SECRET, f"&pw {SECRET}") + "\n    description: *pw\n    x: 1"),
    "as a name": kafka(FLOW) + f"sources: {{x: {{connection: {SECRET}, topic: t}}}}\n",
    "partly a reference": kafka(FLOW.replace(SECRET, f'"{SECRET}${{env:X}}"')),
    "a malformed reference": kafka(FLOW.replace(SECRET, f'"{SECRET}${{env.X}}"')),
    "an unknown variable": kafka(FLOW.replace(SECRET, f'"{SECRET}${{var.nope}}"')),
    "a tag": kafka(FLOW.replace(SECRET, f"!vault {SECRET}")),
    "broken before": kafka(FLOW.replace("app,", "app: x: y,")),
    "broken after": kafka(FLOW + " ]"),
    "an open quote": kafka(f"password: '{SECRET}"),
    "an open quote over lines": kafka(f'password: "{SECRET}\n      {SECRET}\n  {SECRET}'),
    "a colon in it": kafka(f"password: {SECRET}: {SECRET}"),
    "a line of its own": kafka(f"password:\n      {SECRET}: {SECRET}: x"),
    "an indented key": kafka(f"key: |\n      {SECRET}\n     {SECRET}: *x: ["),
    "not UTF-8": kafka(FLOW).encode() + b"    \xff password: " + SECRET.encode(),
    "a control character": kafka(FLOW + " \x01"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAKS)
def test_a_secret_is_never_shown(name: str, tmp_path: Path) -> None:
    found = errors(tmp_path, {"a.yaml": LEAKS[name]})
    assert found
    shown = outputs(found, tmp_path)
    # A part of it would be too much.
    assert not any(part in shown for part in SECRET.split("-"))


def test_a_secret_in_the_default_of_a_variable_is_never_shown(tmp_path: Path) -> None:
    for name, rest in (("pg_password", "x: 1"), ("v", "x: 1"), ("v", "description: [1]")):
        variables = f"variables: {{{name}: {{default: {SECRET}, {rest}}}}}\n"
        shop = SHOP.replace("${env:PG_PASSWORD}", f"${{var.{name}}}")
        found = errors(tmp_path, {"mzplan.yaml": PROJECT + variables, "a.yaml": shop})
        assert len(found) == 2 and SECRET not in outputs(found, tmp_path)


def test_a_secret_of_the_state_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres = "postgres, host: h, database: d, user: u, password: '%s'"
    for state in (postgres, "object-store, url: 's3://bucket/shop', secret_access_key: '%s'"):
        write(tmp_path, {"mzplan.yaml": f"{PROJECT}state: {{backend: {state % SECRET}}}\n"})
        ran = mzplan(tmp_path, "state", "list")
        assert ran.code == 1 and "MZ016" in ran.err and SECRET not in ran.err + ran.out
    monkeypatch.delenv("PW", raising=False)
    write(tmp_path, {"mzplan.yaml": f"{PROJECT}state: {{backend: {postgres % '${env:PW}'}}}\n"})
    assert mzplan(tmp_path, "state", "list", "--json").error()["code"] == "MZ056"


FROM_OUTSIDE: dict[str, str | bytes] = {
    "mzplan.yaml": PROJECT + "variables: {pw: {}, n: {default: 1}}\n",
    "a.yaml": SHOP.replace("${env:PG_PASSWORD}", "${var.pw}").replace("host: localhost", "host: ${var.pw}"),
}


def test_a_variable_is_no_way_around_secret_references(tmp_path: Path) -> None:
    found = errors(tmp_path, FROM_OUTSIDE, variables={"pw": SECRET})
    assert brief(found) == ['a.yaml:8:15 MZ016 Secret written out in "password"']
    assert SECRET not in outputs(found, tmp_path)


@pytest.mark.parametrize(
    ("variables", "file"),
    [
        ({"pw": f"{SECRET}${{env.X}}"}, ""),
        ({"pww": SECRET, "pw": "${env:X}"}, ""),
        ({}, f"pww: {SECRET}\npw: [{SECRET}]\n"),
        ({}, f"pw: {SECRET}: x\n"),
    ],
)
def test_the_value_of_a_variable_is_never_shown(tmp_path: Path, variables: dict[str, str], file: str) -> None:
    (tmp_path / "wrong.vars.yaml").write_text(file)
    outside = {"variables": variables, "variable_files": [tmp_path / "wrong.vars.yaml"]}
    found = errors(tmp_path / "shop", FROM_OUTSIDE, **outside)
    assert found and SECRET not in outputs(found, tmp_path)


def test_a_secret_written_out_is_an_error_at_its_place(tmp_path: Path) -> None:
    (found,) = errors(tmp_path, {"a.yaml": LEAKS["block"]})
    assert brief([found]) == ['a.yaml:8:15 MZ016 Secret written out in "password"']
    assert found.excerpt == "    password: " + "*" * len(SECRET)
    assert "${env:PASSWORD}" in found.hint and "${file:PATH}" in found.hint
    assert found.address == Address("connection", "shop_pg")


def test_references_may_be_shown(tmp_path: Path) -> None:
    cluster = kafka(FLOW.replace(SECRET, '"${file:/run/secrets/kafka}"'))
    options = "    options: {ssl.key.password: '${env:KEY}', linger.ms: 5}\n"
    files: dict[str, str | bytes] = {"a.yaml": SHOP, "b.yaml": cluster + options}
    assert errors(tmp_path, files) == []
    found = errors(tmp_path, {**files, "a.yaml": kafka(FLOW.replace(SECRET, '"${env:A}", x: 1'))})
    assert any("${env:A}" in (d.excerpt or "") for d in found), "references may be seen"


def test_a_located_diagnostic_masks_secrets(tmp_path: Path) -> None:
    assert errors(tmp_path, {"a.yaml": LEAKS["flow"]})
    diagnostic = Diagnostic(code="MZ050", summary="x", address=Address("connection", "k"))
    placed = locate(tmp_path, diagnostic, ("security", "sasl", "username"))
    assert placed.range is not None and SECRET not in outputs([placed], tmp_path)
