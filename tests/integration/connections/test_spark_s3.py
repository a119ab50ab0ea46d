"""Folders at s3:// with the credentials of an aws connection, in an object store that checks them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import boto3
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.errors import AnalysisException

from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from tests.integration.spark.test_spark_verify_sinks import compared, numbers, verified
from tests.integration.spark_lab import Lab
from tests.moto_server import moto_server, who_is_let_in
from tests.support import eventually
from tests.unit.connectors.queries import inlined


@dataclass(frozen=True)
class Store:
    """An object store with one bucket, `lake`, and a user whose keys it lets in."""

    endpoint: str
    iam: Any
    s3: Any

    def key(self) -> dict[str, str]:
        """Another access key of the user."""
        found = self.iam.create_access_key(UserName="mzplan")["AccessKey"]
        return {"ID": found["AccessKeyId"], "KEY": found["SecretAccessKey"]}

    def environment(self, key: dict[str, str]) -> dict[str, str]:
        """For libraries that use this key of the user."""
        place = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        return {**place, "AWS_ACCESS_KEY_ID": key["ID"], "AWS_SECRET_ACCESS_KEY": key["KEY"]}

    def put(self, name: str, *rows: dict[str, Any]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        self.s3.put_object(Bucket="lake", Key=name, Body=text.encode())

    def rows(self, key: dict[str, str]) -> list[int]:
        """The ids in the table; none while there is no table."""
        try:
            table = DeltaTable("s3://lake/data/out", storage_options=self.environment(key))
        except TableNotFoundError:
            return []
        return sorted(table.to_pyarrow_table()["id"].to_pylist())


@pytest.fixture
def store() -> Iterator[Store]:
    """With a bucket and users; it checks who asks."""
    with moto_server() as endpoint:
        root = {"endpoint_url": endpoint, "region_name": "us-east-1"}
        login = {"aws_access_key_id": "root", "aws_secret_access_key": "root"}
        iam = boto3.client("iam", **root, **login)
        for user, allowed in (("mzplan", "s3:*"), ("admin", "*")):
            statement = {"Effect": "Allow", "Action": allowed, "Resource": "*"}
            policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
            iam.create_user(UserName=user)
            iam.put_user_policy(UserName=user, PolicyName="all", PolicyDocument=policy)
        admin = iam.create_access_key(UserName="admin")["AccessKey"]
        login = {"aws_access_key_id": admin["AccessKeyId"], "aws_secret_access_key": admin["SecretAccessKey"]}
        s3 = boto3.client("s3", **root, **login)
        s3.create_bucket(Bucket="lake")
        who_is_let_in(endpoint, "0")
        yield Store(endpoint, boto3.client("iam", **root, **login), s3)


def through_aws(description: Description, aws: dict[str, str], **body: Any) -> Description:
    """Return the description with an aws connection behind its connection, which gets this body, too."""
    cloud = inlined("cloud", {"type": "aws", **aws})
    found = description.connections["connection"]
    link = replace(found, body={**found.body, **body, "aws": "cloud"}, connections={"aws": cloud})
    return replace(description, connections={"connection": link})


def in_store(description: Description, store: Store) -> Description:
    """Return the description with its folder in the bucket."""
    keys = {"access_key_id": "${env:ID}", "secret_access_key": "${env:KEY}"}
    aws = {"region": "us-east-1", "endpoint": store.endpoint, **keys}
    return through_aws(description, aws, path="s3://lake/data")


@pytest.mark.nightly
def test_a_key_is_used_and_can_be_rotated(lab: Lab, store: Store) -> None:
    source = in_store(lab.source("files", {"type": "files"}, path="in", format=JSON), store)
    sink = lab.sink(source, "delta", {"type": "files"}, path="out", compaction={"min_files": 2}, **DIVIDED)
    sink = in_store(sink, store)
    body: dict[str, Any] = {"path": "files", "format": {"type": "parquet"}, **DIVIDED}
    files = in_store(lab.sink(source, "files", {"type": "files"}, **body), store)
    first = store.key()
    secrets, stranger = Secrets(".", first), Secrets(".", {"ID": "AKIAUNKNOWN", "KEY": "hunter2"})
    store.put("data/in/a.json", {"id": 1})
    for description in (source, sink, files):
        assert lab.executor.check(description, secrets).diagnostics == ()
        (refused,) = lab.executor.check(description, stranger).diagnostics
        assert refused.code == "MZ057" and "hunter2" not in repr(refused)
        lab.executor.start(description, secrets, 1)
    eventually("the first row", lambda: store.rows(first) == [1], SECONDS)

    # The key is replaced: what runs is started anew with the new one, from its checkpoint.
    second = store.key()
    new_secrets = Secrets(".", second)
    lab.stop(source, sink, files)
    store.iam.delete_access_key(UserName="mzplan", AccessKeyId=first["ID"])
    assert lab.executor.check(source, secrets).diagnostics != ()
    store.put("data/in/b.json", {"id": 2})
    again = [lab.retried(source), lab.retried(sink), lab.retried(files)]
    for description in again:
        lab.executor.start(description, new_secrets, 2)
    eventually("the second row, once", lambda: store.rows(second) == [1, 2], SECONDS)
    merged = lab.executor.compact(again[1], stranger)  # as the sink was started, whatever the key is by now
    assert merged == "2 small files of s3a://lake/data/out merged into 1"
    assert store.rows(second) == [1, 2]
    assert second["KEY"] not in repr(lab.executor.reports())
    eventually("the second row of files", lambda: in_files(lab) == [(1, PLACE), (2, PLACE)], SECONDS)
    eventually("all is done", lambda: all(map(lab.checkpoint_done, again)))
    lab.stop(*again)
    read = in_store(lab.source("delta", {"type": "files"}, path="out", schema="id BIGINT"), store)
    lab.executor.start(read, new_secrets, 2)
    eventually("a source reads the table", lambda: lab.count(read) == 2, SECONDS)
    lab.stop(read)
    others = in_store(lab.sink(source, "files", {"type": "files"}, **{**body, "partition_by": ["id"]}), store)
    (refused,) = lab.executor.check(others, new_secrets).diagnostics
    assert refused.code == "MZ053" and "is partitioned by place" in refused.detail

    # What is there is found by the names that are in lists and logs.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "secrets", new_secrets)
        for name, value in store.environment(second).items():
            patch.setenv(name, value)
        for written in (sink, files):
            of_steps, of_content = verified(lab, written), compared(lab, written)
            assert len(of_steps.equal_steps) > 1, of_steps
            assert (of_steps.by_rows, of_steps.problems) == ((), ()), of_steps
            assert (numbers(of_content), of_content.target_rows) == ((0, 0, 0), 2), of_content


def in_files(lab: Lab) -> list[tuple[int, str]]:
    """The rows that the sink of files lists, as Spark reads them, which has the key of what runs; none while
    there is no file."""
    try:
        there = lab.spark.read.parquet("s3a://lake/data/files")
    except AnalysisException:
        return []
    return sorted((row["id"], row["place"]) for row in there.collect())


@pytest.mark.nightly
def test_missing_jars_are_an_error_before_anything_stops(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    source = lab.kafka_source("orders", "id BIGINT", "127.0.0.1:1")
    source = through_aws(source, {"region": "eu-central-1"}, security={"protocol": "SASL_SSL"})
    missing = lab.executor.check(source, Secrets(".", {})).diagnostics
    told = next(d for d in missing if d.code == "MZ129")
    assert "aws-msk-iam-auth" in told.detail and "--packages" in told.hint
    assert {d.code for d in missing} == {"MZ050", "MZ129"}


SECONDS = 180.0  # each commit of a table there takes dozens of requests
JSON = {"type": "json", "schema": "id BIGINT"}
PLACE = "a b/c=é%"
DIVIDED = {"select": ["id", f"CAST('{PLACE}' AS STRING) AS place"], "partition_by": ["place"]}
