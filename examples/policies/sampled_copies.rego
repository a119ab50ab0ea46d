# A source that copies another environment's collection reads a sample of it.
package main

import rego.v1

copied(change) := field.after if {
	some field in change.fields
	field.path == "from_environment"
	field.after != null
}

is_sampled(change) if {
	some field in change.fields
	field.path == "sample"
	field.after != null
}

# A changed sample counts even if the copy itself isn't new.
deny contains message if {
	some change in input.changes
	environment := copied(change)
	not is_sampled(change)
	message := sprintf("%s: copies %s without a sample", [change.address, environment])
}

deny contains message if {
	some change in input.changes
	some field in change.fields
	field.path == "sample"
	field.before != null
	field.after == null
	message := sprintf("%s: the sample is removed", [change.address])
}
