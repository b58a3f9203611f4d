#include "tools/inspect/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "gguf/quants.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

bool same_value(const Value& a, const Value& b) {
  if (a.type() != b.type()) return false;
  if (a.type() == ValueType::string) return a.text() == b.text();
  if (a.is_array()) {
    if (a.element_type() != b.element_type() || a.size() != b.size()) return false;
    if (a.element_type() == ValueType::string) {
      const auto mine = a.strings(), theirs = b.strings();
      return std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end());
    }
  }
  const auto mine = a.raw(), theirs = b.raw();
  return std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end());
}

bool says_which_part(std::string_view key) {
  return key == "split.no" || key == "split.count" || key == "split.tensors.count";
}

void compare_metadata(const GgufFile& a, const GgufFile& b, FileDifference& result) {
  for (const Metadata::Entry& entry : a.metadata().entries()) {
    if (says_which_part(entry.key)) continue;
    const Value* other = b.metadata().find(entry.key);
    if (other && same_value(entry.value, *other)) {
      ++result.n_same_metadata;
    } else {
      result.metadata.push_back({entry.key, &entry.value, other});
    }
  }
  for (const Metadata::Entry& entry : b.metadata().entries()) {
    if (says_which_part(entry.key) || a.metadata().has(entry.key)) continue;
    result.metadata.push_back({entry.key, nullptr, &entry.value});
  }
}

bool same_shape(const TensorInfo& a, const TensorInfo& b) {
  return std::equal(std::begin(a.dims), std::end(a.dims), std::begin(b.dims));
}

// Compares row by row, as floats.
void compare_values(TensorDifference& d) {
  const int64_t width = d.a->dims[0];
  const size_t a_bytes = row_bytes(d.a->dtype, width), b_bytes = row_bytes(d.b->dtype, width);
  std::vector<float> x(static_cast<size_t>(width)), y(static_cast<size_t>(width));
  double squares = 0, squares_of_a = 0;
  for (int64_t r = 0; r < d.a->n_rows(); ++r) {
    dequantize_row(d.a->dtype, d.a->data + static_cast<size_t>(r) * a_bytes, x.data(), width);
    dequantize_row(d.b->dtype, d.b->data + static_cast<size_t>(r) * b_bytes, y.data(), width);
    for (size_t i = 0; i < x.size(); ++i) {
      squares_of_a += static_cast<double>(x[i]) * x[i];
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      ++d.n_different;
      const double error = std::fabs(static_cast<double>(x[i]) - y[i]);
      d.max_abs = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(d.max_abs, error);
      squares += error * error;
    }
  }
  const auto n = static_cast<double>(std::max<int64_t>(1, d.a->n_elements()));
  d.rms = std::sqrt(squares / n);
  d.rms_of_a = std::sqrt(squares_of_a / n);
  d.compared = true;
}

// Returns whether the tensors differ; fills in how.
bool differ(TensorDifference& d) {
  if (!same_shape(*d.a, *d.b)) return true;
  const bool same_bytes = d.a->dtype == d.b->dtype && std::memcmp(d.a->data, d.b->data, d.a->n_bytes) == 0;
  if (same_bytes) return false;
  if (dtype_info(d.a->dtype).to_float && dtype_info(d.b->dtype).to_float) compare_values(d);
  return true;
}

void compare_tensors(const GgufFile& a, const GgufFile& b, FileDifference& result) {
  for (const TensorInfo& tensor : a.tensors()) {
    TensorDifference d{&tensor, b.find_tensor(tensor.name)};
    if (d.b && !differ(d)) {
      ++result.n_same_tensors;
    } else {
      result.tensors.push_back(d);
    }
  }
  for (const TensorInfo& tensor : b.tensors()) {
    if (!a.find_tensor(tensor.name)) result.tensors.push_back({nullptr, &tensor});
  }
}

std::string type_text(const TensorInfo& tensor) {
  return std::string(dtype_name(tensor.dtype)) + " " + tensor.shape_text();
}

std::string value_text(const Value& value) {
  return std::string(value_type_name(value.type())) + " " + value.short_text(60);
}

std::string change(const std::string& a, const std::string& b) {
  return a == b ? a : a + " -> " + b;
}

std::string tensor_text(const TensorDifference& d) {
  std::string text = change(type_text(*d.a), type_text(*d.b));
  if (!d.compared) return text;
  text += format("  {} of {} values differ", d.n_different, d.a->n_elements());
  if (d.n_different == 0) return text;
  text += format(", max {:.4g}, rms {:.4g}", d.max_abs, d.rms);
  if (d.rms_of_a > 0) text += format(" ({:.3g}% of the values' rms)", 100 * d.rms / d.rms_of_a);
  return text;
}

}  // namespace

FileDifference compare(const GgufFile& a, const GgufFile& b) {
  FileDifference result;
  compare_metadata(a, b, result);
  compare_tensors(a, b, result);
  return result;
}

std::string difference_page(const FileDifference& difference, const std::string& a, const std::string& b) {
  std::string page = format("A  {}\nB  {}\n", printable(a, 4096), printable(b, 4096));
  page +=
      format("\nmetadata: {} equal, {} different\n", difference.n_same_metadata, difference.metadata.size());
  for (const MetadataDifference& d : difference.metadata) {
    const char* where = !d.b ? "only in A" : !d.a ? "only in B" : "differs";
    const std::string text =
        d.a && d.b ? value_text(*d.a) + " -> " + value_text(*d.b) : value_text(d.a ? *d.a : *d.b);
    page += format("  {:<9}  {}  {}\n", where, printable(d.key), text);
  }
  page += format("\ntensors: {} equal, {} different\n", difference.n_same_tensors, difference.tensors.size());
  for (const TensorDifference& d : difference.tensors) {
    const char* where = !d.b ? "only in A" : !d.a ? "only in B" : "differs";
    const std::string text = d.a && d.b ? tensor_text(d) : type_text(d.a ? *d.a : *d.b);
    page += format("  {:<9}  {}  {}\n", where, printable((d.a ? d.a : d.b)->name), text);
  }
  return page;
}

namespace {

Json tensor_json(const TensorInfo* tensor) {
  if (!tensor) return nullptr;
  return {{"dtype", dtype_name(tensor->dtype)},
          {"dims", std::vector<int64_t>(tensor->dims, tensor->dims + tensor->n_dims)}};
}

Json value_json(const Value* value) {
  if (!value) return nullptr;
  return {{"type", value_type_name(value->type())}, {"value", value->short_text(200)}};
}

}  // namespace

std::string difference_json(const FileDifference& difference, const std::string& a, const std::string& b) {
  Json page = {{"a", a},
               {"b", b},
               {"same", difference.none()},
               {"n_same_metadata", difference.n_same_metadata},
               {"n_same_tensors", difference.n_same_tensors},
               {"metadata", Json::array()},
               {"tensors", Json::array()}};
  for (const MetadataDifference& d : difference.metadata) {
    page["metadata"].push_back({{"key", d.key}, {"a", value_json(d.a)}, {"b", value_json(d.b)}});
  }
  for (const TensorDifference& d : difference.tensors) {
    Json item = {{"name", (d.a ? d.a : d.b)->name}, {"a", tensor_json(d.a)}, {"b", tensor_json(d.b)}};
    if (d.compared) {
      item["n_different"] = d.n_different;
      item["max_abs"] = d.max_abs;  // infinity is null
      item["rms"] = d.rms;
      item["rms_of_a"] = d.rms_of_a;
    }
    page["tensors"].push_back(item);
  }
  return page.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::tools
