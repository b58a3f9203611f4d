# `make package`: a .deb and a tarball with the portable program, and what else `make install` installs. Its shared
# libraries are those of the C library; the licences of all that is linked in go along.
# Packages have the component "portable" instead of the program of this build, and TANDEM_PACKAGE_COMPONENTS: man page,
# completions and what else needs no library.
install(TARGETS tandem_portable RUNTIME DESTINATION bin COMPONENT portable EXCLUDE_FROM_ALL)
foreach(library ${TANDEM_CARRIED_LIBRARIES})
  get_filename_component(library ${library} REALPATH)
  get_filename_component(file ${library} NAME)
  string(REGEX REPLACE "(\\.so\\.[0-9]+).*" "\\1" file ${file})
  install(FILES ${library} DESTINATION lib/tandem RENAME ${file} COMPONENT portable EXCLUDE_FROM_ALL)
endforeach()
set(TANDEM_BOM ${CMAKE_BINARY_DIR}/tandem-${PROJECT_VERSION}.cdx.json)
install(FILES ${CMAKE_BINARY_DIR}/copyright DESTINATION share/doc/tandem COMPONENT portable EXCLUDE_FROM_ALL)
install(FILES ${TANDEM_BOM} DESTINATION share/doc/tandem COMPONENT portable EXCLUDE_FROM_ALL)
install(FILES ${CMAKE_SOURCE_DIR}/README.md DESTINATION share/doc/tandem COMPONENT portable EXCLUDE_FROM_ALL)

add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/copyright
  COMMAND ${CMAKE_SOURCE_DIR}/scripts/copyright.sh ${CMAKE_SOURCE_DIR}/LICENSE ${TANDEM_HAVE_CUDA} ${TANDEM_LIBRARY_PACKAGES}
          > ${CMAKE_BINARY_DIR}/copyright
  DEPENDS ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/scripts/copyright.sh ${CMAKE_SOURCE_DIR}/scripts/cmake/libraries.cmake
  COMMENT "Collecting licences" VERBATIM)
# Written at each build, because the versions of libraries change without a change here.
find_package(Python3 COMPONENTS Interpreter)
set(bom_cuda)
if(TANDEM_HAVE_CUDA)
  set(bom_cuda --cuda ${CMAKE_CUDA_COMPILER_VERSION})
endif()
add_custom_target(tandem_bom
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/bom.py --version ${PROJECT_VERSION} --commit ${TANDEM_COMMIT}
          --epoch ${TANDEM_COMMIT_TIME} ${bom_cuda} ${TANDEM_LIBRARY_PACKAGES} > ${TANDEM_BOM}
  BYPRODUCTS ${TANDEM_BOM} COMMENT "Listing components" VERBATIM)
add_custom_target(tandem_copyright DEPENDS ${CMAKE_BINARY_DIR}/copyright)
add_dependencies(tandem_portable tandem_bom tandem_copyright)

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR tandem)
set(CPACK_PACKAGE_CONTACT "the tandem developers <tandem@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Runs GGUF language models on a CPU, on a GPU, or on both")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR})
set(CPACK_STRIP_FILES ON)
set(CPACK_MONOLITHIC_INSTALL OFF)
set(CPACK_COMPONENTS_ALL portable ${TANDEM_PACKAGE_COMPONENTS})
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_ARCHIVE_FILE_NAME tandem-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_FILE_NAME ${CPACK_ARCHIVE_FILE_NAME})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# Of the C library alone. tests/packages/package_test.py checks that the program needs no newer symbols.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.35)")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_CHECKSUM SHA256)
# The same commit gives the same bytes: files are as old as the commit. (scripts/check_reproducible.sh)
set(CPACK_TANDEM_EPOCH ${TANDEM_COMMIT_TIME})
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/scripts/cmake/package_time.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/scripts/cmake/package_files.cmake)
set(CPACK_POST_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/scripts/cmake/package_deb.cmake)
include(CPack)
