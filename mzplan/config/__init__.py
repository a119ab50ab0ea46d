"""Read the YAML files of a project into a checked, typed Configuration.

The steps, in order:

- project_files finds and reads the files, within limits
- yaml.parser turns them into plain data
- references fills in variables
- declarations collects the resources, with templates and defaults
- checks checks schemas, references, secrets, columns and expressions

Plain data has no positions. Only if something is wrong does locations parse a file again to find the line
and column.

This package must not import mzplan.plan, use the store, or open network connections. Each mistake in a file
becomes a Diagnostic, and one MzplanError carries all of them. No message shows a secret.
"""

from mzplan.config.checks.environment_copies import OtherEnvironment, ReadEnvironment
from mzplan.config.loader import (
    FilesRead,
    environment_names,
    load_configuration,
    load_project,
    read_files,
)

__all__ = [
    "FilesRead",
    "OtherEnvironment",
    "ReadEnvironment",
    "environment_names",
    "load_configuration",
    "load_project",
    "read_files",
]
