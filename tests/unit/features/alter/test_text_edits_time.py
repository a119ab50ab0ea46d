"""The time to edit a list is bounded, whatever its comments are."""

from __future__ import annotations

from mzplan.config.yaml.text_edits import rewrite
from mzplan.model.resources import PropertyEdit


def test_a_comment_of_many_marks_is_passed_once() -> None:
    comment = "# " * 200 + "a, b"
    text = f'connections:\n  k:\n    type: kafka\n    brokers: ["a:1" {comment}\n      ]\n'
    edit = PropertyEdit(path=("brokers",), value=["a:1", "b:1"])
    after = rewrite(text, "connections", "k", [edit])
    assert comment in after and '"b:1"' in after
