"""Settings of an aws connection for the clients of S3 and Kafka. Never show them, because they hold secrets.

S3 has two clients: Hadoop's S3A in Spark, and pyarrow for validation without Spark. Kafka also has two:
Java's client, and librdkafka. Without an access key, each uses the credentials of its machine.

For Spark, the module checks that the jars are there, and sets a bucket's credentials.
"""

from __future__ import annotations

import base64
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mzplan.connectors.api.probes import fingerprint
from mzplan.connectors.api.queries import ResolvedConnection, ResolvedQuery
from mzplan.host.spark_lines import installed_line
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.kinds import resource_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROLE = "aws"
"""The property of a connection that names its aws connection."""

_S3A = "org.apache.hadoop.fs.s3a"
_LOGIN = "software.amazon.msk.auth.iam.IAMLoginModule"
_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
_SESSION = "mzplan"
_TOKEN_S = 900


def s3a_settings(aws: ResolvedConnection, bucket: str) -> dict[str, str]:
    """Return Hadoop's settings for one bucket, `fs.s3a.bucket.BUCKET.…`. They don't affect other buckets."""
    body = aws.body
    settings: dict[str, str] = {}
    provider = ""
    if "access_key_id" in body:
        settings |= {"access.key": body["access_key_id"], "secret.key": body["secret_access_key"]}
        provider = f"{_S3A}.SimpleAWSCredentialsProvider"
        if "session_token" in body:
            settings["session.token"] = body["session_token"]
            provider = f"{_S3A}.TemporaryAWSCredentialsProvider"
    if "role_arn" in body:
        settings |= {"assumed.role.arn": body["role_arn"], "assumed.role.session.name": _SESSION}
        if provider:
            settings["assumed.role.credentials.provider"] = provider
        if "region" in body:
            settings["assumed.role.sts.endpoint.region"] = body["region"]
            settings["assumed.role.sts.endpoint"] = f"sts.{body['region']}.amazonaws.com"
        provider = f"{_S3A}.auth.AssumedRoleCredentialProvider"
    if provider:
        settings["aws.credentials.provider"] = provider
    if "region" in body:
        settings["endpoint.region"] = body["region"]
    if "endpoint" in body:
        parts = urlsplit(body["endpoint"])
        settings |= {
            "endpoint": body["endpoint"],
            # Other object stores have no host name for each bucket, and their region is only a name.
            "path.style.access": "true",
            "endpoint.region": body.get("region", "us-east-1"),
            "connection.ssl.enabled": str(parts.scheme == "https").lower(),
        }
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def arrow_filesystem(aws: ResolvedConnection) -> Any:
    """Return a pyarrow.fs.S3FileSystem with these credentials. Raises OSError."""
    from pyarrow import fs

    body = aws.body
    options: dict[str, Any] = {"connect_timeout": 3, "request_timeout": 3}
    options["retry_strategy"] = fs.AwsStandardS3RetryStrategy(max_attempts=1)
    names = {"region": "region", "role_arn": "role_arn"}
    if "role_arn" not in body:  # pyarrow accepts a role or a key, not both
        names |= {"access_key_id": "access_key", "secret_access_key": "secret_key"}
        names |= {"session_token": "session_token"}
    options |= {theirs: body[ours] for ours, theirs in names.items() if ours in body}
    if "endpoint" in body:
        parts = urlsplit(body["endpoint"])
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    return fs.S3FileSystem(**options)


def java_kafka_options(aws: ResolvedConnection) -> dict[str, str]:
    """Return the options of Java's Kafka client for IAM sign-in. Raises MzplanError MZ130."""
    body = aws.body
    if "access_key_id" in body and "role_arn" not in body:
        raise error("MZ130.cannot-used", address=aws.address)
    options = {
        "awsRoleArn": body.get("role_arn"),
        "awsRoleSessionName": _SESSION if "role_arn" in body else None,
        "awsStsRegion": body.get("region") if "role_arn" in body else None,
        "awsRoleAccessKeyId": body.get("access_key_id"),
        "awsRoleSecretAccessKey": body.get("secret_access_key"),
        "awsRoleSessionToken": body.get("session_token"),
    }
    text = "".join(f' {name}="{escaped(value)}"' for name, value in options.items() if value)
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": f"{_LOGIN} required{text};",
        "sasl.client.callback.handler.class": _HANDLER,
    }


