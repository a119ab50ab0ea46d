"""aws connections in Spark: checks that Spark has the jars, and gives it a bucket's credentials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.network.aws import ROLE, s3a_settings
from mzplan.host.spark_lines import installed_line
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.kinds import resource_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# By the type of connection that uses an aws connection: a class of the jars that it needs.
_CLASSES = {
    "files": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "kafka": "software.amazon.msk.auth.iam.IAMLoginModule",
}
_SCHEME = re.compile(r"s3a?://")


def as_s3a(path: str) -> str:
    """Return an `s3://…` path with the scheme of Hadoop's client, `s3a://`."""
    return _SCHEME.sub("s3a://", path, count=1)


def use_s3(session: SparkSession, query: ResolvedQuery, folder: str) -> None:
    """Give Spark the credentials for the folder's bucket. Does nothing without an aws connection.

    If Spark has a client with other credentials, closes it, so that the next one uses these. Raises
    MzplanError MZ129 if Spark doesn't have the jars.
    """
    if ROLE not in query.link.connections:
        return
    require_packages(session, query)
    java, hadoop = _java_of(session)
    bucket = urlsplit(folder).netloc
    settings = s3a_settings(query.link.connections[ROLE], bucket)
    prefix = f"fs.s3a.bucket.{bucket}."
    current = {f"{prefix}{name}": value for name, value in dict(hadoop.getPropsWithPrefix(prefix)).items()}
    if current == settings:
        return
    for name in current.keys() - settings.keys():
        hadoop.unset(name)
    for name, value in settings.items():
        hadoop.set(name, value)
    if current:
        path = java.org.apache.hadoop.fs.Path(as_s3a(folder))
        path.getFileSystem(hadoop).close()


def uri_of(session: SparkSession, folder: str) -> str:
    """Return a folder's URI with escapes, as Delta and Spark's file names have it."""
    java, hadoop = _java_of(session)
    path = java.org.apache.hadoop.fs.Path(folder)
    return str(path.getFileSystem(hadoop).makeQualified(path).toUri().toString())


def require_packages(session: SparkSession, query: ResolvedQuery) -> None:
    """Raise MzplanError MZ129 if a query's connection uses AWS, but Spark doesn't have the jars."""
    if ROLE not in query.link.connections:
        return
    java, _ = _java_of(session)
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(_CLASSES[query.link.type])
    except Exception:
        raise _missing_packages(query) from None


def _java_of(session: Any) -> tuple[Any, Any]:
    """Return PySpark's access to Java classes (`_jvm`), and Hadoop's configuration.

    Both come from private attributes, because PySpark has no public access to Java. A bucket's credentials
    belong in Hadoop's configuration: if they were Spark settings, SET and Spark's web pages would show them.
    """
    return session._jvm, session.sparkContext._jsc.hadoopConfiguration()


def _missing_packages(query: ResolvedQuery) -> MzplanError:
    link = query.link
    packages, excluded = resource_kind("connection", link.type).packages(link.body)
    jars = installed_line().compatible(packages)
    leave_out = f" --conf spark.jars.excludes={','.join(excluded)}" if excluded else ""
    return error(
        "MZ129",
        f"Spark runs without the jars that {link.address} needs",
        f"They are {', '.join(jars)}. Spark loads jars only when it starts.",
        "restart the runner: mzplan down, then mzplan apply; for spark-submit, add "
        f"--packages {','.join(jars)}{leave_out}",
        address=query.address,
        kind="unfit",
    )
