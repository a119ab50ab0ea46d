# No query of production is replaced or deleted: a replacement rereads everything, and a deletion loses the position.
package main

import rego.v1

# A plan without an environment counts as production, because it might be.
is_prod if object.get(input, "environment", "prod") == "prod"

deny contains message if {
	is_prod
	some change in input.changes
	change.action in {"replace", "delete"}
	not startswith(change.address, "connection.")
	message := sprintf("%s: %s is not allowed in production (%s)", [change.address, change.action, change.reason])
}
