"""A controller that hosts many queries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mzplan.controller.memory import InMemoryStorageController
from mzplan.controller.terms import CreateExportToken
from mzplan.secrets.references import Secrets
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.contract.controllers import create, local_source, sink_of


def test_consumed_tokens_are_found_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing each token with every other took over five minutes for 59,000 sinks."""
    store, count, source = Store(LocalBackend(tmp_path), "shop"), 300, local_source("s")
    compared, equal = 0, CreateExportToken.__eq__

    def counted(one: CreateExportToken, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(one, other)

    with ThreadPoolExecutor(2) as pool:
        controller = InMemoryStorageController(store, Secrets("."), pool)
        controller.create_instance("local")
        controller.attach(store.leases.take("local", "test"))
        create(controller, source)
        tokens = controller.prepare_exports([(f"u{i}", "s") for i in range(count)])
        monkeypatch.setattr(CreateExportToken, "__eq__", counted)
        copies = [CreateExportToken(id=t.id, from_id=t.from_id, step=t.step) for t in tokens]
        controller.create_exports([(token, sink_of(source, token.id)) for token in copies[1:]])
    assert list(controller.prepared.values()) == [tokens[0]]
    assert [entry.id for entry in store.read_prepared("local")] == ["u0"]
    assert compared <= 2 * count
