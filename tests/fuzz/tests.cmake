# Each fuzz target runs for some seconds in the test run, from its seeds. clang builds them, in a build folder of
# their own (`make test` does; without it these tests are skipped).
find_package(Python3 COMPONENTS Interpreter)
find_program(TANDEM_CLANG clang++)
mark_as_advanced(TANDEM_CLANG)
set(runtime)
if(TANDEM_CLANG)
  execute_process(COMMAND ${TANDEM_CLANG} --print-runtime-dir OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
  file(GLOB runtime ${folder}/libclang_rt.fuzzer*)
endif()
if(NOT runtime OR NOT Python3_Interpreter_FOUND)
  message(STATUS "tandem: the fuzz targets are not tested (they need clang with libFuzzer, and Python)")
  set(TANDEM_HAVE_FUZZER OFF CACHE INTERNAL "The test run builds the fuzz targets")
  return()
endif()
set(TANDEM_HAVE_FUZZER ON CACHE INTERNAL "The test run builds the fuzz targets")

set(check Python3::Interpreter ${CMAKE_SOURCE_DIR}/scripts/fuzz.py check ${CMAKE_SOURCE_DIR}/build-fuzz --seconds 10)
file(GLOB targets CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*_fuzz.cpp)
foreach(target ${targets})
  get_filename_component(name ${target} NAME_WE)
  string(REGEX REPLACE "_fuzz$" "" name ${name})
  add_test(NAME fuzz.${name} COMMAND ${check} ${name})
  set_tests_properties(fuzz.${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900)
endforeach()
# The tests above can fail: these targets do.
foreach(name self_test kernels_self_test)
  add_test(NAME fuzz.${name} COMMAND ${check} ${name})
  set_tests_properties(fuzz.${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900
    PASS_REGULAR_EXPRESSION "input, [0-9]+ bytes.*to run it again: .*self_test .*found/${name}-crash-")
endforeach()