def librdkafka_options(aws: ResolvedConnection) -> dict[str, Any]:
    """Return the settings of librdkafka for IAM sign-in. Raises MzplanError MZ130."""
    body = aws.body
    if "region" not in body:
        raise error("MZ130.no-region", address=aws.address)
    java_kafka_options(aws)  # refuse settings that Java's client can't use
    names = ("access_key_id", "secret_access_key", "session_token", "region", "role_arn")
    token = Token(settings={name: body[name] for name in names if name in body})
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}


@dataclass(frozen=True)
class Token:
    """Makes the tokens that librdkafka asks for.

    If this is pickled for a task, the task gets a single token, because it has neither the credentials nor
    the code to sign.
    """

    settings: dict[str, str] = field(repr=False)

    def __call__(self, _: str) -> tuple[str, float]:
        """Return a token, and its expiry in seconds since the epoch."""
        return sign_in(self.settings), time.time() + _TOKEN_S

    def __str__(self) -> str:  # used in fingerprints
        return fingerprint(self.settings)

    def __reduce__(self) -> Any:
        return OneToken, (self(""),)


class OneToken:
    """Returns a fixed sign-in token to a client that asks for one."""

    def __init__(self, token: tuple[str, float]):
        self._token = token

    def __call__(self, _: str) -> tuple[str, float]:
        return self._token


def sign_in(settings: dict[str, str]) -> str:
    """Return a token for the region's clusters: a signed request, encoded as AWS's libraries do."""
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    region = settings["region"]
    request = AWSRequest(
        method="GET",
        url=f"https://kafka.{region}.amazonaws.com/",
        params={"Action": "kafka-cluster:Connect"},
    )
    credentials = _credentials(settings)
    SigV4QueryAuth(credentials, "kafka-cluster", region, expires=_TOKEN_S).add_auth(request)
    request.params = {"User-Agent": "mzplan"}
    url: str = request.prepare().url
    return base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def _credentials(settings: dict[str, str]) -> Any:
    """Return the credentials of a role, an access key, or the machine. Raises botocore's errors."""
    import botocore.session
    from botocore.config import Config
    from botocore.credentials import Credentials

    session = botocore.session.Session()
    key, secret = settings.get("access_key_id"), settings.get("secret_access_key")
    if key and secret:
        session.set_credentials(key, secret, settings.get("session_token"))
    if "role_arn" not in settings:
        credentials = session.get_credentials()
        if credentials is None:
            raise ValueError("no AWS credentials here")
        return credentials.get_frozen_credentials()
    config = Config(connect_timeout=3, read_timeout=3, retries={"max_attempts": 1})
    client = session.create_client("sts", region_name=settings["region"], config=config)
    role = client.assume_role(RoleArn=settings["role_arn"], RoleSessionName=_SESSION)["Credentials"]
    return Credentials(role["AccessKeyId"], role["SecretAccessKey"], role["SessionToken"])


def escaped(text: str) -> str:
    """Return a text, escaped for a quoted word of a JAAS line.

    Java's StreamTokenizer reads backslash escapes as C does, and allows no line end in a quoted word.
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


# By the type of connection that uses an aws connection: a class of the jars that it needs.
_CLASSES = {
    "files": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "kafka": "software.amazon.msk.auth.iam.IAMLoginModule",
}
_SCHEME = re.compile(r"s3a?://")


def uses_aws(query: ResolvedQuery) -> bool:
    """Return whether the query's connection has its own AWS credentials."""
    return query.connection is not None and ROLE in query.connection.connections


def as_s3a(path: str) -> str:
    """Return an `s3://…` path with the scheme of Hadoop's client, `s3a://`."""
    return _SCHEME.sub("s3a://", path, count=1)


def use_s3(session: SparkSession, query: ResolvedQuery, folder: str) -> None:
    """Give Spark the credentials for the folder's bucket. Does nothing without an aws connection.

    If Spark has a client with other credentials, closes it, so that the next one uses these. Raises
    MzplanError MZ129 if Spark doesn't have the jars.
    """
    if not uses_aws(query):
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
    if not uses_aws(query):
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
        "MZ129.spark-runs",
        address=query.address,
        resource=link.address,
        jars=jars,
        jar_list=",".join(jars),
        leave_out=leave_out,
    )
