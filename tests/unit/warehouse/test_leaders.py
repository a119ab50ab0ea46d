"""The epochs of the newest runners, in the warehouse."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.warehouse.storage import newest_epoch, record_epoch


def test_the_highest_epoch_of_an_instance_is_kept(tmp_path: Path) -> None:
    warehouse = str(tmp_path / "warehouse")
    assert newest_epoch(warehouse, "lineage", "local") == 0
    for epoch, newest in ((3, 3), (2, 3), (5, 5)):
        record_epoch(warehouse, "lineage", "local", epoch)
        assert newest_epoch(warehouse, "lineage", "local") == newest
    for lineage, instance in (("another", "local"), ("lineage", "big")):
        assert newest_epoch(warehouse, lineage, instance) == 0, "others may share the warehouse"


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    record_epoch(str(tmp_path), "lineage", "local", 3)
    (file,) = (tmp_path / "leaders").iterdir()
    file.write_text("{")
    with pytest.raises(OSError, match=r"leaders/lineage\.local\.json"):
        newest_epoch(str(tmp_path), "lineage", "local")
