"""The user's functions: from a package or a committed text; told by file and line when they fail."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from mzplan.connectors.admission import GuardedSecrets
from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.user_code import packages
from mzplan.connectors.user_code.failures import failed_in_task
from mzplan.connectors.user_code.loading import load_function, load_functions
from mzplan.connectors.user_code.values import CallError, value_of
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import Description
from mzplan.schema.user_functions import FunctionName, names_in
from mzplan.secrets.policy import Policy, read_policy
from mzplan.secrets.references import Secrets
from mzplan.spark.failures import of_messages
from mzplan.spark.function_releases import release_of, require_release, take_release
from tests.unit.small_projects import at

FILE = "transforms/enrich.py"
CODE = textwrap.dedent(
    """
    from dataclasses import dataclass

    SUFFIX = "!"

    @dataclass
    class Word:
        text: "str"

        def loud(self) -> str:
            return self.text.upper() + SUFFIX

    def loud(text):
        return Word(text).loud()

    def fails(**inputs):
        raise ValueError(f"no {sorted(inputs)}")
    """
)


def description(function: str, code: str = "", digest: str = "1:a", **body: Any) -> Description:
    return Description(
        address=at("view.enriched"),
        id="abc",
        generation=1,
        digest=digest,
        type="function",
        body={
            "function": function,
            "reads": ["orders"],
            "schema": "id BIGINT",
            **({"code": code} if code else {}),
            **body,
        },
    )


def query(folder: Path, function: str, code: str = "", **more: Any) -> ResolvedQuery:
    return resolve(description(function, code, **more), Secrets(str(folder)), str(folder), str(folder / "w"))


def problem(folder: Path, function: str, code: str = "", **more: Any) -> Diagnostic:
    with pytest.raises(MzplanError) as refused:
        load_function(query(folder, function, code, **more))
    (found,) = refused.value.diagnostics
    return found


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `shop-words` 1.4.2 with the module `shop_words`, installed outside the project."""
    site = tmp_path / "site"
    info = site / "shop_words-1.4.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-words\nVersion: 1.4.2\n")
    (info / "RECORD").write_text("shop_words/__init__.py,,\nshop_words/text.py,,\n")
    (info / "top_level.txt").write_text("shop_words\n")
    (site / "shop_words").mkdir()
    (site / "shop_words/__init__.py").write_text("")
    (site / "shop_words/text.py").write_text(CODE)
    monkeypatch.syspath_prepend(site)
    packages._distributions.cache_clear()
    yield site
    packages._distributions.cache_clear()
    packages._imported.clear()
    for name in [name for name in sys.modules if name.startswith("shop_words")]:
        del sys.modules[name]


def test_a_committed_text_runs_without_its_file(tmp_path: Path) -> None:
    (tmp_path / "transforms").mkdir()
    (tmp_path / FILE).write_text("raise SystemExit('not committed')")
    loaded = load_function(query(tmp_path, f"{FILE}:loud", CODE))
    assert loaded.call("hi") == "HI!" and loaded.release == ""
    # Executors get the function with all that it uses, by value: they have no such module.
    module = sys.modules.pop(loaded.call.__module__)
    pickled = cloudpickle.dumps(loaded.call)  # type: ignore[no-untyped-call]
    assert loaded.call.__module__ not in sys.modules and cloudpickle.loads(pickled)("ho") == "HO!"
    sys.modules[loaded.call.__module__] = module


def test_a_package_is_imported_and_its_version_is_known(tmp_path: Path, package: Path) -> None:
    loaded = load_function(query(tmp_path, "shop_words.text:loud"))
    assert loaded.call("hi") == "HI!" and loaded.release == "shop-words 1.4.2"
    # The version that was imported counts, not the one that has been installed over it.
    (package / "shop_words-1.4.2.dist-info/METADATA").write_text("Name: shop-words\nVersion: 1.5\n")
    assert load_function(query(tmp_path, "shop_words.text:loud")).release == "shop-words 1.4.2"
    asked = query(
        tmp_path, "shop_words.text:loud", requires="Shop_Words<1.5"
    )  # another spelling is no change
    assert load_function(asked).release == "shop-words 1.4.2"
    assert (
        "1.4.2 is installed" in problem(tmp_path, "shop_words.text:loud", requires="shop-words>=1.5").summary
    )


@pytest.mark.parametrize(
    ("function", "requires", "code", "words"),
    [
        ("shop_words.text:loud", "shop_words>=1.5", "MZ361", "shop_words 1.4.2 is installed"),
        (
            "shop_words.text:loud",
            "shop_others>=1.5",
            "MZ361",
            "requires shop_others>=1.5, which isn't installed",
        ),
        ("shop_words.text:loud", "shop_words>=", "MZ361", "not a requirement"),
        ("shop_words.text:quiet", "", "MZ361", 'has no function "quiet"'),
        ("shop_words.text:SUFFIX", "shop_words==1.4.*,!=1.4.3", "MZ361", 'has no function "SUFFIX"'),
        ("shop_words.other:loud", "", "MZ361", "can't import shop_words.other"),
        ("no_such_module:loud", "", "MZ361", "can't import no_such_module"),
        ("os:abort", "", "MZ361", "os isn't a module of yours"),
        ("subprocess:run", "", "MZ361", "subprocess isn't a module of yours"),
        ("mzplan.cli.main:main", "", "MZ361", "mzplan.cli.main isn't a module of yours"),
    ],
)
def test_a_function_that_isnt_there(
    tmp_path: Path, package: Path, function: str, requires: str, code: str, words: str
) -> None:
    found = problem(tmp_path, function, **({"requires": requires} if requires else {}))
    assert found.code == code and words in found.summary and found.address == at("view.enriched")


