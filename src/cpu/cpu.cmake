# The CPU device. Each ISA's kernels are compiled with that ISA's flags and nothing else is; TANDEM_ISA is the
# namespace they land in. avx512/ is compiled twice, as are the products and the attention of avx2/.
#
# Adds the library `target` of the objects of `files` (patterns in src/cpu/), compiled in namespace `name`. The rest are flags.
function(tandem_isa_objects target name files)
  list(TRANSFORM files REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/cpu/\\1.cpp")
  file(GLOB sources CONFIGURE_DEPENDS ${files})
  add_library(${target} OBJECT ${sources})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(${target} PRIVATE TANDEM_ISA=${name})
  # GCC 12's own intrinsics headers start from undefined vectors (its bug 105593).
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  # Contraction only where the code says fma: the scalar reference must not depend on the compiler's taste.
  set(optimize -O3)
  if(TANDEM_FUZZ)
    set(optimize -O1)
  elseif(TANDEM_SANITIZE)
    set(optimize -O2)
  endif()
  target_compile_options(${target} PRIVATE ${optimize} -ffp-contract=off ${ARGN})
  # Coverage and checks of undefined behaviour take minutes to compile in vector kernels; checks of addresses stay.
  if((TANDEM_FUZZ OR TANDEM_SANITIZE) AND ARGN)
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined$<$<BOOL:${TANDEM_FUZZ}>:,fuzzer-no-link>)
  endif()
  # GCC 12 does not align the frames that it makes to find uses after return as vectors of 64 bytes need (its bug 110027).
  if(TANDEM_SANITIZE MATCHES address AND ARGN AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE --param=asan-use-after-return=0)
  endif()
  # Checks of addresses in line take ten minutes and more for a file of unrolled kernels; as calls, clang takes 20 seconds.
  if((TANDEM_FUZZ OR TANDEM_SANITIZE MATCHES address) AND ARGN)
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
      target_compile_options(${target} PRIVATE "SHELL:-mllvm -asan-instrumentation-with-call-threshold=0")
    elseif(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_compile_options(${target} PRIVATE --param=asan-instrumentation-with-call-threshold=0)
    endif()
  endif()
endfunction()

function(tandem_isa name files)
  tandem_isa_objects(tandem_cpu_${name} ${name} "${files}" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY TANDEM_ISAS ${name})
  target_sources(tandem_cpu PRIVATE $<TARGET_OBJECTS:tandem_cpu_${name}>)
  # The linker must not take this instruction set's copy of a shared function for the whole program.
  if(TANDEM_TESTS AND ARGN)
    add_test(NAME isa_symbols.${name} COMMAND_EXPAND_LISTS COMMAND
      ${CMAKE_SOURCE_DIR}/scripts/check_isa_symbols.py --nm ${CMAKE_NM} ${name} $<TARGET_OBJECTS:tandem_cpu_${name}>)
  endif()
endfunction()

if(TANDEM_TESTS)
  add_test(NAME isa_symbols.self_test COMMAND ${CMAKE_SOURCE_DIR}/scripts/check_isa_symbols.py --self-test)
endif()

file(GLOB TANDEM_CPU_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cpu/*.cpp ${CMAKE_SOURCE_DIR}/src/cpu/ops/*.cpp)
add_library(tandem_cpu STATIC ${TANDEM_CPU_SOURCES})
tandem_quick_build(tandem_cpu)
target_include_directories(tandem_cpu PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(tandem_cpu PUBLIC tandem_device tandem_graph tandem_gguf tandem_base)
set(TANDEM_AVX2_FLAGS -mavx2 -mfma -mf16c -mbmi2)
tandem_isa(scalar scalar/*)
tandem_isa(avx2 avx2/* ${TANDEM_AVX2_FLAGS})
tandem_isa(avx_vnni "avx2/linear*;avx2/attention" ${TANDEM_AVX2_FLAGS} -mavxvnni)
if(TANDEM_TESTS)
  # The same for tests on machines that have these instructions in the encoding of AVX-512 only.
  tandem_isa_objects(tandem_cpu_evex_vnni evex_vnni avx2/linear* ${TANDEM_AVX2_FLAGS})
  target_compile_definitions(tandem_cpu_evex_vnni PRIVATE TANDEM_EVEX_VNNI)
  add_test(NAME isa_code.avx_vnni COMMAND_EXPAND_LISTS COMMAND
    ${CMAKE_SOURCE_DIR}/scripts/check_isa_code.py --objdump ${CMAKE_OBJDUMP} $<TARGET_OBJECTS:tandem_cpu_avx_vnni>)
  add_test(NAME isa_code.self_test COMMAND ${CMAKE_SOURCE_DIR}/scripts/check_isa_code.py --self-test)
endif()
tandem_isa(avx512 avx512/* ${TANDEM_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
tandem_isa(avx512_vnni avx512/* ${TANDEM_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
           -mprefer-vector-width=512)
tandem_isa(avx512_vbmi vbmi/* ${TANDEM_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
           -mavx512vbmi -mgfni -mprefer-vector-width=512)
tandem_isa(avx512_bf16 bf16/* ${TANDEM_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
           -mavx512bf16 -mprefer-vector-width=512)
tandem_isa(avx512_amx amx/* ${TANDEM_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
           -mavx512vbmi -mgfni -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8 -mprefer-vector-width=512)
