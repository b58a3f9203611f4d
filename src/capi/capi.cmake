# The C library: libtandem.so with the functions of capi/tandem.h and nothing else, its header, its pkg-config file and
# the example. The header says how its version and the library's name belong together.
include(GNUInstallDirs)
file(GLOB TANDEM_CAPI_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/capi/*.cpp)
add_library(libtandem SHARED ${TANDEM_CAPI_SOURCES})
target_link_libraries(libtandem PRIVATE ${TANDEM_ROOMS})
set(exports ${CMAKE_SOURCE_DIR}/src/capi/exports.map)
# Never unloaded: its handler of SIGBUS stays installed.
target_link_options(libtandem PRIVATE -Wl,--version-script=${exports} -Wl,-z,nodelete)
set(abi_version ${PROJECT_VERSION_MAJOR})
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(abi_version 0.${PROJECT_VERSION_MINOR})
endif()
set_target_properties(libtandem PROPERTIES OUTPUT_NAME tandem VERSION ${PROJECT_VERSION} SOVERSION ${abi_version}
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib LINK_DEPENDS ${exports})

# The pkg-config file finds the library from where it lies itself, so an installed tree may be moved.
file(RELATIVE_PATH TANDEM_PREFIX_FROM_PC /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_SOURCE_DIR}/src/capi/tandem.pc.in ${CMAKE_BINARY_DIR}/tandem.pc @ONLY)
install(TARGETS libtandem LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_SOURCE_DIR}/src/capi/tandem.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/tandem.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${CMAKE_SOURCE_DIR}/src/capi/example.c DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tandem)
