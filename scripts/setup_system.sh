# Part of scripts/setup and scripts/bundle: Debian packages, from apt or unpacked into .deps/sysroot. Sourced after
# lib.sh.
# shellcheck shell=bash disable=SC2016,SC2034

CMAKE_MINIMUM=3.22
# Ubuntu 22.04 ships Cap'n Proto 0.8, psd needs 0.9. Debian 12's packages require nothing that Ubuntu 22.04 lacks (libc
# 2.34, libstdc++ 11, OpenSSL 3), so they are unpacked beside the system, each verified by its SHA-256.
CAPNP_POOL=${PSD_DEBIAN_MIRROR:-http://ftp.debian.org/debian}/pool/main/c/capnproto
CAPNP_DEBS=(
  "capnproto_0.9.2-2_amd64.deb 0938f08c53878508a0afc305e69c424964f6505517bb2372a43d140a48a3e7d7"
  "libcapnp-0.9.2_0.9.2-2_amd64.deb 45ce95f7c99ab1e90aefb79a71d75809ce8f758f64e4eba5e3e2ce84e743efff"
  "libcapnp-dev_0.9.2-2_amd64.deb 187f47ef4012b10c9ebb88a4ed6de096de9d8e126c15f949215860ee23b140e3"
)

LIBRARY_PACKAGES=(libcli11-dev libspdlog-dev nlohmann-json3-dev catch2 zlib1g-dev libssl-dev libjs-chart.js)
CAPNP_PACKAGES=(capnproto libcapnp-dev)

version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

multiarch() { dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo "$(uname -m)-linux-gnu"; }

# detect_system: sets CAPNP_FROM=apt|pool and CHROMIUM_FROM_APT, or fails if this system is not supported.
detect_system() {
  local ID=unknown VERSION_ID='' PRETTY_NAME=''
  # shellcheck source=/dev/null
  . "${PSD_OS_RELEASE:-/etc/os-release}"
  CAPNP_FROM=apt CHROMIUM_FROM_APT=no
  case $ID in
    debian) # testing and unstable have no version
      CHROMIUM_FROM_APT=yes
      [ -z "$VERSION_ID" ] || version_at_least "$VERSION_ID" 12 || unsupported_system ;;
    ubuntu)
      version_at_least "$VERSION_ID" 22.04 || unsupported_system
      version_at_least "$VERSION_ID" 23.04 || CAPNP_FROM=pool ;;
    *) unsupported_system ;;
  esac
  [ $CAPNP_FROM = apt ] || [ "$(dpkg --print-architecture)" = amd64 ] ||
    die "$PRETTY_NAME has no Cap'n Proto 0.9 for $(dpkg --print-architecture): install it in /usr/local or use Ubuntu 24.04"
}

unsupported_system() {
  die "${PRETTY_NAME:-$ID $VERSION_ID} is not supported: scripts/setup supports Debian 12 and Ubuntu 22.04 or later"
}

# missing_packages PACKAGE…: those that dpkg does not list as installed.
missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

# missing_tools: packages of programs that are not on PATH, however they were installed.
missing_tools() {
  have g++ || echo g++
  have cmake && version_at_least "$(cmake_version)" $CMAKE_MINIMUM || echo cmake
  have ninja || echo ninja-build
  have ccache || echo ccache
  have pkg-config || echo pkg-config
  have git || echo git
  have curl || [ "$CAPNP_FROM" = apt ] || echo curl
  have python3 || echo python3
  python3 -c 'import venv, ensurepip' 2>/dev/null || missing_packages python3-venv
  [ "$WITH_TESTS" = no ] || missing_test_tools
}

