# psd_precompile(FOLDER…): the C++ targets below these folders share precompiled headers of the libraries that most
# units include, one for each optimization level, with and without -fPIC: g++ 12 crashes if the levels differ.

function(psd_precompiled_header name data_path pic)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/common/precompiled.cc)
  if(data_path)
    psd_data_path(${name})
  endif()
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ${pic})
  target_link_libraries(${name} PRIVATE psd_flags psd_schema CapnProto::kj-http spdlog::spdlog nlohmann_json::nlohmann_json)
  target_precompile_headers(${name} PRIVATE
    <algorithm> <array> <atomic> <chrono> <deque> <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <thread>
    <unordered_map> <variant> <vector>
    <capnp/rpc-twoparty.h> <kj/async-io.h> <kj/compat/http.h> <nlohmann/json.hpp> <spdlog/spdlog.h>
    <schema/psd.capnp.h>)
  # g++ reads an existing precompiled header while it compiles the next one, whatever has changed since: another schema removes it.
  set(removed ${PROJECT_BINARY_DIR}/CMakeFiles/${name}.removed)
  get_target_property(schema psd_schema SOURCES)
  add_custom_command(OUTPUT ${removed} DEPENDS ${schema} VERBATIM
    COMMAND ${CMAKE_COMMAND} -E rm -f ${PROJECT_BINARY_DIR}/CMakeFiles/${name}.dir/cmake_pch.hxx.gch
    COMMAND ${CMAKE_COMMAND} -E touch ${removed})
  add_custom_target(${name}_removed DEPENDS ${removed})
  add_dependencies(${name} ${name}_removed)
endfunction()

# With the precompiled header g++ emits the vtable of kj::TimerImpl into every unit, so every program links kj-async. The libraries
# are named as files, since CapnProto's targets would ask nvcc for C++14.
target_link_libraries(psd_common INTERFACE
  "$<BUILD_INTERFACE:$<TARGET_FILE:CapnProto::kj-async>>" "$<BUILD_INTERFACE:$<TARGET_FILE:CapnProto::kj>>")

function(psd_precompile)
  foreach(folder ${ARGN})
    get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
    psd_precompile(${below})
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target ${targets})
      get_target_property(type ${target} TYPE)
      get_target_property(libraries ${target} LINK_LIBRARIES)
      get_target_property(own ${target} PSD_NO_PRECOMPILED_HEADER)
      # nanobind's library is not a target of this project.
      if(own OR target MATCHES "^nanobind" OR NOT type MATCHES "^(STATIC_LIBRARY|OBJECT_LIBRARY|EXECUTABLE)$" OR "psd_torch" IN_LIST libraries)
        continue()
      endif()
      get_target_property(data_path ${target} PSD_DATA_PATH)
      get_target_property(pic ${target} POSITION_INDEPENDENT_CODE)
      set(header psd_precompiled)
      if(data_path)
        string(APPEND header -data-path)
      endif()
      if(pic)
        string(APPEND header -fPIC)
      else()
        set(pic OFF)
      endif()
      if(NOT TARGET ${header})
        psd_precompiled_header(${header} ${data_path} ${pic})
      endif()
      target_precompile_headers(${target} REUSE_FROM ${header})
    endforeach()
  endforeach()
endfunction()
