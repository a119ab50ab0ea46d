"""Download the jars for tests before tests run in parallel, because Ivy's cache isn't safe for that.

The jars of the Kafka broker (46 MB) go to ~/.cache/mzplan. Spark's jars for Kafka, Delta and S3 go to
Ivy's cache, ~/.ivy2*.
"""

from __future__ import annotations

from examples.servers.java import broker_jars, find_java
from mzplan.schema.description import packages_of
from mzplan.spark.process.session import open_session
from tests.integration.spark_lab import LAKE

if __name__ == "__main__":
    print("Fetching the jars of Spark and of the Kafka broker …", flush=True)
    broker_jars(find_java())
    open_session("fetch", {}, packages_of({LAKE.address: LAKE})).stop()
