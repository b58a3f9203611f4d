// tandem inspect: shows the contents of a GGUF file, or the differences of two, as a page or as JSON.
#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "gguf/file.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/hub/model_path.h"
#include "tools/inspect/diff.h"
#include "tools/options/command_line.h"
#include "tools/output.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

struct DtypeTotal {
  uint64_t n_tensors = 0, n_elements = 0, n_bytes = 0;
};

// Totals in the order of the dtype numbers.
std::map<DType, DtypeTotal> dtype_totals(const GgufFile& file) {
  std::map<DType, DtypeTotal> totals;
  for (const TensorInfo& tensor : file.tensors()) {
    DtypeTotal& total = totals[tensor.dtype];
    ++total.n_tensors;
    total.n_elements += static_cast<uint64_t>(tensor.n_elements());
    total.n_bytes += tensor.n_bytes;
  }
  return totals;
}

uint64_t n_elements(const GgufFile& file) {
  uint64_t n = 0;
  for (const TensorInfo& tensor : file.tensors()) n += static_cast<uint64_t>(tensor.n_elements());
  return n;
}

double bits_per_weight(uint64_t n_bytes, uint64_t n) {
  return n ? 8.0 * static_cast<double>(n_bytes) / static_cast<double>(n) : 0.0;
}

// "1.23 GiB"
std::string exact_size_text(uint64_t n_bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(n_bytes);
  size_t unit = 0;
  while (size >= 1024.0 && unit + 1 < std::size(units)) {
    size /= 1024.0;
    ++unit;
  }
  return unit == 0 ? format("{} bytes", n_bytes) : format("{:.2f} {}", size, units[unit]);
}

// "1.10 B"
std::string count_text(uint64_t n) {
  const auto count = static_cast<double>(n);
  if (n >= 1000000000) return format("{:.2f} B", count / 1e9);
  if (n >= 1000000) return format("{:.2f} M", count / 1e6);
  if (n >= 1000) return format("{:.2f} K", count / 1e3);
  return std::to_string(n);
}

// ---- Page

// Returns the number at "ARCH.name", or "" if there is none: the file may contain anything.
std::string number_at(const GgufFile& file, const std::string& arch, const char* name) {
  const Value* value = file.metadata().find(arch + "." + name);
  return value && value->type() != ValueType::string ? value->short_text(20) : "";
}

void print_summary(const GgufFile& file, const std::string& shown_path, Output& out) {
  out.write(format("file           {}\n", printable(shown_path, 4096)));
  if (file.n_parts() > 1) out.write(format("parts          {}\n", file.n_parts()));
  out.write(format("size           {} bytes", file.n_file_bytes()));
  if (file.n_file_bytes() >= 1024) out.write(format(" ({})", exact_size_text(file.n_file_bytes())));
  out.write("\n");
  out.write(format("format         GGUF v{}, alignment {}\n", file.version(), file.alignment()));
  const Value* arch = file.metadata().find("general.architecture");
  if (!arch || arch->type() != ValueType::string) return;
  const std::string name(arch->text());
  std::string line = printable(name);
  const std::pair<const char*, const char*> parts[] = {
      {"block_count", "layers"},         {"embedding_length", "wide"},
      {"attention.head_count", "heads"}, {"attention.head_count_kv", "kv heads"},
      {"expert_count", "experts"},       {"context_length", "context"}};
  for (const auto& [key, word] : parts) {
    if (const std::string number = number_at(file, name, key); !number.empty())
      line += ", " + number + " " + word;
  }
  out.write(format("architecture   {}\n", line));
}

void print_metadata(const GgufFile& file, Output& out) {
  size_t widest = 0;
  for (const Metadata::Entry& entry : file.metadata().entries())
    widest = std::max(widest, printable(entry.key).size());
  out.write(format("\nmetadata: {}\n", file.metadata().entries().size()));
  for (const Metadata::Entry& entry : file.metadata().entries()) {
    const std::string type(value_type_name(entry.value.type()));
    out.write(format("  {:<{}}  {:<6}  {}\n", printable(entry.key), static_cast<int>(widest), type,
                     entry.value.short_text(80)));
  }
}

void print_tensors(const GgufFile& file, Output& out) {
  size_t widest = 0;
  for (const TensorInfo& tensor : file.tensors()) widest = std::max(widest, printable(tensor.name).size());
  out.write(format("\ntensors: {} (innermost dimension first)\n", file.tensors().size()));
  for (const TensorInfo& tensor : file.tensors()) {
    out.write(format("  {:<{}}  {:<7}  {:<20}  {:>12}\n", printable(tensor.name), static_cast<int>(widest),
                     dtype_name(tensor.dtype), tensor.shape_text(), exact_size_text(tensor.n_bytes)));
  }
}

void print_total_line(const std::string& name, const DtypeTotal& total, Output& out) {
  out.write(format("  {:<7}  {:6} tensors  {:>10} weights  {:>12}  {:6.3f} bits per weight\n", name,
                   total.n_tensors, count_text(total.n_elements), exact_size_text(total.n_bytes),
                   bits_per_weight(total.n_bytes, total.n_elements)));
}

void print_totals(const GgufFile& file, Output& out) {
  if (file.tensors().empty()) return;
  out.write("\ntotals\n");
  for (const auto& [dtype, total] : dtype_totals(file))
    print_total_line(std::string(dtype_name(dtype)), total, out);
  print_total_line("all", {file.tensors().size(), n_elements(file), file.n_tensor_bytes()}, out);
}

// ---- JSON

