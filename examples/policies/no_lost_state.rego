# No view loses or mixes its state: all rows of a lost state are read again, and a mixed state gives wrong totals.
package main

import rego.v1

deny contains message if {
	some change in input.changes
	change.query.state in {"lost", "mixed", "unknown"}
	message := sprintf("%s: its state is %s (%s)", [change.address, change.query.state, change.query.because])
}

# A view that keeps its state, although a query that it reads writes other rows from now on.
deny contains message if {
	some diagnostic in input.diagnostics
	diagnostic.code == "MZ340"
	message := sprintf("%s: %s", [diagnostic.address, diagnostic.summary])
}
