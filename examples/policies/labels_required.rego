# Every created or changed query has the labels `team` (whom to ask) and `severity` (how bad a failure is).
package main

import rego.v1

required := {"team", "severity"}

deny contains message if {
	some change in input.changes
	change.action in {"create", "update", "replace"}
	not startswith(change.address, "connection.")
	some label in required
	not has_label(change, label)
	message := sprintf("%s: the label %s is missing", [change.address, label])
}

has_label(change, label) if label in object.keys(object.get(change, "labels", {}))
