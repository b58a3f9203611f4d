#include "tools/hub/choice.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>

#include "base/error.h"

namespace tandem::tools {
namespace {

// What is taken if the user names none: small, then good, then large. All are types that tandem computes with.
constexpr std::string_view kPreferred[] = {
    "Q4_K_M", "Q4_K_XL", "Q4_K_S", "Q4_K",  "IQ4_XS", "IQ4_NL", "Q4_0",   "Q4_1",    "MXFP4",  "MXFP4_MOE",
    "Q5_K_M", "Q5_K_S",  "Q5_0",   "Q5_1",  "Q6_K",   "Q8_0",   "Q3_K_L", "Q3_K_M",  "Q3_K_S", "Q2_K",
    "BF16",   "F16",     "FP16",   "F32",   "IQ3_M",  "IQ3_S",  "IQ3_XS", "IQ3_XXS", "IQ2_M",  "IQ2_S",
    "IQ2_XS", "IQ2_XXS", "Q2_K_S", "IQ1_M", "IQ1_S",  "NVFP4",  "TQ2_0",  "TQ1_0",   "Q1_0"};

std::string upper(std::string_view text) {
  std::string out;
  for (const char c : text) out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// In upper case: F16, BF16, FP16, F32, MXFP4..., TQ1_0, Q4_0, Q4_K_M, IQ2_XXS, Q4_0_4_4.
bool is_quant_label(std::string_view t) {
  for (const std::string_view name : {"F16", "BF16", "FP16", "F32", "FP32", "F64"}) {
    if (t == name) return true;
  }
  if (t.starts_with("MXFP") || t.starts_with("NVFP")) return t.size() > 4 && is_digit(t[4]);
  if (t.starts_with("I") || t.starts_with("T")) t.remove_prefix(1);
  if (t.size() < 2 || t[0] != 'Q' || !is_digit(t[1])) return false;
  return t.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == t.npos;
}

// The label at the end of a name such as "MODEL-UD-Q4_K_XL" or "model.q8_0"; "" if there is none.
std::string label_at_end(std::string_view name) {
  const std::string text = upper(name);
  const size_t separator = text.find_last_of("-.");
  const std::string last = separator == text.npos ? text : text.substr(separator + 1);
  if (is_quant_label(last)) {
    const std::string before = separator == text.npos ? "" : text.substr(0, separator);
    return before == "UD" || before.ends_with("-UD") ? "UD-" + last : last;
  }
  // "model_q8_0": the label starts at the leftmost underscore after which it is one
  for (size_t at = last.find('_'); at != last.npos; at = last.find('_', at + 1)) {
    if (is_quant_label(std::string_view(last).substr(at + 1))) return last.substr(at + 1);
  }
  return "";
}

struct Stem {
  std::string text;  // the path without "-00001-of-00003" and ".gguf"
  size_t part = 1, n_parts = 1;
};

bool is_gguf(std::string_view path) {
  return upper(path.substr(path.size() - std::min<size_t>(path.size(), 5))) == ".GGUF";
}

// "-00001-of-00003" at the end of the name.
Stem stem_of(std::string_view path) {
  Stem stem{std::string(path.substr(0, path.size() - 5))};
  constexpr std::string_view pattern = "-00000-of-00000";
  if (stem.text.size() <= pattern.size()) return stem;
  const std::string tail = stem.text.substr(stem.text.size() - pattern.size());
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '0' ? !is_digit(tail[i]) : tail[i] != pattern[i]) return stem;
  }
  stem.part = static_cast<size_t>(std::stoul(tail.substr(1, 5)));
  stem.n_parts = static_cast<size_t>(std::stoul(tail.substr(10, 5)));
  stem.text.resize(stem.text.size() - pattern.size());
  return stem;
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

bool goes_with_a_model(std::string_view path) {
  const std::string name = upper(base_name(path));
  return name.find("MMPROJ") != name.npos || name.find("IMATRIX") != name.npos;
}

size_t rank_of(const RepoModel& model) {
  std::string_view quant = model.quant;
  if (quant.starts_with("UD-")) quant.remove_prefix(3);
  const auto found = std::find(std::begin(kPreferred), std::end(kPreferred), quant);
  return static_cast<size_t>(found - std::begin(kPreferred));
}

// 0: the model's quantization is the asked one; 1: it is but for the prefix UD-; 2: it is not.
int mismatch(const RepoModel& model, const std::string& quant) {
  if (model.quant == quant) return 0;
  return model.quant == "UD-" + quant ? 1 : 2;
}

std::string list_of(const std::vector<RepoModel>& models) {
  std::string text;
  for (const RepoModel& m : models) {
    text += (text.empty() ? "" : ", ") + printable(m.quant.empty() ? m.path() : m.quant, 200);
    if (text.size() > 1000) return text + ", ...";
  }
  return text;
}

void require_complete(const RepoModel& model, const std::string& repo) {
  if (model.complete()) return;
  throw_error(ErrorCode::io, "{}: {} is one of {} parts, of which the repository has {}", repo,
              printable(model.path(), 300), model.n_parts, model.files.size());
}

Choice choose_file(const std::vector<RepoModel>& models, const std::string& repo, const std::string& file) {
  for (const RepoModel& m : models) {
    for (const RepoFile& f : m.files) {
      if (f.path != file) continue;
      require_complete(m, repo);
      return {&m, ""};
    }
  }
  std::string names;
  for (const RepoModel& m : models) names += (names.empty() ? "" : ", ") + printable(m.path(), 200);
  throw_error(ErrorCode::usage, "{}: there is no file {}; it has {}", repo, printable(file, 300),
              printable(names, 2000));
}

}  // namespace

uint64_t RepoModel::n_bytes() const {
  uint64_t n = 0;
  for (const RepoFile& f : files) n += f.n_bytes;
  return n;
}

std::string quant_of(std::string_view path) {
  const Stem stem = is_gguf(path) ? stem_of(path) : Stem{std::string(path)};
  std::string_view rest = stem.text;
  while (true) {
    if (std::string label = label_at_end(base_name(rest)); !label.empty()) return label;
    const size_t slash = rest.rfind('/');
    if (slash == rest.npos) return "";
    rest = rest.substr(0, slash);
  }
}

std::vector<RepoModel> models_in(const std::vector<RepoFile>& files) {
  std::map<std::pair<std::string, size_t>, std::map<size_t, RepoFile>> parts;
  for (const RepoFile& file : files) {
    if (!is_gguf(file.path) || goes_with_a_model(file.path)) continue;
    const Stem stem = stem_of(file.path);
    if (stem.part < 1 || stem.part > stem.n_parts) continue;
    parts[{stem.text, stem.n_parts}].emplace(stem.part, file);
  }
  std::vector<RepoModel> models;
  for (const auto& [key, files_of] : parts) {
    RepoModel model;
    model.n_parts = key.second;
    for (const auto& [part, file] : files_of) model.files.push_back(file);
    model.quant = quant_of(model.path());
    models.push_back(std::move(model));
  }
  return models;
}

Choice choose_model(const std::vector<RepoModel>& models, const std::string& repo, const std::string& asked,
                    const std::string& file) {
  if (models.empty()) {
    throw_error(ErrorCode::io,
                "{}: the repository has no model in GGUF format; look for one with GGUF in its name", repo);
  }
  if (!file.empty()) return choose_file(models, repo, file);
  std::vector<const RepoModel*> found;
  const std::string quant = upper(asked);
  if (quant.empty()) {
    for (const RepoModel& m : models) found.push_back(&m);
    std::stable_sort(found.begin(), found.end(),
                     [](const auto* a, const auto* b) { return rank_of(*a) < rank_of(*b); });
    found.erase(std::find_if(found.begin(), found.end(),
                             [&](const auto* m) { return rank_of(*m) != rank_of(*found.front()); }),
                found.end());
  } else {
    int best = 1;
    for (const RepoModel& m : models) best = std::min(best, mismatch(m, quant));
    for (const RepoModel& m : models) {
      if (mismatch(m, quant) == best) found.push_back(&m);
    }
    if (found.empty()) {
      throw_error(ErrorCode::usage, "{}: there is no {}; it has {}", repo, printable(quant), list_of(models));
    }
  }
  const RepoModel& model = *found.front();
  require_complete(model, repo);
  Choice choice{&model, ""};
  if (found.size() > 1) {
    choice.why = format("{} models fit; taking {}", found.size(), printable(model.path(), 300));
  } else if (quant.empty() && rank_of(model) != 0 && models.size() > 1) {
    choice.why = format("there is no Q4_K_M; taking {} of {}",
                        printable(model.quant.empty() ? model.path() : model.quant, 300), list_of(models));
  }
  return choice;
}

}  // namespace tandem::tools
