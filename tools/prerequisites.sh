#!/bin/sh
# List the missing programs that pip can't install, with a command that installs them.
#
#   tools/prerequisites.sh run                for a runner and `make test`: Python and Java
#   tools/prerequisites.sh smoke              also for `make smoke`: a browser and git
#   tools/prerequisites.sh nightly            also for `make nightly`: npm, sshd and Prometheus
#   tools/prerequisites.sh smoke --packages   print only the names of Debian's or Ubuntu's packages, for scripts
#
# Exits with 1 if a program is missing (0 with --packages). PYTHON and JAVA_HOME replace the PATH's Python and Java.
purpose=${1:-run}
python=${PYTHON:-python3}
java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
missing=""
packages=""
formulas=""

add_missing() { # program, its packages on Debian and Ubuntu, its Homebrew formula
  missing="$missing  - $1
"
  packages="$packages${2:+ $2}"
  formulas="$formulas${3:+ $3}"
}

is_installed() { # whether one of these programs is installed; servers are in folders of root's PATH
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
  add_missing "Python 3.11 or newer (there is no '$python')" "python3 python3-venv" python@3.12
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  add_missing "Python 3.11 or newer ('$python' is $("$python" --version)); choose another with make PYTHON=python3.12 …"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  add_missing "Python's modules venv and ensurepip, for virtual environments" python3-venv
fi
version=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1)
[ "${version:-0}" -ge 17 ] ||
  add_missing "Java 17 or 21, for Spark and Kafka ('$java' is ${version:+Java }${version:-not there}; JAVA_HOME names another)" \
    "openjdk-$jdk-jre-headless" openjdk@17
if [ "$purpose" != run ]; then
  is_installed chromium chromium-browser google-chrome google-chrome-stable ||
    add_missing "a browser, chromium or google-chrome, to draw the graphs of review comments" "$browser" chromium
  is_installed git || add_missing "git, for tests of checkouts and hooks" git git
fi
if [ "$purpose" = nightly ]; then
  is_installed npm || add_missing "npm, to install Mermaid and the YAML server of editors" npm node
  is_installed sshd || add_missing "sshd, for connections through SSH tunnels" openssh-server
  { is_installed prometheus && is_installed promtool; } ||
    add_missing "prometheus and promtool, for examples/monitoring" prometheus prometheus
fi

if [ "${2:-}" = --packages ]; then
  echo "${packages# }"
elif [ -n "$missing" ]; then
  [ "$purpose" = run ] && what="mzplan" || what="make $purpose"
  printf '%s needs these programs, which are missing:\n%s' "$what" "$missing" >&2
  [ -z "$packages" ] || echo "Debian, Ubuntu:  sudo apt-get install$packages" >&2
  [ -z "$formulas" ] || echo "macOS:           brew install$formulas" >&2
  exit 1
fi