def test_a_module_that_fails_is_told_by_its_line(tmp_path: Path, package: Path) -> None:
    found = problem(tmp_path, f"{FILE}:f", "import os\n\nos.no_such()\n")
    assert found.code == "MZ362" and found.summary == f"{FILE}:f of view.enriched fails at {FILE}:3"
    assert found.detail.startswith("AttributeError: ")
    found = problem(tmp_path, f"{FILE}:f", "def f(:\n")
    assert found.code == "MZ362" and f"{FILE}:1" in found.summary
    found = problem(tmp_path, f"{FILE}:f", "from transforms.other import f\n")
    assert "ModuleNotFoundError: No module named 'transforms'" in found.detail
    assert "SystemExit: 3" in problem(tmp_path, f"{FILE}:f", "raise SystemExit(3)\n").detail
    cancelled = "import asyncio\nraise asyncio.CancelledError\n"  # neither an Exception
    assert "CancelledError" in problem(tmp_path, f"{FILE}:f", cancelled).detail
    (package / "shop_words/broken.py").write_text("x = 1\nraise KeyError('x')\n")
    found = problem(tmp_path, "shop_words.broken:f")
    assert "fails at shop_words/broken.py:2" in found.summary


def test_a_checkouts_module_isnt_imported_as_if_it_were_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "enrich_here.py").write_text("raise SystemExit('not committed')")
    monkeypatch.syspath_prepend(tmp_path)  # as with `python -m mzplan`
    assert "isn't installed" in problem(tmp_path, "enrich_here:f").summary


TRACEBACK = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/site-packages/pyspark/worker.py", line 1, in main
    process()
  File "%s", line 12, in loud
    raise ValueError(text)
ValueError: no words for a
second line

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("function", "file", "where"),
    [
        (f"{FILE}:loud", FILE, f" at {FILE}:12"),
        ("shop_words.text:loud", "/x/site-packages/shop_words/text.py", " at shop_words/text.py:12"),
        ("words:loud", "/x/site-packages/words.py", " at words.py:12"),
    ],
)
def test_a_failed_task_is_told_without_its_stack(function: str, file: str, where: str) -> None:
    module, _, name = function.rpartition(":")
    found = failed_in_task(at("view.enriched"), FunctionName(module, name), TRACEBACK % file)
    assert found is not None
    (diagnostic,) = found.diagnostics
    assert diagnostic.summary == f"{function} of view.enriched fails{where}"
    assert diagnostic.detail == "ValueError: no words for a" and "PythonRunner" not in str(diagnostic)
    assert failed_in_task(at("view.enriched"), FunctionName("other", "f"), TRACEBACK % file) is None


