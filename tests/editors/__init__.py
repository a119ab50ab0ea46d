"""The YAML server that editors run."""
