"""One-off tasks: the rule that open ones are done before their query starts, and what each kind does."""
