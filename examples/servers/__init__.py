"""Real Kafka, PostgreSQL and SSH servers on this machine, for trying mzplan out and for its tests.

Everything comes from package registries: the broker through the Ivy that PySpark brings along,
PostgreSQL as a wheel (or the server that the machine has); only sshd must be there already. The servers
listen on 127.0.0.1 only and keep their data in a folder of your choice; the same folder is the same server,
also in a later process.

From a shell: ``python -m examples.servers up --dir D``, then ``status`` and ``down``.
This package may not import mzplan: it stands for the world outside.
"""

from examples.servers.errors import ServerError
from examples.servers.java import broker_is_here
from examples.servers.kafka import KafkaBroker
from examples.servers.postgres import PostgresServer
from examples.servers.process import LastingThread
from examples.servers.ssh import SshServer
from examples.servers.topics import create_topic, delete_topic, produce_json

__all__ = [
    "KafkaBroker",
    "LastingThread",
    "PostgresServer",
    "ServerError",
    "SshServer",
    "broker_is_here",
    "create_topic",
    "delete_topic",
    "produce_json",
]
