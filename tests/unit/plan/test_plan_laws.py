"""Laws of planning, checked with generated projects."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.model.address import Address
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration, Resource
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.file import decode_plan, encode_plan
from mzplan.render.graphs.graph import render_graph
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan
from mzplan.schema.description import collection_columns
from mzplan.schema.kinds import resource_kind
from tests.unit.small_projects import commit, commit_plan, files, kafka, postgres, project, resource

EMPTY = State(project="shop")
COLUMNS = ["id BIGINT", "id BIGINT, a INT", "a INT, id BIGINT", "id STRING", "id BIGINT, a INT, b DATE"]


def maybe(**options: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate a dict with some of these keys, each with one of its values."""
    return st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(values) for key, values in options.items()}
    )


common = {"description": ["x", "y"], "labels": [{}, {"team": "a"}, {"team": "b"}]}
kafkas = maybe(
    brokers=[["a:1"], ["b:1"], ["a:1", "b:1"]],
    security=[{}, {"protocol": "PLAINTEXT"}, {"protocol": "SSL"}, {"ssl": {"verify_hostname": False}}],
    options=[{}, {"check.crcs": True}, {"check.crcs": 1}],
    **common,
)
postgreses = maybe(
    host=["h", "i"], port=[5432, 5433], database=["shop", "other"], tls=[{}, {"mode": "require"}], **common
)
filess = maybe(path=["/data", "/more"], **common)
queries = {**common, "paused": [True, False], "trigger": [{}, {"interval": "1s"}, {"interval": "5s"}]}
sources = st.tuples(
    st.sampled_from(["k0", "k1", "f0"]),
    st.sampled_from(COLUMNS),
    maybe(on_error=["fail", "skip"], **queries),
    st.sampled_from(["t", "u"]),
)
sinks = st.tuples(
    st.sampled_from(["pg0", "pg1", None]),
    st.integers(0, 2),
    maybe(where=["id > 1", "id > 2"], select=[["id"], ["*"]], **queries),
)


@st.composite
def projects(draw: st.DrawFn) -> Configuration:
    """Generate a project with up to three sources and three sinks on five connections.

    Two projects share names, so they differ in every way that an edit can cause.
    """
    found: list[Resource] = [kafka(f"k{i}", **draw(kafkas)) for i in range(2)]
    found += [postgres(f"pg{i}", **draw(postgreses)) for i in range(2)]
    found.append(files("f0", **draw(filess)))
    there = draw(st.sets(st.integers(0, 2)))
    for number in there:
        found.append(_source(number, *draw(sources)))
    for number in draw(st.sets(st.integers(0, 2))):
        connection, read, body = draw(sinks)
        if read in there:
            found.append(_sink(number, connection, read, body))
    return project(*draw(st.permutations(found)))


def _source(number: int, connection: str, columns: str, body: dict[str, Any], place: str) -> Resource:
    type_ = "files" if connection == "f0" else "kafka"
    where = {"path": place} if type_ == "files" else {"topic": place}
    format_ = {"type": "json", "schema": columns}
    return resource(f"source.s{number}", type_, connection=connection, format=format_, **where, **body)


def _sink(number: int, connection: str | None, read: int, body: dict[str, Any]) -> Resource:
    given = {"from": f"s{read}", **body}
    if connection is None:
        return resource(f"sink.w{number}", "console", type="console", **given)
    return resource(f"sink.w{number}", "postgres", connection=connection, table="t", **given)


def described(configuration: Configuration, address: Address) -> Any:
    """Return the inlined description of a query, as an oracle that is independent of the code.

    It has every property of the query and its connections that doesn't change in place, without names. A
    sink's description also has the columns of its collection.
    """
    found = configuration.resources[address]
    parts: list[Any] = [found.type, resource_kind(address.kind, found.type).identifying_part(found.body)]
    for role, target in sorted(found.references.items()):
        if target.is_connection:
            parts.append([role, described(configuration, target)])
        else:
            read = commit(configuration).resources[target]
            parts.append([role, str(target), read.type, collection_columns(read)])
    return json.dumps(parts, sort_keys=True)


def as_bytes(plan: Plan) -> bytes:
    return json.dumps(plan_to_json(plan)).encode() + render_plan(plan).encode() + encode_plan(plan)


