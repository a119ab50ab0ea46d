# All secrets of changed resources come from Vault, not from environment variables or files.
package main

import rego.v1

deny contains message if {
	some change in input.changes
	some secret in object.get(change, "secrets", [])
	secret.provider != "vault"
	message := sprintf("%s: %s comes from %s, not from vault", [change.address, secret.path, secret.provider])
}
