"""From YAML files to a checked, typed Configuration.

files (find and read, bounded) → yaml.parser (events → plain data) → references (variables filled in) →
declarations (with templates and defaults) → checks (schemas, references, secrets, columns, expressions) →
resources. The normal path keeps no positions: when something is wrong, the file is parsed again in a mode
that finds them (yaml.positions).

May not: import mzplan.plan, touch the store, or reach over the network. Everything that a person can write
wrong ends as a Diagnostic inside one MzplanError; a secret written out is never shown.
"""

from mzplan.config.loader import (
    FilesRead,
    environment_names,
    load_configuration,
    load_project,
    read_files,
)

__all__ = ["FilesRead", "environment_names", "load_configuration", "load_project", "read_files"]
