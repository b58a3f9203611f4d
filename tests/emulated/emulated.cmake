# emulated_gpu_tests: the tests of gpu/ on the software GPU. translate.py turns the CUDA device's own sources into C++; the
# other files in this folder emulate the GPU. Needs neither nvcc nor a GPU.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND OR TANDEM_SANITIZE OR TANDEM_FUZZ)  # the sanitizers do not support the fibers
  return()
endif()
set(emulated ${CMAKE_SOURCE_DIR}/tests/emulated)
set(translated ${CMAKE_BINARY_DIR}/emulated)
file(GLOB_RECURSE cuda_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/ggml-cuda/*.h ${CMAKE_SOURCE_DIR}/ggml-cuda/*.cuh
  ${CMAKE_SOURCE_DIR}/ggml-cuda/*.cu ${CMAKE_SOURCE_DIR}/ggml-cuda/*.cpp)
set(translated_sources)
set(translated_headers)
foreach(file ${cuda_files})
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR} ${file})
  if(name MATCHES "\\.(cu|cpp)$" AND NOT name STREQUAL "ggml-cuda/cublas.cpp")  # the emulator has its own
    string(REGEX REPLACE "\\.cu$" ".cpp" name ${name})
    list(APPEND translated_sources ${translated}/${name})
  elseif(name MATCHES "\\.(h|cuh)$")
    list(APPEND translated_headers ${translated}/${name})
  endif()
endforeach()
add_custom_command(OUTPUT ${translated_sources} BYPRODUCTS ${translated_headers}
  COMMAND Python3::Interpreter ${emulated}/translate.py ${CMAKE_SOURCE_DIR}/ggml-cuda ${translated}/ggml-cuda
  DEPENDS ${emulated}/translate.py ${cuda_files} COMMENT "Translating the CUDA device for the emulator" VERBATIM)
add_custom_target(translated_cuda DEPENDS ${translated_sources})

file(GLOB emulator_sources CONFIGURE_DEPENDS ${emulated}/*.cpp)
add_library(tandem_emulated_cuda STATIC ${translated_sources} ${emulator_sources})
target_compile_options(tandem_emulated_cuda PRIVATE -include ${emulated}/emulator.h -Wno-unknown-pragmas
  -Wno-sign-compare -Wno-shadow -fsanitize=alignment,bounds -fno-sanitize-recover=all)
target_link_options(tandem_emulated_cuda INTERFACE -fsanitize=alignment,bounds)
target_compile_definitions(tandem_emulated_cuda PRIVATE TANDEM_HAVE_CUDA TANDEM_HAVE_WGMMA)
target_include_directories(tandem_emulated_cuda BEFORE PUBLIC ${translated} ${emulated}/include)
target_include_directories(tandem_emulated_cuda PRIVATE ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(tandem_emulated_cuda PUBLIC tandem_device tandem_graph tandem_gguf tandem_base)

file(GLOB gpu_test_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/gpu/*.cpp ${emulated}/tests/*.cpp)
add_executable(emulated_gpu_tests ${gpu_test_sources})
tandem_quick_build(emulated_gpu_tests BATCHES 8)
add_dependencies(emulated_gpu_tests tandem_test_support)
target_include_directories(emulated_gpu_tests PRIVATE ${CMAKE_SOURCE_DIR}/tests)
# Tests of the emulator bring kernels of their own.
file(GLOB emulator_test_sources CONFIGURE_DEPENDS ${emulated}/tests/emulator_*.cpp)
set_source_files_properties(${emulator_test_sources} PROPERTIES COMPILE_OPTIONS
  "-include;${emulated}/emulator.h;-Wno-unknown-pragmas")
set(rooms ${TANDEM_ROOMS})
list(REMOVE_ITEM rooms tandem_cuda)
# The file alone, because what the target links would bring the real CUDA device.
target_link_libraries(emulated_gpu_tests PRIVATE $<TARGET_FILE:tandem_test_support> tandem_emulated_cuda ${rooms} GTest::gmock GTest::gtest_main)
target_compile_definitions(emulated_gpu_tests PRIVATE TANDEM_EMULATED_GPU)
gtest_discover_tests(emulated_gpu_tests TEST_PREFIX emulated. DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
# The products and attention of other GPUs, with as many multiprocessors as a large one. The slowest tests with one of them each.
set(slow_80 GpuAttention.ValuesInKeys GpuLinear.EveryDtypeAndNumberOfTokens GpuLinear.LongRowsAndManyRows)
set(slow_89 GpuLinear.HeadLinear *GpuLongPrompts.HandedOn/*)
set(slow_120 GpuLinear.MixturesOfExperts GpuLinear.MixturesWithoutGates)
foreach(capability 80 89 120)
  set(slow ${slow_80} ${slow_89} ${slow_120})
  list(REMOVE_ITEM slow ${slow_${capability}})
  string(REPLACE ";" ":" slow "${slow}")
  add_test(NAME emulated_sm_${capability} COMMAND emulated_gpu_tests --gtest_brief=1
    --gtest_filter=GpuLinear.*:GpuAttention.*:GpuPackedAttention.*:GpuGroupedCache.*:GpuDevice.*:GpuRows.*:*GpuLongPrompts*cublas-${slow})
  set_tests_properties(emulated_sm_${capability} PROPERTIES ENVIRONMENT TANDEM_EMULATED_GPU=${capability},132 TIMEOUT 1200)
endforeach()
