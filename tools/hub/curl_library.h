// libcurl, loaded when the first download starts: the program runs on machines without it.
#pragma once

#define CURL_DISABLE_DEPRECATION  // newer names of options do not exist in older libraries
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

namespace tandem::tools {

struct CurlLibrary {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
};

// Any thread. Throws Error(io) if the library is missing or too old.
const CurlLibrary& curl_library();

}  // namespace tandem::tools
