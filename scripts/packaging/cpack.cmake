# The Debian packages psd and libpsd-dev: scripts/package.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The psd developers <psd@localhost>")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_COMPONENTS_ALL psd client)
set(CPACK_STRIP_FILES ON)
# Under DESTDIR the prefix is /usr itself, so that the configuration is installed in /etc.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                                WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)

set(CPACK_DEBIAN_PSD_PACKAGE_NAME psd)
set(CPACK_COMPONENT_PSD_DESCRIPTION
"parameter server for machine learning
psd holds the parameters of a model in the memory of a CPU or a GPU. Trainers
pull them and push gradients; the daemon runs the optimizer, and a policy says
what happens when several push at once.")
set(CPACK_DEBIAN_PSD_PACKAGE_SHLIBDEPS ON)
# Loaded at run time if tokens or TLS are configured; no program is linked with it.
set(CPACK_DEBIAN_PSD_PACKAGE_DEPENDS "libssl3 | libssl3t64")
set(CPACK_DEBIAN_PSD_PACKAGE_CONTROL_EXTRA
  ${PROJECT_SOURCE_DIR}/scripts/packaging/debian/conffiles
  ${PROJECT_SOURCE_DIR}/scripts/packaging/debian/postinst
  ${PROJECT_SOURCE_DIR}/scripts/packaging/debian/prerm
  ${PROJECT_SOURCE_DIR}/scripts/packaging/debian/postrm)
set(CPACK_DEBIAN_PSD_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME libpsd-dev)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION
"parameter server for machine learning - client library
The C++ library with which a program trains against a psd daemon: static
archives, headers, and what CMake's find_package(psd) reads.")
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_CLIENT_PACKAGE_DEPENDS "libcapnp-dev (>= 0.9), libspdlog-dev, libssl3 | libssl3t64")
include(CPack)
