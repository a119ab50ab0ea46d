"""The total of each minute, as a streaming table. `compare.py` copies this file, and edits the copy."""

from __future__ import annotations

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import sum as total_of
from pyspark.sql.functions import window

INBOX = str(Path(__file__).parents[1] / "inbox")


@dp.table
def totals() -> DataFrame:
    spark = SparkSession.active()
    orders = spark.readStream.schema("id BIGINT, amount BIGINT, tax BIGINT, ts TIMESTAMP").json(INBOX)
    minutes = orders.withWatermark("ts", "0 seconds").groupBy(window("ts", "1 minute"))
    return minutes.agg(total_of("amount").alias("total")).selectExpr("window.start AS minute", "total")
