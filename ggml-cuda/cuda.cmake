# The CUDA backend. TANDEM_CUDA=AUTO builds its devices where nvcc is found and there is something to build for: a GPU in
# this machine, or TANDEM_CUDA_ARCHS. The same program comes out without them, only without GPUs. The binary needs neither
# the driver nor cuBLAS to start: the runtime is linked statically, cuBLAS is loaded when it is first used.
#
# Code is made for the GPUs that are seen, otherwise (TANDEM_CUDA=ON) for those that are common, with PTX of the last for
# newer ones.
set(TANDEM_CUDA AUTO CACHE STRING "Build the CUDA device: AUTO (with nvcc and a GPU), ON or OFF")
set_property(CACHE TANDEM_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TANDEM_CUDA_ARCHS "" CACHE STRING "CUDA architectures, e.g. 90 or 80;90, or common; empty: those of this machine's GPUs")

# Compute capabilities of the GPUs of this machine, as CMake's real architectures.
function(tandem_native_archs result)
  find_program(NVIDIA_SMI nvidia-smi)
  mark_as_advanced(NVIDIA_SMI)
  set(archs)
  if(NVIDIA_SMI)
    execute_process(COMMAND ${NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE output
      RESULT_VARIABLE failed ERROR_QUIET)
    if(NOT failed)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${output}")
      foreach(capability ${capabilities})
        string(REPLACE "." "" arch ${capability})
        list(APPEND archs ${arch}-real)
      endforeach()
      list(REMOVE_DUPLICATES archs)
    endif()
  endif()
  set(${result} ${archs} PARENT_SCOPE)
endfunction()

function(tandem_find_nvcc result)
  find_program(TANDEM_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_PATH ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(TANDEM_NVCC)
  set(${result} ${TANDEM_NVCC} PARENT_SCOPE)
endfunction()

set(common_archs 80-real 86-real 89-real 90)
set(TANDEM_HAVE_CUDA OFF)
# The sanitizers' builds are of the host's code.
if(TANDEM_CUDA STREQUAL ON OR (TANDEM_CUDA STREQUAL AUTO AND NOT TANDEM_SANITIZE AND NOT TANDEM_FUZZ))
  tandem_find_nvcc(nvcc)
  set(archs ${TANDEM_CUDA_ARCHS})
  if(NOT archs)
    tandem_native_archs(archs)
  endif()
  if(NOT nvcc AND TANDEM_CUDA STREQUAL ON)
    message(FATAL_ERROR "TANDEM_CUDA=ON, but there is no nvcc on the PATH or in /usr/local/cuda/bin")
  elseif(NOT nvcc AND archs)
    message(STATUS "tandem: building for the CPU only: no nvcc (the CUDA toolkit) on the PATH or in /usr/local/cuda/bin")
  elseif(NOT nvcc)
    message(STATUS "No nvcc: building without the CUDA device")
  elseif(NOT archs AND TANDEM_CUDA STREQUAL AUTO)
    message(STATUS "tandem: building for the CPU only: nvcc is here, but no GPU (TANDEM_CUDA=ON builds for the common ones)")
  else()
    set(TANDEM_HAVE_CUDA ON)
  endif()
endif()
set(TANDEM_HAVE_CUDA ${TANDEM_HAVE_CUDA} CACHE INTERNAL "")  # the Makefile looks here

if(TANDEM_HAVE_CUDA)
  if(NOT archs OR archs STREQUAL common)
    set(archs ${common_archs})
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${archs})
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${nvcc})
  endif()
  enable_language(CUDA)
  message(STATUS "CUDA device for ${archs}, by nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
  find_package(CUDAToolkit REQUIRED)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG -lineinfo")
  # A seventh of the bytes. The driver unpacks a kernel when it is first used; older toolkits' drivers may not know how.
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
    string(APPEND CMAKE_CUDA_FLAGS_RELEASE " --compress-mode=size")
  endif()

  file(GLOB TANDEM_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/ggml-cuda/*.cpp ${CMAKE_SOURCE_DIR}/ggml-cuda/*.cu
    ${CMAKE_SOURCE_DIR}/ggml-cuda/ops/*.cu ${CMAKE_SOURCE_DIR}/ggml-cuda/ops/*.cpp)
  add_library(tandem_cuda STATIC ${TANDEM_CUDA_SOURCES})
  string(REPLACE ";" "," arch_list "${archs}")
  set_source_files_properties(${CMAKE_SOURCE_DIR}/ggml-cuda/cuda_device.cu PROPERTIES COMPILE_DEFINITIONS
    "TANDEM_CUDA_ARCHS=\"${arch_list}\"")
  set_target_properties(tandem_cuda PROPERTIES CUDA_RUNTIME_LIBRARY Static)
  target_include_directories(tandem_cuda PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_options(tandem_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xcompiler=-Wall>)
  target_compile_definitions(tandem_cuda PRIVATE TANDEM_HAVE_CUDA)
  # fmt 9 takes nvcc for a compiler without constexpr.
  target_compile_definitions(tandem_cuda PUBLIC $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  target_link_libraries(tandem_cuda PRIVATE ${CMAKE_DL_LIBS})
else()
  add_library(tandem_cuda STATIC ${CMAKE_SOURCE_DIR}/ggml-cuda/backend.cpp)
endif()
target_include_directories(tandem_cuda PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(tandem_cuda PUBLIC tandem_device tandem_graph tandem_gguf tandem_base)
