"""The dialect of schemas: JSON Schema, and the words that mzplan reads in it (`x-change`, `x-sql`, …).

schemas/dialect.json is its meta-schema. Every schema is held against it when it is loaded: a word that nobody
knows, or a property that does not say what its change does, would else be a defect that shows much later.
Another package's schema is checked by jsonschema, which says where and why. Importing that and checking a
small plan's own schemas with it costs more than half of what the plan may take; so mzplan's own are looked at
by jsonschema-rs first, which takes some 0.2 ms for each, and by jsonschema only where that finds a fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mzplan.model.suggestions import did_you_mean

if TYPE_CHECKING:
    from jsonschema import ValidationError

Json = dict[str, Any]

_PACKAGED = Path(__file__).parents[1] / "_schemas"
_CHECKOUT = Path(__file__).parents[2] / "schemas"
_SHOWN = 200  # characters of what is said of one fault


def schema_folder() -> Path:
    """The folder of the JSON Schema files: inside the wheel, or beside the package in a checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


@cache
def dialect() -> Json:
    """The meta-schema."""
    return cast(Json, json.loads((schema_folder() / "dialect.json").read_text(encoding="utf-8")))


def words() -> Mapping[str, str]:
    """Every word of the dialect, and what it says."""
    known = dialect()["$defs"]["schema"]["$defs"]["words"]["properties"]
    return {word: schema["description"] for word, schema in known.items()}


def fault_of(schema: Any, *, own: bool = False) -> str:
    """How a schema breaks the dialect, as `is wrong at /properties/table: …`; "" when it does not.

    `own`: one of mzplan's own, of which there are some in every plan.
    """
    if own and _compiled().is_valid(schema):
        return ""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    validator = Draft202012Validator(dialect(), format_checker=Draft202012Validator.FORMAT_CHECKER)
    fault = best_match(validator.iter_errors(schema))
    return "" if fault is None else _told(fault)


@cache
def _compiled() -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(dialect())


def _told(fault: ValidationError) -> str:
    known = words()
    pointer = "".join(f"/{_escaped(key)}" for key in fault.absolute_path)
    where = f"is wrong at {pointer}" if pointer else "is wrong"
    if fault.validator == "enum" and "propertyNames" in fault.absolute_schema_path:
        meant = did_you_mean(fault.instance, known) or f"the words are {', '.join(sorted(known))}"
        return f"{where}: {fault.instance} is no word of mzplan's schemas; {meant}"
    said = fault.message if len(fault.message) <= _SHOWN else f"…{fault.message[-_SHOWN:]}"
    named = re.findall(r"x-[a-z-]+", f"{pointer} {said}")
    word = next((word for word in named if word in known), None)
    return f"{where}: {said}" + (f"; {word}: {known[word]}" if word else "")


def _escaped(key: str | int) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
