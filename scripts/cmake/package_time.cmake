# Read by cpack before it packs: the time that it writes into its own parts of an archive.
set(ENV{SOURCE_DATE_EPOCH} ${CPACK_TANDEM_EPOCH})
