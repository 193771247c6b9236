# Installed by `cmake --install`, by component:
#   psd      the daemon, with its unit for systemd, manual page, completions and examples
#   trainer  psd-trainer and psd-executor, with manual pages and completions
#   client   the client library and that of an executor's trainers: archives, public headers, and the files for find_package(psd)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

include(${CMAKE_CURRENT_LIST_DIR}/install_texts.cmake)

install(TARGETS psd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT psd)
psd_install_texts(psd psd)
# Linked with the LibTorch of the build, in its location.
foreach(program psd-trainer psd-executor)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT trainer)
    psd_install_texts(${program} trainer)
  endif()
endforeach()
install(FILES configs/systemd/psd.service configs/systemd/psd@.service DESTINATION lib/systemd/system COMPONENT psd)
# The prefix /usr is configured in /etc, according to GNU's coding standards; any other prefix has an etc of its own.
install(CODE "
  set(folder \"\${CMAKE_INSTALL_PREFIX}/etc/psd\")
  if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")
    set(folder /etc/psd)
  endif()
  if(NOT EXISTS \"\$ENV{DESTDIR}\${folder}/psd.json\")
    file(INSTALL DESTINATION \"\${folder}\" TYPE FILE FILES \"${PROJECT_SOURCE_DIR}/configs/systemd/psd.json\")
  endif()" COMPONENT psd)
file(GLOB examples CONFIGURE_DEPENDS configs/*.json)
install(FILES ${examples} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/psd/examples COMPONENT psd)
install(FILES configs/systemd/a.json DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/psd/examples/systemd COMPONENT psd)
install(DIRECTORY configs/monitoring configs/launch DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/psd/examples COMPONENT psd)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/psd COMPONENT psd
        FILES_MATCHING PATTERN "*.md" PATTERN "*.png" PATTERN "*.svg" PATTERN decisions EXCLUDE)
install(FILES CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/psd RENAME changelog COMPONENT psd)
install(CODE "
  if(EXISTS \"${PSD_GZIP}\")
    execute_process(COMMAND \"${PSD_GZIP}\" -9nf \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/psd/changelog\"
                    COMMAND_ERROR_IS_FATAL ANY)
  endif()" COMPONENT psd)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/psd RENAME copyright COMPONENT psd)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libpsd-dev RENAME copyright COMPONENT client)

# --- The libraries --------------------------------------------------------------------------------------
# trainer/client/api/client.h, and trainer/executor/remote for programs that train at an executor; the headers they include, and
# two for their users. test/integration/test_installed.py builds with these alone.
set(PSD_PUBLIC_HEADERS
  common/auth/credentials.h
  common/os/address.h
  common/os/huge_pages.h
  common/os/shared_memory.h
  common/os/socket.h
  common/plan/shard_plan.h
  common/status/status.h
  common/types/all_reduce.h
  common/types/ids.h
  common/types/hyperparameters.h
  common/types/inner_optimizer.h
  common/patch/content_sum.h
  common/types/local_steps.h
  common/types/model_layout.h
  common/types/model_spec.h
  common/types/named_value.h
  common/types/push_outcome.h
  common/types/row_ids.h
  common/types/row_initial.h
  common/types/samples.h
  common/types/version_info.h
  trainer/client/api/arena_values.h
  trainer/client/api/client.h
  trainer/client/api/optimizer_state.h
  trainer/client/api/ring_blocks.h
  trainer/client/api/row_batch.h
  trainer/client/api/row_memory.h
  trainer/client/api/version_publisher.h
  trainer/client/api/version_reader.h
  trainer/executor/remote/executor_connection.h
  trainer/executor/remote/loss_list.h
  trainer/executor/remote/loss_result.h
  trainer/executor/remote/remote_steps.h
  trainer/task/batch.h
  trainer/task/batch_rows.h
  trainer/task/loss_spec.h
  trainer/task/named_tensor.h
  trainer/task/score.h)
foreach(header ${PSD_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/psd/${folder} COMPONENT client)
endforeach()
install(FILES schema/admin.capnp schema/daemons.capnp schema/executor.capnp schema/model.capnp schema/psd.capnp schema/session.capnp schema/status.capnp schema/versions.capnp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/psd/schema COMPONENT client)

set(PSD_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/psd)
target_include_directories(psd_common INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/psd>)
target_compile_features(psd_common INTERFACE $<INSTALL_INTERFACE:cxx_std_20>)
foreach(library budget common schema wire tls client task remote)
  set_target_properties(psd_${library} PROPERTIES EXPORT_NAME ${library})
  install(TARGETS psd_${library} EXPORT psdTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client)
endforeach()
install(EXPORT psdTargets NAMESPACE psd:: DESTINATION ${PSD_CMAKE_DIR} COMPONENT client)
configure_package_config_file(scripts/packaging/psdConfig.cmake.in ${PROJECT_BINARY_DIR}/packaging/psdConfig.cmake
                              INSTALL_DESTINATION ${PSD_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/packaging/psdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/packaging/psdConfig.cmake ${PROJECT_BINARY_DIR}/packaging/psdConfigVersion.cmake
        DESTINATION ${PSD_CMAKE_DIR} COMPONENT client)

include(scripts/packaging/cpack.cmake)
