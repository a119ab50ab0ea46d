#!/bin/sh
# What is missing on this machine and pip can't bring: all of it at once, with the line that installs it.
#
#   tools/prerequisites.sh run                   what running and `make test` need: Python and Java
#   tools/prerequisites.sh smoke              what `make smoke` also needs: a browser and git
#   tools/prerequisites.sh nightly            what `make nightly` also needs: these, npm, sshd and Prometheus
#   tools/prerequisites.sh smoke --packages   only the names of Debian's or Ubuntu's packages, for scripts
#
# Exit code 1 when something is missing (0 with --packages). PYTHON and JAVA_HOME name others than the PATH's.
purpose=${1:-run}
python=${PYTHON:-python3}
java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
lacking=""
packages=""
formulas=""

lacks() { # what, its packages on Debian and Ubuntu, and Homebrew's
  lacking="$lacking  - $1
"
  packages="$packages${2:+ $2}"
  formulas="$formulas${3:+ $3}"
}

there() { # one of these programs; servers are where only root looks
  for name in "$@"; do
    (PATH="$PATH:${SBIN:-/usr/sbin:/usr/local/sbin}" && command -v "$name") >/dev/null 2>&1 && return 0
  done
  return 1
}

ID="" VERSION_ID=""
[ -r "${OS_RELEASE:=/etc/os-release}" ] && . "$OS_RELEASE"
jdk=17 browser=chromium
[ "$ID" = debian ] && [ "${VERSION_ID%%.*}" -ge 13 ] 2>/dev/null && jdk=21 # Debian 13 has no 17
[ "$ID" = ubuntu ] && browser=chromium-browser

if ! "$python" -c '' 2>/dev/null; then
  lacks "Python 3.11 or newer (there is no '$python')" "python3 python3-venv" python@3.12
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  lacks "Python 3.11 or newer ('$python' is $("$python" --version)): install one and name it, make PYTHON=python3.12 …"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  lacks "Python's virtual environments ('$python' can't make any)" python3-venv
fi
version=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1)
[ "${version:-0}" -ge 17 ] ||
  lacks "Java 17 or 21, for Spark and Kafka ('$java' is ${version:+Java }${version:-not there}; JAVA_HOME names another)" \
    "openjdk-$jdk-jre-headless" openjdk@17
if [ "$purpose" != run ]; then
  there chromium chromium-browser google-chrome google-chrome-stable ||
    lacks "a browser, chromium or google-chrome, which draws the graphs of review comments" "$browser" chromium
  there git || lacks "git, whose checkouts and hooks are tried" git git
fi
if [ "$purpose" = nightly ]; then
  there npm || lacks "npm, which brings Mermaid for them, and the YAML server of editors" npm node
  there sshd || lacks "sshd, which connections go through" openssh-server
  { there prometheus && there promtool; } ||
    lacks "prometheus and promtool, which examples/monitoring is tried with" prometheus prometheus
fi

if [ "${2:-}" = --packages ]; then
  echo "${packages# }"
elif [ -n "$lacking" ]; then
  [ "$purpose" = run ] && what="mzplan needs" || what="make $purpose needs"
  printf '%s what is missing here:\n%s' "$what" "$lacking" >&2
  [ -z "$packages" ] || echo "Debian, Ubuntu:  sudo apt-get install$packages" >&2
  [ -z "$formulas" ] || echo "macOS:           brew install$formulas" >&2
  exit 1
fi
