# What is handed to other machines, tried in a folder that has only what those machines have.
if(NOT Python3_Interpreter_FOUND OR NOT TARGET tandem_portable)
  return()
endif()
set_target_properties(tandem_portable PROPERTIES EXCLUDE_FROM_ALL OFF)
add_test(NAME packages.package COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/package_test.py
  ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR}/models)
set_tests_properties(packages.package PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300)
# What `make` builds by default: each folder as one source.
if(NOT quick_build)
  add_test(NAME packages.quick_build COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/quick_build_test.py
    ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR} ${CMAKE_CXX_COMPILER})
  set_tests_properties(packages.quick_build PROPERTIES TIMEOUT 1200)
endif()
add_test(NAME packages.versions COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/versions_test.py ${CMAKE_SOURCE_DIR})
if(TANDEM_HAVE_CUDA)
  add_test(NAME packages.gpu_pack COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/gpu_pack_test.py
    ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(packages.gpu_pack PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
endif()
