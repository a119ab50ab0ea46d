# No view loses or mixes its state: all rows of a lost state are read again, and a mixed state gives wrong totals.
package main

import rego.v1

deny contains message if {
	some change in input.changes
	change.query.state in {"lost", "mixed", "unknown"}
	message := sprintf("%s: its state is %s (%s)", [change.address, change.query.state, change.query.because])
}
