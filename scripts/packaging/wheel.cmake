# The daemon in the wheel (scripts/wheel): included by trainer/python when scikit-build-core builds with PSD_WHEEL=ON.
#
# The daemon needs only glibc and libgcc_s: Cap'n Proto, spdlog, fmt and libstdc++ are linked statically. The module
# uses Cap'n Proto as shared libraries, which auditwheel puts beside it, since Debian's archives cannot be part of a
# shared library. It uses the system's libstdc++, like every module of the process.
include(GNUInstallDirs)
include(${CMAKE_CURRENT_LIST_DIR}/install_texts.cmake)

if(NOT PSD_CHART_JS)
  message(FATAL_ERROR "chart.min.js was not found: scripts/setup installs it (libjs-chart.js); or name it with -DPSD_CHART_JS=FILE")
endif()

# Debian has spdlog and fmt as shared libraries alone. Their headers, compiled as a static one, keep the definitions of every other
# build, so that ccache shares objects with it.
add_library(psd_static_spdlog STATIC ${PROJECT_SOURCE_DIR}/common/log/static_spdlog.cc)
set_target_properties(psd_static_spdlog PROPERTIES
  POSITION_INDEPENDENT_CODE ON ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} UNITY_BUILD OFF
  PSD_NO_PRECOMPILED_HEADER ON)
foreach(library spdlog::spdlog fmt::fmt)
  target_compile_definitions(psd_static_spdlog PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_COMPILE_DEFINITIONS>)
  set_target_properties(${library} PROPERTIES IMPORTED_LOCATION ${PROJECT_BINARY_DIR}/libpsd_static_spdlog.a)
endforeach()

# The shared libraries precede objects and archives on the module's command line, so that nothing is linked from Cap'n
# Proto's archives.
set(shared_libraries "")
foreach(library capnp-rpc capnp kj-http kj-async kj)
  get_target_property(shared CapnProto::${library} IMPORTED_LOCATION)
  string(REGEX REPLACE "(-[0-9][0-9.]*)?[.]so$" ".a" archive "${shared}")
  if(NOT EXISTS "${archive}")
    message(FATAL_ERROR "${archive} was not found: libcapnp-dev has it beside ${shared}")
  endif()
  set_target_properties(CapnProto::${library} PROPERTIES IMPORTED_LOCATION "${archive}")
  if(NOT library STREQUAL "kj-http")
    string(APPEND shared_libraries " ${shared}")
  endif()
endforeach()
target_link_options(psd_python PRIVATE "SHELL:-Wl,--no-as-needed${shared_libraries} -Wl,--as-needed")
# Not libgcc: its archive needs glibc 2.35. Unreachable code is removed, since parts of libstdc++'s archive pull in
# others that need glibc 2.36.
target_link_options(psd PRIVATE LINKER:--as-needed,--gc-sections -static-libstdc++)

install(TARGETS psd RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel)
psd_install_texts(psd wheel ${SKBUILD_DATA_DIR}/share)
file(GLOB configs CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/configs/*.json)
install(FILES ${configs} DESTINATION ${SKBUILD_DATA_DIR}/share/psd/configs COMPONENT wheel)
set(doc ${SKBUILD_DATA_DIR}/share/doc/psd-server)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${doc} COMPONENT wheel)
# The licenses of the linked libraries, if the system's packages have them.
foreach(package libcapnp-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libcli11-dev libjs-chart.js libstdc++6)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${doc} RENAME ${package}.copyright COMPONENT wheel OPTIONAL)
endforeach()
