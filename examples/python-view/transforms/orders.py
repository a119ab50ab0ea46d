"""The views of this project. Each function takes DataFrames by the names of its inputs, and returns one."""

import unicodedata

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def plain(name: str | None) -> str | None:
    """Return a name without accents and spaces around it, in lower case."""
    if name is None:
        return None
    letters = unicodedata.normalize("NFKD", name.strip().lower())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def clean_orders(orders: DataFrame) -> DataFrame:
    return orders.where("amount > 0").withColumn("customer", f.udf(plain)("customer"))


def with_city(clean_orders: DataFrame, cities: DataFrame) -> DataFrame:
    joined = clean_orders.join(cities, "customer", "left")
    return joined.select("id", "customer", f.coalesce("city", f.lit("unknown")).alias("city"), "amount")
