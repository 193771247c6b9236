# Shared by the scripts of this folder; sourced, never run. Sets REPO and the paths below, and changes to REPO.
# shellcheck shell=bash disable=SC2034
set -euo pipefail

SCRIPT_NAME=${0##*/}
START_DIR=$PWD
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
DEPS=$REPO/.deps               # everything that the set-up installs, except Debian packages
SYSROOT=$DEPS/sysroot          # Debian packages unpacked without root, if the system lacks them
CACHE=$DEPS/cache              # downloads
FRAMEWORKS=$DEPS/frameworks    # Python packages of the tests with the label frameworks
ENV_FILE=$DEPS/env.sh          # written by scripts/setup: environment variables for builds
KEPT_BUNDLE=$DEPS/bundle       # the bundle of an offline set-up: if it exists, no script uses the network
DATA_DIR=$REPO/.data/mnist_5k  # the default data set, as IDX files
cd "$REPO"

step() { printf '==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
die() {
  printf '%s: error: %s\n' "$SCRIPT_NAME" "$*" >&2
  exit 1
}

# misuse WHAT: ends the script because of its command line.
misuse() {
  printf '%s: %s; see scripts/%s --help\n' "$SCRIPT_NAME" "$*" "$SCRIPT_NAME" >&2
  exit 2
}

have() { command -v "$1" >/dev/null 2>&1; }

# usage: prints the comment block under the running script's first line.
usage() { sed -n '2,/^[^#]/{/^# shellcheck/d; s/^# \{0,1\}//p}' "$REPO/scripts/$SCRIPT_NAME"; }

# absolute_path PATH: relative to the folder in which the user called the script.
absolute_path() {
  case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$START_DIR/$1" ;;
  esac
}

# need_root WHAT: sets AS_ROOT to the prefix that runs a command as root; WHAT is for the error message if there is
# none.
need_root() {
  AS_ROOT=()
  [ "$(id -u)" -ne 0 ] || return 0
  if ! have sudo || ! { sudo -n true 2>/dev/null || [ -t 0 ]; }; then die "$1 needs root, and sudo is not usable here"; fi
  AS_ROOT=(sudo)
}

load_env() {
  # shellcheck source=/dev/null
  if [ -f "$ENV_FILE" ]; then . "$ENV_FILE"; fi
}

# processors: the number that this process may use. nproc alone would answer OMP_NUM_THREADS, which is often 1 where
# LibTorch is used.
processors() {
  env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc
}

# build_jobs: the number of processors, at most one for each 2 GB of free memory: a unit that includes LibTorch takes
# that much.
build_jobs() {
  local cores by_memory
  cores=$(processors)
  by_memory=$(awk '/^MemAvailable:/ { print int($2 / 2000000) }' /proc/meminfo)
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}
# build_preset PRESET TARGETS [CMAKE_ARGUMENT…]: configures build/PRESET if needed and builds the targets (words).
build_preset() {
  local preset=$1 targets
  local folder=$REPO/build/$preset
  read -ra targets <<<"$2"
  shift 2
  local arguments=("$@")
  [ -z "${PSD_PYTHON:-}" ] || arguments+=("-DPSD_PYTHON=$PSD_PYTHON")
  # Programs linked with the unpacked packages find them, and their dependencies, without LD_LIBRARY_PATH.
  [ -z "${PSD_SYSROOT:-}" ] || arguments+=("-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags")
  local wanted
  wanted=$(printf '%s\n' "${arguments[@]}" "${CMAKE_PREFIX_PATH:-}")
  if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/.arguments" 2>/dev/null)" != "$wanted" ]; then
    step "Configuring build/$preset"
    mkdir -p "$folder"
    cmake --preset "$preset" "${arguments[@]}" >"$folder/configure.log" 2>&1 || {
      tail -n 20 "$folder/configure.log" >&2
      die "cmake could not configure build/$preset (see the error above; the whole log: build/$preset/configure.log)"
    }
    printf '%s\n' "$wanted" >"$folder/.arguments"
  fi
  # Two checkouts share ccache's objects: paths below this one are hashed as relative ones.
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$REPO}
  local jobs
  jobs=$(build_jobs)
  step "Building $(IFS=,; echo "${targets[*]}") in build/$preset with $jobs job(s)"
  cmake --build "$folder" -j "$jobs" --target "${targets[@]}" || die "the build of build/$preset failed (see its first error above)"
}
