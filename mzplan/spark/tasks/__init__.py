"""One-off tasks: open tasks are done before their query starts; one module for each kind."""
