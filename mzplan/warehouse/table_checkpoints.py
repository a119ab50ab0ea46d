"""The checkpoints of a Delta table's log, which others may have written: which there are, what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mzplan.warehouse.folder import MalformedError, decoding, ensure_file, file_system, open_folder
from mzplan.warehouse.log_entries import action_of

_DECODED = 1 << 28  # bytes of a checkpoint, of one kind of action; of all its other rows there are some bits
_VALUES = 1 << 28  # of a checkpoint and one kind of action, nulls among them
_KEPT = 100_000  # of a checkpoint and one kind of action; there is one for each writer that the table has had
_FILES = ("add", "remove")
_ODD = r"^/|^$|[:%]|\.\.|\x00"  # of a name: only such a one can lead anywhere else
_TOO_LARGE = f"it holds more than {_DECODED >> 20} MiB, or {_KEPT:,} actions of a kind"
_ROWS = 1024  # of a checkpoint that are decoded at once
_FILE = ("path", "deletionVector.storageType", "deletionVector.pathOrInlineDv")
# Of each kind of action in a checkpoint, what is read here. The first column each one has.
_COLUMNS = {
    "txn": ["txn.appId", "txn.version"],
    "protocol": ["protocol.minReaderVersion", "protocol.readerFeatures", "protocol.writerFeatures"],
    "metaData": ["metaData.schemaString", "metaData.configuration", "metaData.partitionColumns"],
    "add": [f"add.{column}" for column in _FILE],
    "remove": [f"remove.{column}" for column in _FILE],
    "sidecar": ["sidecar.path"],
}
# What Delta takes for an entry of a log by its name, and what of these is read here.
_ENTRY = re.compile(
    r"\d+\.(json|crc|checkpoint((\.\d+\.\d+)?\.parquet|\.[^.]+\.(json|parquet)))|\d+\.\d+\.compacted\.json"
)
_READ = re.compile(
    r"([0-9]{20})\.(?:json|crc|checkpoint(?:\.([0-9]{10})\.([0-9]{10}))?\.parquet"
    r"|checkpoint\.[0-9a-f-]{36}\.(?:json|parquet)|[0-9]{20}\.compacted\.json)"
)
_SIDECAR = re.compile(r"[\w-][\w.-]*\.parquet", re.ASCII)  # always in _sidecars; Delta writes no path


def checkpoints_of(names: Iterable[str]) -> dict[int, list[str]]:
    """The files of each whole checkpoint among the names in a log, by its version. Raises ValueError for a
    name that Delta would take for an entry and that is read here otherwise, or not at all."""
    files: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], set[str]] = {}
    for name in filter(_ENTRY.fullmatch, names):
        match = _READ.fullmatch(name)
        if match is None:
            raise ValueError(f"{name} is an entry with a name that mzplan does not read")
        version, number = int(match[1]), match[3]
        if number is not None:
            parts.setdefault((version, int(number)), set()).add(name)
        elif ".checkpoint." in name:
            files.setdefault(version, []).append(name)
    for (version, number), names_of_parts in parts.items():
        if len(names_of_parts) == number:  # Delta passes over one that is not whole
            files.setdefault(version, []).extend(sorted(names_of_parts))
    return files


def actions_in(log: str, name: str, action: str) -> list[dict[str, Any]]:
    """Of one kind, those in a file of one of Delta's checkpoints, and in its sidecars; of files, only those
    whose names could lead out of the table. Raises OSError, also for a file that decodes to far more than a
    checkpoint has: a few hundred bytes can hold a thousand million rows."""
    actions = _in_file(log, name, action)
    if action not in _FILES:
        return actions
    sidecars = sorted({str(sidecar["path"]) for sidecar in _in_file(log, name, "sidecar")})
    for sidecar in sidecars:
        if not _SIDECAR.fullmatch(sidecar):
            raise MalformedError(f"{log}/{name} is damaged: {sidecar[:200]} is no name of a sidecar")
        actions += _in_parquet(f"{log}/_sidecars/{sidecar}", action)
    return actions


def _in_file(log: str, name: str, action: str) -> list[dict[str, Any]]:
    if name.endswith(".parquet"):
        return _in_parquet(f"{log}/{name}", action)
    with decoding(f"{log}/{name}"):
        entries = map(action_of, (open_folder(log).read(name) or b"").splitlines())
        return [entry[action] for entry in entries if action in entry]


def _in_parquet(place: str, action: str) -> list[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    ensure_file(place)
    system, path = file_system(place)
    actions: list[dict[str, Any]] = []
    decoded = 0
    try:
        with parquet.ParquetFile(path, filesystem=system) as file:
            metadata = file.metadata
            if not _has(file.schema, action) and action in (*_FILES, "sidecar"):
                return actions
            texts = _texts(file.schema, action)
        # A file says itself how long its texts are: a dictionary is never written out before it is measured.
        with parquet.ParquetFile(path, metadata=metadata, filesystem=system, read_dictionary=texts) as file:
            for batch in file.iter_batches(_rows_at_once(metadata, action), columns=_COLUMNS[action]):
                kept = batch.column(action).drop_null()
                if decoded + _size(kept) > _DECODED:
                    raise ValueError(_TOO_LARGE)
                if action in _FILES:
                    kept = kept.filter(_is_suspicious(kept))
                if len(actions) + len(kept) > _KEPT:
                    raise ValueError(_TOO_LARGE)
                rows = kept.to_pylist()
                decoded += sum(len(str(row)) for row in rows)
                if decoded > _DECODED:
                    raise ValueError(_TOO_LARGE)
                actions += rows
    except (pa.ArrowException, KeyError, ValueError) as problem:
        raise MalformedError(f"{place} is damaged: {problem}") from None
    return actions


def _has(schema: Any, action: str) -> bool:
    """Whether a file has such actions. Raises ValueError for a column that only Spark, which ignores case,
    would take for one that is read here."""
    columns = [schema.column(number).path for number in range(len(schema))]
    for wanted in (f"{action}.", *_COLUMNS[action]):
        for column in columns:
            if column.lower().startswith(wanted.lower()) and not column.startswith(wanted):
                raise ValueError(f"{column} is no column of a checkpoint")
    return any(column.startswith(f"{action}.") for column in columns)


def _texts(schema: Any, action: str) -> list[str]:
    """The columns of an action that are read and have texts. Raises ValueError for one of another kind that
    can be as long: no checkpoint has it."""
    columns = [schema.column(number) for number in range(len(schema))]
    read = [
        column for column in columns if f"{column.path}.".startswith(tuple(f"{c}." for c in _COLUMNS[action]))
    ]
    if any(column.physical_type == "FIXED_LEN_BYTE_ARRAY" for column in read):
        raise ValueError("it has texts of a fixed length")
    return [column.path for column in read if column.physical_type == "BYTE_ARRAY"]


def _size(array: Any) -> int:
    """Bytes of an array with each text of a dictionary as often as it is there."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_struct(array.type):
        return sum(map(_size, array.flatten()))
    if pa.types.is_map(array.type):
        return _size(array.keys) + _size(array.items)
    if pa.types.is_nested(array.type):
        return _size(array.flatten())
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    written: int = compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0
    return int(array.indices.nbytes) + written