// Converts a float to the double with the same short text: 1e-05, not 9.999999747378752e-06. NaN and infinity
// become null.
template <class T>
Json number_json(T number) {
  if constexpr (std::is_same_v<T, float>) {
    const std::string text = Value(number).short_text();
    double same = static_cast<double>(number);
    std::from_chars(text.data(), text.data() + text.size(), same);
    return same;
  } else {
    return number;
  }
}

Json value_json(const Value& value) {
  if (value.type() == ValueType::string) return value.text();
  Json json;
  if (!value.is_array()) {
    with_type(value.type(), [&]<class T>(T) { json = number_json(value.scalar<T>()); });
    return json;
  }
  json = Json::array();
  if (value.element_type() == ValueType::string) {
    for (const std::string_view text : value.strings()) json.push_back(text);
    return json;
  }
  with_type(value.element_type(), [&]<class T>(T) {
    for (const T element : value.elements<T>()) json.push_back(number_json(element));
  });
  return json;
}

Json metadata_json(const GgufFile& file) {
  Json all = Json::object();
  for (const Metadata::Entry& entry : file.metadata().entries()) {
    Json& item = all[entry.key];
    item["type"] = value_type_name(entry.value.type());
    if (entry.value.is_array()) item["element_type"] = value_type_name(entry.value.element_type());
    item["value"] = value_json(entry.value);
  }
  return all;
}

Json tensors_json(const GgufFile& file) {
  Json list = Json::array();
  for (const TensorInfo& tensor : file.tensors()) {
    list.push_back({{"name", tensor.name},
                    {"dtype", dtype_name(tensor.dtype)},
                    {"dims", std::vector<int64_t>(tensor.dims, tensor.dims + tensor.n_dims)},
                    {"n_bytes", tensor.n_bytes},
                    {"part", tensor.part},
                    {"offset", tensor.offset}});
  }
  return list;
}

Json totals_json(const GgufFile& file) {
  Json by_dtype = Json::object();
  for (const auto& [dtype, total] : dtype_totals(file)) {
    by_dtype[std::string(dtype_name(dtype))] = {
        {"n_tensors", total.n_tensors},
        {"n_weights", total.n_elements},
        {"n_bytes", total.n_bytes},
        {"bits_per_weight", bits_per_weight(total.n_bytes, total.n_elements)}};
  }
  return {{"n_tensors", file.tensors().size()},
          {"n_weights", n_elements(file)},
          {"n_bytes", file.n_tensor_bytes()},
          {"bits_per_weight", bits_per_weight(file.n_tensor_bytes(), n_elements(file))},
          {"by_dtype", by_dtype}};
}

void print_json(const GgufFile& file, const std::string& name, Output& out) {
  Json page;
  page["file"] = name;
  page["n_parts"] = file.n_parts();
  page["n_bytes"] = file.n_file_bytes();
  page["version"] = file.version();
  page["alignment"] = file.alignment();
  page["metadata"] = metadata_json(file);
  page["tensors"] = tensors_json(file);
  page["totals"] = totals_json(file);
  // Strings that are not UTF-8 (tokens of partial characters) get replacement characters.
  out.write_text(page.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

struct InspectOptions {
  std::string file, other;
  bool json = false, diff = false;
  HubOptions hub;
  bool sandbox = true;
};

void inspect(const InspectOptions& o) {
  const ModelHeader model = model_header(o.file, o.hub);
  Confinement confinement(o.sandbox);
  confinement.reads_header(model).begin();
  const GgufFile file(model.path, {.prefetch = false});
  Output out;
  if (o.json) {
    print_json(file, model.name, out);
  } else {
    print_summary(file, model.name, out);
    print_metadata(file, out);
    print_tensors(file, out);
    print_totals(file, out);
  }
  out.flush();
}

void inspect_difference(const InspectOptions& o) {
  const std::string path_a = model_path(o.file, o.hub), path_b = model_path(o.other, {});
  Confinement confinement(o.sandbox);
  confinement.reads_model(path_a).reads_model(path_b).begin();
  const GgufFile a(path_a, {.prefetch = false});
  const GgufFile b(path_b, {.prefetch = false});
  const FileDifference difference = compare(a, b);
  Output out;
  out.write_text(o.json ? difference_json(difference, o.file, o.other)
                        : difference_page(difference, o.file, o.other));
  out.flush();
  if (!difference.none()) throw ExitCode{1};
}

void run_inspect(const InspectOptions& o) {
  if (o.diff == o.other.empty()) {
    throw_error(ErrorCode::usage, "{}",
                o.diff ? "--diff: needed two files to compare"
                       : "found a second file, needed --diff to compare the two");
  }
  if (o.diff) {
    inspect_difference(o);
  } else {
    inspect(o);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App& command = add_command(app, "inspect", "show metadata, tensors and totals of a GGUF file");
  const auto o = std::make_shared<InspectOptions>();
  text(command, "file,-m,--model", o->file, "FILE",
       "the GGUF file; for a split model, its first part; or USER/REPO[:QUANT] as for -hf");
  text(command, "other", o->other, "OTHER", "the file to compare with, for --diff");
  flag(command, "--json", o->json,
       "print everything as one JSON object: metadata with types, whole arrays, tensors");
  flag(command, "--diff", o->diff,
       "compare two files: what only one has and how much the rest differs; exit code 1 if there "
       "is any difference");
  add_hub_options(command, o->hub);
  add_sandbox_option(command, o->sandbox);
  set_callback(command, [o] {
    set_log_level(LogLevel::info);
    run_inspect(*o);
  });
}

}  // namespace tandem::tools
