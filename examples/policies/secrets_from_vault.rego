# Secrets come from Vault: no variable of an environment, no file. A change is asked for what it would commit.
package main

import rego.v1

deny contains message if {
	some change in input.changes
	some secret in object.get(change, "secrets", [])
	secret.provider != "vault"
	message := sprintf("%s: %s comes from %s, not from vault", [change.address, secret.path, secret.provider])
}