def test_a_policy_lists_the_functions_that_may_run(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('functions = ["shop_words.*", "trusted/*.py:*"]\n')
    policy = read_policy(str(path))
    assert isinstance(policy, Policy)
    secrets = GuardedSecrets(str(tmp_path), policy)
    secrets.permit(description("shop_words.text:loud"))
    secrets.permit(description("trusted/a.py:f", "f = 1"))
    for function in (f"{FILE}:f", "shop_others:f", "os:abort"):
        with pytest.raises(MzplanError) as refused:
            secrets.permit(description(function))
        (found,) = refused.value.diagnostics
        assert found.code == "MZ363" and f'functions = ["{function}"]' in found.hint
    path.write_text('functions = "all"\n')
    with pytest.raises(MzplanError, match="policy"):
        read_policy(str(path))


def test_another_release_continues_only_by_the_authors_word(tmp_path: Path, package: Path) -> None:
    def at_start(version: str, digest: str, state: str) -> str:
        packages._imported["shop-words"] = version
        asked = query(tmp_path, "shop_words.text:loud", digest=digest, state=state)
        assert asked.checkpoint is not None
        return take_release(asked.checkpoint, asked, load_function(asked).release)

    assert at_start("1.4.2", "1:a", "unknown") == ""
    assert at_start("1.4.2", "1:b", "unknown") == ""  # another trigger, say
    with pytest.raises(MzplanError, match="was computed by shop-words 1"):
        at_start("1.5", "1:c", "unknown")
    assert at_start("1.5", "1:b", "none") == "shop-words 1.4.2"  # it runs, and the change is reported
    assert at_start("1.5", "1:b", "kept") == "shop-words 1.4.2"
    assert at_start("1.5", "1:c", "kept") == ""  # an apply has restarted it
    assert at_start("1.5", "1:c", "unknown") == ""
    asked = query(tmp_path, "shop_words.text:loud", digest="1:c")
    assert asked.checkpoint is not None
    assert require_release(asked.checkpoint, asked, load_function(asked).release) == ""


def test_names_are_found_without_running_the_text() -> None:
    text = "import a.b, c as d\nfrom e import f\ng = h = 1\ni: int = 2\n"
    text += "if x:\n  def j(): k = 1\nelse:\n  class L: m = 1\n"
    assert names_in(text) == {"a", "d", "f", "g", "h", "i", "j", "L"}
    assert names_in("try:\n  import n\nexcept E:\n  n = None\nfinally:\n  o = 1\n") == {"n", "o"}
    assert names_in("from p import *\n") is None
    for broken in ("(" * 9000, "def f(", "x = \0"):
        with pytest.raises(SyntaxError):
            names_in(broken)


def of_sql(*functions: str, state: bool = False, resumes: bool = False, digest: str = "1:a") -> Description:
    called = {f"f{number}": called_as(text) for number, text in enumerate(functions)}
    body = {"query": "SELECT f0(id) AS id FROM orders", "reads": ["orders"], "schema": "id STRING"}
    body |= {"state": "1:abc"} if state else {}
    body |= {"on_query_change": "resume"} if resumes else {}
    return Description(
        address=at("view.enriched"),
        id="abc",
        generation=1,
        digest=digest,
        type="sql",
        body={**body, "functions": called},
    )


def called_as(text: str) -> dict[str, str]:
    code = {"code": CODE} if text.startswith(FILE) else {}
    return {"function": text, "returns": "STRING", **code}


def test_a_policy_lists_the_functions_that_sql_may_call(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('functions = ["shop_words.*"]\n')
    policy = read_policy(str(path))
    assert isinstance(policy, Policy)
    secrets = GuardedSecrets(str(tmp_path), policy)
    secrets.permit(of_sql("shop_words.text:loud"))
    with pytest.raises(MzplanError, match="doesn't allow the function"):
        secrets.permit(of_sql("shop_words.text:loud", f"{FILE}:loud"))


def test_a_modules_code_in_a_proposals_sql_isnt_run(tmp_path: Path, package: Path) -> None:
    asked = of_sql("shop_words.text:loud", f"{FILE}:loud")
    proposed = resolve(asked, Secrets(str(tmp_path)).proposed(), str(tmp_path))
    assert [str(one.name) for one in load_functions(proposed)] == ["shop_words.text:loud"]
    committed = resolve(asked, Secrets(str(tmp_path)), str(tmp_path))
    assert [str(one.name) for one in load_functions(committed)] == ["shop_words.text:loud", f"{FILE}:loud"]
    assert release_of(load_functions(committed)) == "shop-words 1.4.2"


def test_another_release_in_sql_continues_without_state_or_by_the_authors_word(
    tmp_path: Path, package: Path
) -> None:
    def at_start(version: str, digest: str, **more: bool) -> str:
        packages._imported["shop-words"] = version
        described = of_sql("shop_words.text:loud", digest=digest, **more)
        asked = resolve(described, Secrets(str(tmp_path)), str(tmp_path), str(tmp_path / "w"))
        assert asked.checkpoint is not None
        return take_release(asked.checkpoint, asked, release_of(load_functions(asked)))

    assert at_start("1.4.2", "1:a", state=True) == ""
    with pytest.raises(MzplanError, match="was computed by shop-words 1"):
        at_start("1.5", "1:b", state=True)
    assert at_start("1.5", "1:a", state=True, resumes=True) == "shop-words 1.4.2"
    assert at_start("1.5", "1:a") == "shop-words 1.4.2"
    assert at_start("1.5", "1:c") == ""  # an apply has restarted it


def test_a_function_of_another_package_changes_no_release(tmp_path: Path, package: Path) -> None:
    asked = resolve(
        of_sql("shop_words.text:loud", state=True), Secrets(str(tmp_path)), "", str(tmp_path / "w")
    )
    assert asked.checkpoint is not None
    for release in ("shop-words 1.4.2", "other 2.0, shop-words 1.4.2", "other 2.0", ""):
        assert take_release(asked.checkpoint, asked, release) == ""
    with pytest.raises(MzplanError, match="was computed by other"):
        require_release(asked.checkpoint, asked, "other 2.1, shop-words 1.4.2")


def test_a_failed_value_is_told_by_query_function_file_and_line(tmp_path: Path) -> None:
    loaded = load_function(query(tmp_path, f"{FILE}:loud", CODE))
    value = value_of(loaded.call, at("view.enriched"), loaded.name)
    assert value("a") == "A!"
    with pytest.raises(
        CallError, match=rf"mzplan\[MZ362\]: {FILE}:loud of view.enriched fails at {FILE}:11"
    ) as f:
        value(1)
    failure = of_messages([("org.apache.spark.SparkException", f"x\nCallError: {f.value}\n at y")])
    assert failure.code == "MZ362" and "AttributeError: 'int' object has no attribute 'upper'" in failure.text
