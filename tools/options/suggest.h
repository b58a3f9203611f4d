// "did you mean": the known word that a mistyped one is most likely to stand for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

// How many letters to insert, remove, change or swap with their neighbour to make `b` of `a`.
size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `known`, regardless of case; "" if none is near enough to be meant.
std::string closest(std::string_view word, const std::vector<std::string>& known);

// The end of an error message, "; did you mean 'chat'?", or "" without a likely word.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known,
                         std::string_view before = "");

}  // namespace tandem::tools
