"""Real Kafka, PostgreSQL and SSH servers on this machine, for trying mzplan out and for its tests.

The broker comes from a package registry, through PySpark's Ivy. PostgreSQL comes as a wheel, or from the
machine. Only sshd must be installed already. The servers listen only on 127.0.0.1, and keep their data in a
folder of your choice. The same folder gives the same server, also in a later process.

From a shell: ``python -m examples.servers up --dir D``, then ``status`` and ``down``.
This package may not import mzplan, because it represents the systems outside mzplan.
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
