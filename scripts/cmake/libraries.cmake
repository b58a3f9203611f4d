# The libraries that the program is made of, in one place: how each is linked, and which Debian package has its licence.
#
# A program with the property TANDEM_PORTABLE is linked with their archives (and those of the compiler), so that it needs
# nothing but the C library, which stays shared because the CUDA driver is loaded at run time. All others are linked with
# the shared libraries. The objects are the same for both.
#
#   tandem_library(NAME TARGET PACKAGE [ARCHIVE...])
#
# makes the target tandem::NAME. Without archives the library has only headers. PACKAGE is where a Debian system keeps the
# copyright file of what the program then contains.
set(TANDEM_LIBRARY_PACKAGES)  # for the copyright file of the package
set(TANDEM_MISSING_ARCHIVES)  # empty: portable programs can be linked

function(tandem_library name target package)
  set(archives)
  foreach(archive ${ARGN})
    find_library(TANDEM_ARCHIVE_${archive} lib${archive}.a)
    mark_as_advanced(TANDEM_ARCHIVE_${archive})
    if(TANDEM_ARCHIVE_${archive})
      list(APPEND archives ${TANDEM_ARCHIVE_${archive}})
    else()
      list(APPEND TANDEM_MISSING_ARCHIVES lib${archive}.a)
    endif()
  endforeach()
  add_library(tandem_library_${name} INTERFACE)
  add_library(tandem::${name} ALIAS tandem_library_${name})
  # In this place the property is that of the program that is linked.
  target_link_libraries(tandem_library_${name} INTERFACE
    "$<IF:$<BOOL:$<TARGET_PROPERTY:TANDEM_PORTABLE>>,${archives},${target}>")
  set(TANDEM_LIBRARY_PACKAGES ${TANDEM_LIBRARY_PACKAGES} ${package} PARENT_SCOPE)
  set(TANDEM_MISSING_ARCHIVES ${TANDEM_MISSING_ARCHIVES} PARENT_SCOPE)
endfunction()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(LIBEDIT REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(LIBMD REQUIRED IMPORTED_TARGET libmd)
pkg_check_modules(MD4C REQUIRED IMPORTED_TARGET md4c)
pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
find_package(fmt REQUIRED)
find_library(UTF8PROC_LIBRARY utf8proc REQUIRED)
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h REQUIRED)
find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp REQUIRED)
# Only the headers: the program loads libcurl when it downloads, and starts without it.
find_path(CURL_INCLUDE_DIR curl/curl.h REQUIRED)

tandem_library(pcre2 PkgConfig::PCRE2 libpcre2-dev pcre2-8)
tandem_library(utf8proc ${UTF8PROC_LIBRARY} libutf8proc-dev utf8proc)
tandem_library(uring PkgConfig::LIBURING liburing-dev uring)
tandem_library(xxhash PkgConfig::XXHASH libxxhash-dev xxhash)
# libedit needs the terminal database and, of libbsd, the parts that the C library lacks; libbsd needs libmd's hashes.
tandem_library(edit PkgConfig::LIBEDIT libedit-dev edit tinfo bsd md)
list(APPEND TANDEM_LIBRARY_PACKAGES libncurses-dev libbsd-dev)
tandem_library(md PkgConfig::LIBMD libmd-dev md)
# Debian has no archive of md4c: its shared library goes along, where portable programs look for it.
find_library(TANDEM_MD4C_LIBRARY md4c REQUIRED)
add_library(tandem::md4c ALIAS PkgConfig::MD4C)
list(APPEND TANDEM_LIBRARY_PACKAGES libmd4c-dev)
set(TANDEM_CARRIED_LIBRARIES ${TANDEM_MD4C_LIBRARY})
# Debian has no archive of fmt: src/base/error.cpp, the only file that formats, compiles it in.
tandem_library(fmt fmt::fmt libfmt-dev)
# Only headers.
list(APPEND TANDEM_LIBRARY_PACKAGES libcli11-dev nlohmann-json3-dev)

# tandem_portable(TARGET...): these programs need no shared library but the C library.
function(tandem_portable)
  foreach(target ${ARGN})
    set_target_properties(${target} PROPERTIES TANDEM_PORTABLE ON)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/tandem")
    # What nothing uses goes: GCC 12's archive has a function that would need a newer C library (arc4random).
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections)
  endforeach()
endfunction()
