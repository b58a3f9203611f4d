# Read by cpack between the installation into its own folder and the packing: gives all files the time of the commit, and
# folders the rights that they have in any package, whatever the umask of who builds (what cpack has for it leaves out the folders
# of components).
file(GLOB_RECURSE installed LIST_DIRECTORIES true ${CPACK_TEMPORARY_DIRECTORY}/*)
execute_process(COMMAND touch --no-dereference --date=@${CPACK_TANDEM_EPOCH} ${CPACK_TEMPORARY_DIRECTORY} ${installed}
  COMMAND_ERROR_IS_FATAL ANY)
foreach(path ${installed})
  if(IS_DIRECTORY ${path} AND NOT IS_SYMLINK ${path})
    file(CHMOD ${path} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  endif()
endforeach()
