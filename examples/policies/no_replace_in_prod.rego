# Nothing of production begins again: a replacement reads everything anew, and a deletion forgets it.
package main

import rego.v1

# A plan that names no environment counts as production: a policy that does not know must not let it pass.
is_prod if object.get(input, "environment", "prod") == "prod"

deny contains message if {
	is_prod
	some change in input.changes
	change.action in {"replace", "delete"}
	not startswith(change.address, "connection.")
	message := sprintf("%s: %s is not done in production (%s)", [change.address, change.action, change.reason])
}
