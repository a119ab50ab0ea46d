"""The dialect of schemas: JSON Schema, and the keywords that mzplan adds to it (`x-change`, `x-sql`, …).

schemas/dialect.json is the meta-schema. Every schema is checked against it when it is loaded, so that an
unknown keyword or a missing `x-change` shows at once. jsonschema reports where a fault is and why, but would
take more than half of the time of a small plan. Therefore jsonschema-rs checks mzplan's own schemas first
(0.2 ms each), and jsonschema checks only schemas with a fault and those of other packages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mzplan.model.words import did_you_mean

if TYPE_CHECKING:
    from jsonschema import ValidationError

Json = dict[str, Any]

_PACKAGED = Path(__file__).parents[1] / "_schemas"
_CHECKOUT = Path(__file__).parents[2] / "schemas"
_SHOWN = 200  # characters of a fault's message


def schema_folder() -> Path:
    """Return the folder of the JSON Schema files: inside the wheel, or beside the package in a checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


@cache
def dialect() -> Json:
    """Return the meta-schema."""
    return cast(Json, json.loads((schema_folder() / "dialect.json").read_text(encoding="utf-8")))


def words() -> Mapping[str, str]:
    """Return every keyword of the dialect with its meaning."""
    known = dialect()["$defs"]["schema"]["$defs"]["words"]["properties"]
    return {word: schema["description"] for word, schema in known.items()}


def fault_of(schema: Any, *, own: bool = False) -> str:
    """Return how a schema violates the dialect, as `is wrong at /properties/table: …`; "" if it doesn't.

    `own`: the schema is mzplan's own, and every plan loads it.
    """
    if own and _compiled().is_valid(schema):
        return ""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    validator = Draft202012Validator(dialect(), format_checker=Draft202012Validator.FORMAT_CHECKER)
    fault = best_match(validator.iter_errors(schema))
    return "" if fault is None else _fault_text(fault)


@cache
def _compiled() -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(dialect())


def _fault_text(fault: ValidationError) -> str:
    known = words()
    pointer = "".join(f"/{_escaped(key)}" for key in fault.absolute_path)
    where = f"is wrong at {pointer}" if pointer else "is wrong"
    if fault.validator == "enum" and "propertyNames" in fault.absolute_schema_path:
        meant = did_you_mean(fault.instance, known) or f"the keywords are {', '.join(sorted(known))}"
        return f"{where}: {fault.instance} isn't a keyword of mzplan's schemas; {meant}"
    message = fault.message if len(fault.message) <= _SHOWN else f"…{fault.message[-_SHOWN:]}"
    named = re.findall(r"x-[a-z-]+", f"{pointer} {message}")
    word = next((word for word in named if word in known), None)
    return f"{where}: {message}" + (f"; {word}: {known[word]}" if word else "")


def _escaped(key: str | int) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
