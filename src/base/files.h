// The file system without exceptions of its own: every failure is an Error(io) that names the path.
#pragma once

#include <string>
#include <vector>

namespace tandem {

// Whether something has this name; a link without a target does not count. Throws if the system cannot tell (no
// permission, a loop of links, a name that is too long).
bool file_exists(const std::string& path);

// As file_exists(), and whether it is a folder.
bool is_folder(const std::string& path);

// The paths of all files in the folder, sorted.
std::vector<std::string> files_in(const std::string& folder);

// The paths of all files in the folder and in those below it, without the folders, sorted; none if there is no such
// folder. A link to a folder counts as a file.
std::vector<std::string> files_below(const std::string& folder);

}  // namespace tandem
