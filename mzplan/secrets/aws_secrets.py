"""AWS Secrets Manager: `${aws-sm:NAME}`, and `${aws-sm:NAME#KEY}` for a key of a JSON object.

AWS's libraries find region, endpoint and login in the process's environment and the machine's role. They
never come from a connection.
"""

from __future__ import annotations

import os
import re
import threading
from typing import Any

from mzplan.secrets.providers import Content, NotReachableError, RefusedError

TIMEOUT = 5.0  # seconds to connect, and to receive an answer
_NAME = re.compile(r"[A-Za-z0-9/_+=.@:-]{1,2048}")  # also matches an ARN
_INSTALL = "pip install 'mzplan[aws]' where the runner is, and start it again."
_SIGN_IN = (
    "give the runner a role, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with the permission "
    "secretsmanager:GetSecretValue (and kms:Decrypt, if the secret has your own key)."
)
# InvalidRequestException: the secret is marked for deletion.
_MISSING = frozenset({"ResourceNotFoundException", "InvalidRequestException"})
_TEMPORARY = frozenset(
    {"ThrottlingException", "InternalServiceError", "ServiceUnavailable", "RequestTimeout"}
)


class SecretsManager:
    """AWS Secrets Manager in this process's region."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Any = None

    def fault_of(self, name: str) -> str | None:
        """Return a sentence that says what is wrong with a secret's name, or None."""
        path, mark, key = name.partition("#")
        if not _NAME.fullmatch(path):
            return "It is neither an ARN nor a secret's name (letters, digits and / _ + = . @ -)."
        return "The key after # is missing." if mark and not key else None

    def read(self, path: str) -> Content:
        """Return the current version of a secret, as text."""
        if fault := self.fault_of(path):
            raise RefusedError(fault, "write its name, or its ARN.")
        try:
            from botocore import exceptions
        except ModuleNotFoundError as missing:
            raise RefusedError(f"The package {missing.name} is not installed.", _INSTALL) from None
        try:
            answer = self._get_client().get_secret_value(SecretId=path)
        except exceptions.ClientError as problem:
            self._client = None  # so that the next client may find another login
            _raise_unless_missing(problem)
            return None
        except exceptions.NoRegionError:
            raise RefusedError(
                "The runner has no AWS region.", "set AWS_REGION where the runner starts."
            ) from None
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.TokenRetrievalError,
            exceptions.ProfileNotFound,
        ):
            raise RefusedError("The runner has no login for AWS.", _SIGN_IN) from None
        except (exceptions.BotoCoreError, OSError, ValueError) as problem:
            raise NotReachableError(
                f"AWS Secrets Manager doesn't answer: {type(problem).__name__}.",
                "check AWS_REGION, and that the runner can reach AWS Secrets Manager.",
            ) from None
        except Exception as problem:  # botocore doesn't check the answer's structure
            raise NotReachableError(
                f"The server that answers isn't AWS Secrets Manager: {type(problem).__name__}.",
                "check AWS_ENDPOINT_URL and the proxy settings of the runner.",
            ) from None
        text = answer.get("SecretString")
        if not isinstance(text, str):
            raise RefusedError(f"{path} is stored as bytes.", "store it as text.")
        return text

    def _get_client(self) -> Any:
        from botocore.config import Config
        from botocore.session import Session

        with self._lock:
            if self._client is None:
                config = Config(
                    connect_timeout=TIMEOUT, read_timeout=TIMEOUT, retries={"total_max_attempts": 1}
                )
                region = os.environ.get("AWS_REGION") or None  # set by EKS, for example
                self._client = Session().create_client("secretsmanager", region_name=region, config=config)
            return self._client


provider = SecretsManager()


def _raise_unless_missing(problem: Any) -> None:
    """Raise the error for AWS's error code, unless it says that the secret doesn't exist."""
    code = str(problem.response.get("Error", {}).get("Code", ""))[:60]
    status = problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _MISSING:
        return
    if code in _TEMPORARY or status >= 500:
        raise NotReachableError(
            f"AWS Secrets Manager can't answer now: {code}.", "wait; mzplan asks again soon."
        ) from None
    raise RefusedError(f"AWS Secrets Manager refused: {code}.", _SIGN_IN) from None