@settings(max_examples=80)
@given(projects(), projects())
def test_a_plan_has_each_change_once_in_order_and_nothing_is_left_after_apply(
    before: Configuration, after: Configuration
) -> None:
    state = commit(before)
    plan = build_plan(after, state)
    assert decode_plan(encode_plan(plan)) == plan
    assert_queries_with_another_description_are_impacted(plan, before, after)
    assert_each_resource_is_in_one_part_and_in_order(plan, after)
    new = commit_plan(plan, state)
    again = build_plan(after, new)
    assert again.is_empty and again.unaffected == len(after.resources)
    assert {a: r.body for a, r in new.resources.items()} == {a: r.body for a, r in after.resources.items()}
    changed = {change.address for change in plan.changes}
    for address, record in new.resources.items():
        if address not in changed:
            assert record is state.resources[address]


def assert_queries_with_another_description_are_impacted(
    plan: Plan, before: Configuration, after: Configuration
) -> None:
    replaced = {change.address for change in plan.changes if change.action == "replace"}
    impacted = {
        c.address for c in plan.changes if c.before and c.after and c.effect in ("restart", "replace")
    }
    for address in before.resources.keys() & after.resources.keys():
        if address.is_connection:
            continue
        differs = described(before, address) != described(after, address)
        # A sink of a replaced source is replaced with it, though its columns may be the same.
        with_source = any(target in replaced for target in after.resources[address].references.values())
        assert (address in impacted) == (differs or with_source), str(address)


@settings(max_examples=25)
@given(projects(), projects(), st.randoms(use_true_random=False))
def test_the_order_of_files_and_keys_changes_nothing(
    before: Configuration, after: Configuration, shuffled: random.Random
) -> None:
    def mixed(configuration: Configuration) -> Configuration:
        resources = list(configuration.resources.values())
        shuffled.shuffle(resources)
        return project(*(_with_mixed_keys(found, shuffled) for found in resources))

    state = commit(before)
    entries = list(state.resources.items())
    shuffled.shuffle(entries)
    other = replace(state, resources=dict(entries))
    assert as_bytes(build_plan(mixed(after), other)) == as_bytes(build_plan(after, state))
    assert as_bytes(build_plan(mixed(after), EMPTY)) == as_bytes(build_plan(after, EMPTY))
    for drawing in ("mermaid", "dot", "json"):
        assert render_graph(mixed(after), format=drawing) == render_graph(after, format=drawing)


def _with_mixed_keys(found: Resource, shuffled: random.Random) -> Resource:
    entries = list(found.body.items())
    shuffled.shuffle(entries)
    body = resource_kind(found.address.kind, found.type).normalise(dict(entries))
    return replace(found, body=body, references=dict(reversed(found.references.items())))


def assert_each_resource_is_in_one_part_and_in_order(plan: Plan, after: Configuration) -> None:
    changed = [change.address for change in plan.changes if change.after]
    assert len(set(changed)) == len(changed)
    assert not set(changed) & set(plan.downstream)
    assert len(changed) + len(plan.downstream) + plan.unaffected == len(after.resources)
    assert sum(plan.summary().values()) == len(plan.changes)
    for change in plan.changes:
        assert set(change.triggered_by) <= {c.address for c in plan.changes}
        assert (change.before is None) == (change.action == "create")
        assert (change.after is None) == (change.action == "delete")
        if change.before and change.after:  # only a replace begins a generation, of the same query
            generation = change.before.generation + (change.action == "replace")
            assert (change.after.id, change.after.generation) == (change.before.id, generation)
    seen: set[Address] = set()
    for address in changed:
        assert not set(after.resources[address].references.values()) & (set(changed) - seen - {address})
        seen.add(address)
    assert [c.action == "delete" for c in plan.changes] == sorted(c.action == "delete" for c in plan.changes)


@settings(max_examples=60)
@given(projects(), projects(), st.data())
def test_a_targeted_plan_leaves_other_resources_alone_and_a_valid_state(
    before: Configuration, after: Configuration, data: st.DataObject
) -> None:
    state = commit(before)
    known = sorted(before.resources.keys() | after.resources.keys())
    targets = data.draw(st.sets(st.sampled_from(known), min_size=1, max_size=2))
    plan = build_plan(after, state, targets=sorted(targets))
    new = commit_plan(plan, state)
    for record in new.resources.values():
        assert set(record.references.values()) <= new.resources.keys()
    whole = {change.address: change for change in build_plan(after, state).changes}
    for change in plan.changes:
        assert change.address in whole or change.action == "restart"
        if change.after is not None:  # whatever is reached is what is wanted, not what was: once is enough
            assert change.after.body == after.resources[change.address].body
    assert targets & whole.keys() <= {change.address for change in plan.changes}
    final = commit_plan(build_plan(after, new), new)
    assert build_plan(after, final).is_empty
    assert {a: r.body for a, r in final.resources.items()} == {a: r.body for a, r in after.resources.items()}