missing_test_tools() {
  has_python_headers || missing_packages python3-dev
  have openssl || echo openssl
  # Ubuntu 22.04, with Cap'n Proto from the pool, has an etcd that is too old: its tests are skipped.
  [ "$CAPNP_FROM" = pool ] || have etcd || echo etcd-server
  # Ubuntu's Chromium is a snap, whose driver cannot access a test's folder: its tests are skipped.
  if [ "$CHROMIUM_FROM_APT" = yes ]; then
    have chromium || echo chromium
    have chromedriver || echo chromium-driver
  fi
  have promtool && have prometheus || echo prometheus
  have zsh || echo zsh
  have fish || echo fish
  # The tests of configs/launch/slurm.sh and of network cuts run only as root.
  [ "$(id -u)" -ne 0 ] || missing_packages slurm-wlm munge iproute2 nftables
}

has_python_headers() {
  python3 -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_paths()["include"], "Python.h"))' 2>/dev/null
}

cmake_version() { cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p'; }

# apt_install PACKAGE…
apt_install() {
  local options=(-qq -o DPkg::Lock::Timeout=120)
  need_root "apt-get install $*"
  note "installing with apt: $*"
  {
    "${AS_ROOT[@]}" apt-get update "${options[@]}" &&
      "${AS_ROOT[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install "${options[@]}" -y --no-install-recommends "$@"
  } >"$DEPS/apt.log" 2>&1 || die "apt-get could not install $*: is there a network? (its log: .deps/apt.log)"
}

setup_packages() {
  local missing libraries=("${LIBRARY_PACKAGES[@]}")
  [ "$CAPNP_FROM" = pool ] || libraries+=("${CAPNP_PACKAGES[@]}")
  mapfile -t missing < <(missing_tools; missing_packages "${libraries[@]}")
  if [ ${#missing[@]} -gt 0 ]; then
    apt_install "${missing[@]}"
  else
    note "all are installed"
  fi
  if [ "$CAPNP_FROM" = pool ]; then
    fetch_capnp
    unpack_sysroot "${FETCHED_DEBS[@]}"
  else
    rm -rf "$SYSROOT"
  fi
}

# fetch_capnp: sets FETCHED_DEBS to the downloaded and verified packages.
fetch_capnp() {
  local entry name sha
  FETCHED_DEBS=()
  for entry in "${CAPNP_DEBS[@]}"; do
    read -r name sha <<<"$entry"
    if [ ! -f "$CACHE/$name" ]; then
      note "downloading $name"
      curl -fsL --retry 3 -o "$CACHE/$name.part" "$CAPNP_POOL/$name" ||
        die "could not download $CAPNP_POOL/$name: is there a network? (PSD_DEBIAN_MIRROR names a mirror)"
      mv "$CACHE/$name.part" "$CACHE/$name"
    fi
    sha256sum --check --status <<<"$sha  $CACHE/$name" || die "$CACHE/$name has a wrong SHA-256: delete it and run again"
    FETCHED_DEBS+=("$CACHE/$name")
  done
}

check_tools() {
  local tool
  for tool in g++ cmake ninja; do
    have $tool || die "$tool is missing: install it, or put it on PATH"
  done
  version_at_least "$(cmake_version)" $CMAKE_MINIMUM || die "cmake $(cmake_version) is too old: $CMAKE_MINIMUM or later is needed"
  version_at_least "$(g++ -dumpfullversion)" 11 || die "g++ $(g++ -dumpfullversion) is too old: 11 or later is needed for C++20"
}

# --- Packages unpacked without root -----------------------------------------------------------------------------

# unpack_sysroot DEB…: into .deps/sysroot, with paths adjusted; does nothing if these very files are unpacked.
unpack_sysroot() {
  local stamp=$SYSROOT/.packages deb
  if [ "$(cat "$stamp" 2>/dev/null)" = "$(printf '%s\n' "${@##*/}")" ]; then
    note "$# packages are unpacked in .deps/sysroot"
    return
  fi
  have dpkg-deb || die "dpkg-deb is missing: the packages can only be unpacked on a Debian or Ubuntu machine"
  note "unpacking $# packages into .deps/sysroot"
  rm -rf "$SYSROOT"
  mkdir -p "$SYSROOT"
  for deb in "$@"; do
    dpkg-deb -x "$deb" "$SYSROOT" || die "$deb could not be unpacked: is the bundle complete?"
  done
  mend_links
  mend_paths
  printf '%s\n' "${@##*/}" >"$stamp"
}

# mend_paths: Cap'n Proto's CMake files contain absolute paths of its compiler and include folder, and find its
# libraries through pkg-config, whose files contain absolute paths as well.
mend_paths() {
  local libraries
  [[ $SYSROOT != *[[:space:]\&#\\]* ]] ||
    die "the path of the checkout, $REPO, holds white space, &, # or \\, which the CMake files of Cap'n Proto do not support: move it"
  libraries=$SYSROOT/usr/lib/$(multiarch)
  find "$libraries/cmake/CapnProto" -name '*.cmake' -exec \
    sed -i "s#\([ (]\)/usr/\(bin\|include\)#\1$SYSROOT/usr/\2#" {} +
  find "$libraries/pkgconfig" "$SYSROOT/usr/share/pkgconfig" -name '*.pc' -exec sed -i "s#^\([a-z_]*=\)/usr#\1$SYSROOT/usr#" {} + \
    2>/dev/null || true
}

# mend_links: lib*.so links whose library was not unpacked are redirected to the system's (libz, libssl: every system
# has them, and programs should not load a second version).
mend_links() {
  local link wanted found known
  known=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p)
  while IFS= read -r link; do
    wanted=$(basename "$(readlink "$link")")
    found=
    while [ -z "$found" ] && [[ $wanted == *.so.* ]]; do
      found=$(awk -v name="$wanted" '$1 == name { print $NF; exit }' <<<"$known")
      wanted=${wanted%.*}
    done
    [ -z "$found" ] || ln -sf "$found" "$link"
  done < <(find "$SYSROOT" -name 'lib*.so' -xtype l)
}

write_sysroot_env() {
  local usr=$SYSROOT/usr
  printf 'export PSD_SYSROOT=%q\n' "$SYSROOT"
  printf 'export PATH="$PATH":%q\n' "$usr/bin"
  printf 'export CMAKE_PREFIX_PATH=%q${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}\n' "$usr"
  printf 'export PKG_CONFIG_PATH=%q${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}\n' "$usr/lib/$(multiarch)/pkgconfig"
  printf 'export LD_LIBRARY_PATH=%q${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n' "$usr/lib/$(multiarch)"
}

# check_bundle DIR: complete, and for this architecture.
check_bundle() {
  [ -f "$1/bundle.txt" ] || die "$1 is not a bundle: create one with scripts/bundle DIR on a machine with network"
  local architecture
  architecture=$(sed -n 's/^architecture: //p' "$1/bundle.txt")
  [ "$architecture" = "$(dpkg --print-architecture 2>/dev/null)" ] ||
    die "the bundle is for $architecture, this machine is $(dpkg --print-architecture 2>/dev/null || uname -m)"
}

# keep_bundle DIR: copies it into .deps, so that later set-ups need no --offline.
keep_bundle() {
  [ "$1" != "$KEPT_BUNDLE" ] || return 0
  rm -rf "$KEPT_BUNDLE"
  cp -a "$1" "$KEPT_BUNDLE"
}

setup_offline_packages() {
  step "Unpacking the bundle's packages"
  local missing
  mapfile -t missing < <(missing_packages "${LIBRARY_PACKAGES[@]}" "${CAPNP_PACKAGES[@]}")
  if [ ${#missing[@]} -eq 0 ] && [ ! -d "$SYSROOT" ] && have ninja && have capnp && version_at_least "$(capnp --version | awk '{print $NF}')" 0.9; then
    note "all are installed"
    return
  fi
  local debs=("$1"/debs/*.deb)
  [ -f "${debs[0]}" ] || die "$1/debs holds no packages: create the bundle again"
  unpack_sysroot "${debs[@]}"
}

setup_offline_data() {
  step "Copying the data set from the bundle"
  [ -d "$1/mnist_5k" ] || die "$1/mnist_5k is missing: create the bundle again"
  mkdir -p "$DATA_DIR"
  cp -a "$1/mnist_5k/." "$DATA_DIR/"
}
