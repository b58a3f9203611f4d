# nccl_tests: the program's part of NCCL with a library that stands for it. src/collectives/nccl/shim.cpp is compiled again,
# with a header of ours, so that neither NCCL nor a GPU is needed. The libraries lie beside the test, where the program looks
# first after ../lib/tandem.
set(nccl ${CMAKE_SOURCE_DIR}/tests/nccl)
set(nccl_folder ${CMAKE_BINARY_DIR}/nccl)
function(add_fake_library target name folder)
  add_library(${target} SHARED ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${folder} BUILD_RPATH "$ORIGIN"
    BUILD_RPATH_USE_ORIGIN ON CXX_VISIBILITY_PRESET default)
  if(NOT TANDEM_SANITIZE)  # whose functions are the program's
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_include_directories(${target} BEFORE PRIVATE ${nccl}/include)
endfunction()
add_fake_library(fake_nccl fake_nccl ${nccl_folder} ${nccl}/fake_nccl.cpp)
add_fake_library(fake_nccl_lacking fake_nccl ${nccl_folder}/lacking ${nccl}/fake_nccl.cpp)
target_compile_definitions(fake_nccl_lacking PRIVATE WITHOUT_ALL_REDUCE)
add_fake_library(fake_nccl_shim tandem_nccl ${nccl_folder} ${CMAKE_SOURCE_DIR}/src/collectives/nccl/shim.cpp)
target_link_libraries(fake_nccl_shim PRIVATE fake_nccl)
add_fake_library(other_nccl_shim tandem_nccl ${nccl_folder}/other ${nccl}/other_version.cpp)
add_fake_library(no_nccl_shim tandem_nccl ${nccl_folder}/none ${nccl}/other_version.cpp)
target_compile_definitions(no_nccl_shim PRIVATE NO_FUNCTION)

add_executable(nccl_probe ${nccl}/nccl_probe.cpp)
target_link_libraries(nccl_probe PRIVATE tandem_collectives tandem_base)
add_executable(nccl_tests ${nccl}/nccl_test.cpp)
target_link_libraries(nccl_tests PRIVATE tandem_test_support tandem_tools fake_nccl GTest::gtest_main)
target_include_directories(nccl_tests BEFORE PRIVATE ${nccl}/include)
set_target_properties(nccl_probe nccl_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${nccl_folder})
add_dependencies(nccl_tests nccl_probe fake_nccl_lacking fake_nccl_shim other_nccl_shim no_nccl_shim)
gtest_discover_tests(nccl_tests DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 120)
