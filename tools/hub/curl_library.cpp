#include "tools/hub/curl_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace tandem::tools {
namespace {

// The same interface, built with another TLS library.
constexpr const char* kNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};

void* open_library() {
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  throw Error(ErrorCode::io, "downloading needs the library libcurl.so.4 (package libcurl4)");
}

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) {
    throw_error(ErrorCode::io, "libcurl has no function {}; a newer libcurl is needed", name);
  }
}

CurlLibrary load() {
  void* library = open_library();  // stays loaded until the program ends
  CurlLibrary curl;
  find(library, "curl_global_init", curl.global_init);
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_reset", curl.easy_reset);
  find(library, "curl_easy_setopt", curl.easy_setopt);
  find(library, "curl_easy_perform", curl.easy_perform);
  find(library, "curl_easy_getinfo", curl.easy_getinfo);
  find(library, "curl_easy_strerror", curl.easy_strerror);
  find(library, "curl_easy_cleanup", curl.easy_cleanup);
  find(library, "curl_slist_append", curl.slist_append);
  find(library, "curl_slist_free_all", curl.slist_free_all);
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    throw Error(ErrorCode::io, "libcurl cannot be initialized");
  }
  return curl;
}

}  // namespace

const CurlLibrary& curl_library() {
  static const CurlLibrary curl = load();
  return curl;
}

}  // namespace tandem::tools
