# The preloaded library of the stress tests. Sanitizers bring an allocator of their own.
add_library(failing_calls SHARED ${CMAKE_SOURCE_DIR}/tests/stress/preload/failing_calls.c)
set_target_properties(failing_calls PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
target_compile_options(failing_calls PRIVATE -Wall -Wextra -Wshadow -fno-builtin)
if(TANDEM_HAVE_CUDA)
  target_compile_definitions(failing_calls PRIVATE SPARES_BEFORE_MAIN)
endif()
target_link_libraries(failing_calls PRIVATE ${CMAKE_DL_LIBS})
add_dependencies(stress_tests failing_calls)