def _is_suspicious(files: Any) -> Any:
    """Of each, whether its name has to be looked at: most are plain, and there may be a million."""
    import pyarrow as pa
    from pyarrow import compute

    names = compute.struct_field(files, "path")
    if pa.types.is_dictionary(names.type):
        names = names.cast(pa.string())
    odd = compute.match_substring_regex(names, _ODD).fill_null(True)
    if files.type.get_field_index("deletionVector") < 0:
        return odd
    return compute.or_(odd, compute.struct_field(files, "deletionVector").is_valid())


def _rows_at_once(metadata: Any, action: str) -> int:
    """Of a checkpoint, so few that they fit even where each has the longest text that its file can hold."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    columns = (group.column(at) for group in groups for at in range(group.num_columns))
    read = [column for column in columns if column.path_in_schema.startswith(f"{action}.")]
    if sum(column.num_values for column in read) > _VALUES:
        raise ValueError(_TOO_LARGE)
    texts = (column for column in read if column.physical_type == "BYTE_ARRAY")
    if any(encoding.startswith("DELTA_") for column in texts for encoding in column.encodings):
        raise ValueError(
            "its texts are encoded as DELTA_…: a few bytes of that may be as many texts as one likes"
        )
    longest: int = max((column.total_uncompressed_size for column in read), default=0)
    return max(1, min(_ROWS, _DECODED // max(1, longest)))
