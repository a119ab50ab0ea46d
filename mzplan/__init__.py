"""mzplan: Terraform for Spark streaming.

Four nouns carry everything: Configuration (wanted), State (committed), Status (observed) and
Plan (the difference, as data). See docs/internals/architecture.md.
"""

__version__ = "0.1.0"
