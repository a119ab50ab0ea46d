"""A Kafka broker in one process (KRaft: broker and controller together), on 127.0.0.1."""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException

from examples.servers.errors import ServerError
from examples.servers.java import broker_jars, find_java
from examples.servers.ports import HOST, answers, free_port, require_free
from examples.servers.server import Server
from examples.servers.topics import admin

#: Names of the two client listeners, as in ``listener.name.first.ssl.keystore.location``.
LISTENERS = ("FIRST", "SECOND")

# For one broker with few partitions, which starts fast and deletes nothing. User properties override these.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    # The broker has its own listener, so it can reach itself even if a client listener is off.
    "inter.broker.listener.name": "INTERNAL",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    # The default, 128 MB, would be a quarter of the heap.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "num.network.threads": "2",
    "num.io.threads": "4",
    # After a SIGKILL, the broker can register again only when its former session has expired. With a much
    # shorter timeout, a slow broker on a busy machine would lose its session.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
}

_LOG4J = """\
log4j.rootLogger=WARN, out
log4j.logger.kafka.server.KafkaRaftServer=INFO
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


class KafkaBroker(Server):
    """A broker with two client listeners on two ports, to demonstrate a broker that moves.

    ``ports``: the ports of the two listeners; by default the earlier ones of this ``workdir``, or free ones.
    ``protocols``: security protocol of each listener (``PLAINTEXT``, ``SSL``, ``SASL_SSL``, …).
    ``properties``: server properties that override ours; read at each start, so they may change in between.

    The broker doesn't create topics automatically, and retention never deletes a record.
    """

    name = "kafka"

    def __init__(
        self,
        workdir: Path,
        ports: Sequence[int] | None = None,
        *,
        protocols: Sequence[str] = ("PLAINTEXT", "PLAINTEXT"),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(workdir)
        self.protocols = tuple(protocols)
        self.properties = dict(properties or {})
        facts = self._facts()
        self.ports = _two(ports or facts.get("ports") or _free_ports(2))
        # For the broker's own listeners, which use plain text whatever protocol the clients use.
        self._own_ports = _two(facts.get("own_ports") or _free_ports(2, avoid=self.ports))

    @property
    def bootstrap(self) -> str:
        """Return the address of the first client listener, even if it is off."""
        return f"{HOST}:{self.ports[0]}"

    @property
    def bootstrap2(self) -> str:
        """Return the address of the second client listener, even if it is off."""
        return f"{HOST}:{self.ports[1]}"

    @property
    def internal(self) -> str:
        """Return the address of the broker's own listener: always on, in plain text, to set up SASL users."""
        return f"{HOST}:{self._own_ports[0]}"

    @property
    def cluster_id(self) -> str:
        """Return the cluster's id, which stays with the data. Raises ServerError before the first start."""
        try:
            lines = (self._data / "meta.properties").read_text().splitlines()
        except FileNotFoundError:
            raise ServerError(f"the Kafka broker in {self.workdir} has no data yet: start it first") from None
        return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]

    def start(
        self,
        *,
        ports: Sequence[int] | None = None,
        listeners: Sequence[int] = (1, 2),
        detached: bool = False,
        timeout_s: float = 120.0,
    ) -> None:
        """Start the broker and wait until it answers a metadata request and accepts clients.

        ``ports``: new ports for the two client listeners, with the same data.
        ``listeners``: the listeners that are on this time, out of 1 and 2; the other address doesn't answer.
        ``detached``: the broker continues after this process ends.
        Does nothing if the broker runs. Raises ServerError if it can't start, or if it already runs on other
        ports.
        """
        if self.pid is not None:
            if ports is not None and _two(ports) != self.ports:
                raise ServerError(f"Kafka already runs, on ports {self.ports}; stop it before it can move")
            return
        if ports is not None:
            self.ports = _two(ports)
        chosen = [number - 1 for number in listeners]
        if not chosen or not set(chosen) <= {0, 1}:
            raise ValueError(f"listeners must be 1, 2 or both, not {tuple(listeners)}")
        for port in (*(self.ports[index] for index in chosen), *self._own_ports):
            require_free(port, "Kafka")
        java = find_java()
        jars = broker_jars(java)
        self._keep_facts(ports=self.ports, own_ports=self._own_ports)
        configuration = self._write_configuration(chosen)
        command: list[str | Path] = [java, "-Xmx512m", "-XX:+UseSerialGC"]
        command += [f"-Dlog4j.configuration=file:{self.workdir / 'log4j.properties'}", "-cp", f"{jars}/*"]
        if not (self._data / "meta.properties").exists():
            self._format([*command, "kafka.tools.StorageTool", "format"], configuration)
        self._process.spawn([*command, "kafka.Kafka", configuration], detached=detached, cwd=self.workdir)
        self._wait_until_ready(lambda: self._problem(chosen), timeout_s=timeout_s)

    def stop(self) -> None:
        """Shut the broker down cleanly; after 30 s, kill it."""
        self._process.end((signal.SIGTERM, 30.0), (signal.SIGKILL, 30.0))

    def remove_data(self) -> None:
        """Stop the broker, and delete its topics and its cluster id. Keep the log and the ports."""
        self.stop()
        shutil.rmtree(self._data, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self.workdir / "data"

    def _write_configuration(self, chosen: Sequence[int]) -> Path:
        clients = [f"{LISTENERS[index]}://{HOST}:{self.ports[index]}" for index in chosen]
        own, controller = self._own_ports
        advertised = [*clients, f"INTERNAL://{HOST}:{own}"]
        protocols = [f"{LISTENERS[index]}:{self.protocols[index]}" for index in chosen]
        properties = {
            **_PROPERTIES,
            "log.dirs": str(self._data),
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": ",".join([*advertised, f"CONTROLLER://{HOST}:{controller}"]),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(
                [*protocols, "INTERNAL:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
            ),
            **self.properties,
        }
        (self.workdir / "log4j.properties").write_text(_LOG4J)
        path = self.workdir / "server.properties"
        # In a Java properties file, a backslash begins an escape.
        lines = [f"{name}={value}".replace("\\", "\\\\") for name, value in properties.items()]
        path.touch(mode=0o600)  # properties may hold passwords
        path.write_text("\n".join(lines) + "\n")
        return path

    def _format(self, command: Sequence[str | Path], configuration: Path) -> None:
        """Give the empty data folder a cluster id."""
        # The form of Kafka's own random-uuid, with "m" in front, because a leading dash looks like an option.
        cluster_id = "m" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:20] + "g"
        words = [*command, "--ignore-formatted", "-t", cluster_id, "-c", configuration]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            raise ServerError(f"Kafka could not set up its data folder {self._data}", said)

    def _problem(self, chosen: Sequence[int]) -> str | None:
        """Return why clients can't use the broker yet; None if it is ready."""
        if not answers(self._own_ports[0]):
            return "its port is not open"
        try:
            brokers = admin(self.internal).list_topics(timeout=5).brokers
        except KafkaException as error:
            return str(error.args[0].str())
        if not brokers:
            return "no broker in its metadata"
        closed = [self.ports[index] for index in chosen if not answers(self.ports[index])]
        return f"port {closed[0]} is not open" if closed else None


def _free_ports(count: int, avoid: Sequence[int] = ()) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        ports.append(free_port([*avoid, *ports]))
    return ports


def _two(ports: Sequence[int]) -> tuple[int, int]:
    if len(ports) != 2 or ports[0] == ports[1]:
        raise ValueError(f"Kafka has two client listeners: two different ports, not {tuple(ports)}")
    return ports[0], ports[1]
