# Read by cpack between the installation into its own folder and the packing: gives all files the time of the commit.
file(GLOB_RECURSE installed LIST_DIRECTORIES true ${CPACK_TEMPORARY_DIRECTORY}/*)
execute_process(COMMAND touch --no-dereference --date=@${CPACK_TANDEM_EPOCH} ${CPACK_TEMPORARY_DIRECTORY} ${installed}
  COMMAND_ERROR_IS_FATAL ANY)
