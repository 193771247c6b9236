# psd_torch: LibTorch as the PyPI wheel of torch ships it, for the CPU part of every program.
#
# find_package(Torch) is not used: with a CUDA wheel it demands a CUDA toolkit, also from those who train on
# the CPU, and links all of libtorch_cuda, whose libraries (cuDNN, NCCL, …) then have to be loaded at every
# start. Only libtorch_cpu and libc10 are linked; trainer/model/device.cc loads libtorch_cuda.so when
# a CUDA device is asked for.

# --- The python that has torch -------------------------------------------------------------------------
if(PSD_PYTHON)
  set(PSD_PYTHON_EXECUTABLE ${PSD_PYTHON})
elseif(EXISTS ${PROJECT_SOURCE_DIR}/.deps/python/bin/python)
  set(PSD_PYTHON_EXECUTABLE ${PROJECT_SOURCE_DIR}/.deps/python/bin/python)
else()
  unset(PSD_PATH_PYTHON CACHE)
  find_program(PSD_PATH_PYTHON python3)
  mark_as_advanced(PSD_PATH_PYTHON)
  set(PSD_PYTHON_EXECUTABLE ${PSD_PATH_PYTHON})
endif()
# Tests run Python programs with it.
set(PSD_PYTHON_EXECUTABLE "${PSD_PYTHON_EXECUTABLE}" CACHE INTERNAL "python3 with torch")

# find_spec() does not import torch, which would need the CUDA libraries.
set(psd_find_torch "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')")
set(PSD_TORCH_DIR "")
if(PSD_PYTHON_EXECUTABLE)
  execute_process(COMMAND ${PSD_PYTHON_EXECUTABLE} -c "${psd_find_torch}"
                  OUTPUT_VARIABLE PSD_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT EXISTS "${PSD_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "psd-trainer needs LibTorch, but '${PSD_PYTHON_EXECUTABLE}' has no torch package. "
                      "Run scripts/setup, or set PSD_PYTHON to a python3 with torch 2.11, or set PSD_TRAINER=OFF.")
endif()

# --- Folders that the program searches at run time -----------------------------------------------------
# libtorch_cpu.so needs libcudart and libcupti even on the CPU. It looks beside itself (nvidia/cu13/lib); on a
# machine where they come with the CUDA toolkit instead, the program names the toolkit's folders.
set(psd_torch_rpath ${PSD_TORCH_DIR}/lib)
foreach(library libcudart.so.13 libcupti.so.13)
  unset(psd_found CACHE)
  find_library(psd_found ${library} NO_CACHE
    HINTS ${PSD_TORCH_DIR}/../nvidia/cu13/lib
    PATHS /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64 /usr/local/cuda-13.0/lib64
          /usr/local/cuda-13.0/extras/CUPTI/lib64)
  if(psd_found)
    get_filename_component(psd_folder ${psd_found} DIRECTORY)
    list(APPEND psd_torch_rpath ${psd_folder})
  endif()
  unset(psd_found)
endforeach()
list(REMOVE_DUPLICATES psd_torch_rpath)

add_library(psd_torch INTERFACE)
target_include_directories(psd_torch SYSTEM INTERFACE
  ${PSD_TORCH_DIR}/include
  ${PSD_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(psd_torch INTERFACE
  ${PSD_TORCH_DIR}/lib/libtorch_cpu.so
  ${PSD_TORCH_DIR}/lib/libc10.so)
# The old kind of rpath: it also serves the libraries that LibTorch itself needs.
target_link_options(psd_torch INTERFACE LINKER:--disable-new-dtags)
foreach(folder ${psd_torch_rpath})
  target_link_options(psd_torch INTERFACE LINKER:-rpath,${folder})
endforeach()
