# A program for mpirun, if the program has MPI. tests/faults/mpi_ranks_test.cpp runs it.
if(TARGET tandem_mpi)
  add_executable(mpi_ranks_program ${CMAKE_CURRENT_LIST_DIR}/ranks_program.cpp)
  target_link_libraries(mpi_ranks_program PRIVATE tandem_test_support tandem_ranks tandem_sandbox)
  add_dependencies(mpi_ranks_program tandem_mpi)
  add_dependencies(faults_tests mpi_ranks_program)
endif()
