# The Debian and Ubuntu packages that the project needs, and how they are installed. Sourced by
# quickstart.sh and tests/run.sh; does nothing by itself. All output goes to standard error.

# To build and run `fut`.
fut_build_packages=(cmake g++ ninja-build pkg-config nlohmann-json3-dev libsentencepiece-dev
  libcli11-dev libspdlog-dev libfmt-dev libpcre2-dev libedit-dev)
# To build and run the tests as well.
fut_test_packages=("${fut_build_packages[@]}" libgtest-dev libbenchmark-dev python3)
# Shells that take what `fut completions` says; without them their tests are left out. fish, which is larger
# and brings Python along, is tried where it is there.
fut_shell_packages=(zsh)

# fut_install PACKAGE...: installs those that are missing. Works as root or with sudo, and needs
# neither where nothing is missing.
fut_install() {
  local missing=() package as_root=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' ||
      missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then return 0; fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
      echo "These packages are missing and this is neither root nor is sudo there: ${missing[*]}" >&2
      echo "Next: ask for 'apt-get install ${missing[*]}', then start this again." >&2
      return 1
    fi
    as_root=(sudo)
  fi
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "apt-get was not found; the packages are for Debian 12 and Ubuntu 24.04: ${missing[*]}" >&2
    return 1
  fi
  echo "Installing ${missing[*]}" >&2
  "${as_root[@]}" apt-get update -qq >&2 || return 1
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}
