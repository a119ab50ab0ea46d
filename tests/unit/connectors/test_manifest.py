"""The files that count in a folder that a files sink writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mzplan.connectors.files.manifest import committed_files


def entry(folder: Path, name: str, *paths: str) -> None:
    log = folder / "_spark_metadata"
    log.mkdir(exist_ok=True)
    lines = [json.dumps({"path": path, "size": 1, "action": "add"}) for path in paths]
    (log / name).write_text("\n".join(["v1", *lines]))


def test_steps_in_their_order_and_what_is_compacted_once(tmp_path: Path) -> None:
    for step in range(12):
        entry(tmp_path, str(step), f"file:///out/part-{step}%20x")
    expected = [f"/out/part-{step} x" for step in range(12)]
    assert committed_files(tmp_path) == expected and committed_files(tmp_path / "gone") == []
    entry(tmp_path, "9.compact", *(f"file:///out/part-{step}%20x" for step in range(10)))
    assert committed_files(tmp_path) == expected
    (tmp_path / "_spark_metadata" / ".10.crc").write_text("")
    assert committed_files(tmp_path) == expected


def test_another_store_and_another_version(tmp_path: Path) -> None:
    entry(tmp_path, "0", "s3a://bucket/out/part-0")
    assert committed_files(tmp_path) == ["s3a://bucket/out/part-0"]
    (tmp_path / "_spark_metadata" / "1").write_text("v2\n")
    with pytest.raises(ValueError, match="version 'v2'"):
        committed_files(tmp_path)
