// tojson as in the chat templates of transformers: Python's json.dumps with ensure_ascii=False.
#include <algorithm>
#include <cstdio>

#include "jinja/builtins.h"

namespace tandem::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(const Value& indent, const Value& separators, bool ascii, bool sort_keys)
      : ascii_(ascii), sort_keys_(sort_keys), indented_(!indent.is_missing() && !indent.is_none()) {
    if (indented_) indent_ = indent_text(indent);
    if (indented_) item_separator_ = ",";
    if (separators.is_missing() || separators.is_none()) return;
    const std::vector<Value> pair = iterate(separators);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      fail("separators must be two strings");
    item_separator_ = pair[0].text();
    key_separator_ = pair[1].text();
  }

  Text write(const Value& value) {
    write_value(value, 1);
    return std::move(out_);
  }

 private:
  static Text indent_text(const Value& indent) {
    if (indent.is_string()) return indent.text();
    if (!indent.is_integral()) fail("indent must be an int or a str, not '{}'", type_name(indent));
    return Text(std::string(static_cast<size_t>(std::clamp<int64_t>(indent.integral(), 0, 1000)), ' '));
  }
  void new_line(size_t depth) {
    if (!indented_) return;
    out_.append("\n");
    for (size_t i = 0; i < depth; ++i) out_.append(indent_);
  }
  void write_value(const Value& value, size_t depth);
  void write_string(const Text& text);
  void write_list(const std::vector<Value>& items, size_t depth);
  void write_dict(const DictData& dict, size_t depth);
  static Text number(const Value& value);
  static Text key_text(const Value& key);

  const bool ascii_, sort_keys_, indented_;
  Text indent_, item_separator_ = ", ", key_separator_ = ": ", out_;
};

Text JsonWriter::number(const Value& value) {
  if (!value.is(Kind::real)) return to_text(value);
  const std::string text = float_text(value.real());
  return text == "nan" ? "NaN" : text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : Text(text);
}

void JsonWriter::write_value(const Value& value, size_t depth) {
  switch (value.kind()) {
    case Kind::none: return out_.append("null");
    case Kind::boolean: return out_.append(value.boolean() ? "true" : "false");
    case Kind::integer:
    case Kind::real: return out_.append(number(value));
    case Kind::string: return write_string(value.text());
    case Kind::dict: return write_dict(*value.dict(), depth);
    default: break;
  }
  if (!value.is_list(Flavor::list) && !value.is_list(Flavor::tuple)) {
    fail("Object of type {} is not JSON serializable", type_name(value));
  }
  write_list(value.items(), depth);
}

void JsonWriter::write_list(const std::vector<Value>& items, size_t depth) {
  out_.append("[");
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out_.append(item_separator_);
    new_line(depth);
    write_value(items[i], depth + 1);
  }
  if (!items.empty()) new_line(depth - 1);
  out_.append("]");
}

Text JsonWriter::key_text(const Value& key) {
  switch (key.kind()) {
    case Kind::string: return key.text();
    case Kind::none: return "null";
    case Kind::boolean: return key.boolean() ? "true" : "false";
    case Kind::integer:
    case Kind::real: return number(key);
    default: fail("keys must be str, int, float, bool or None, not {}", type_name(key));
  }
}

void JsonWriter::write_dict(const DictData& dict, size_t depth) {
  std::vector<const DictData::Entry*> entries;
  for (const auto& entry : dict.entries()) entries.push_back(&entry);
  if (sort_keys_) {
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto* a, const auto* b) { return compare(a->first, b->first, "<") < 0; });
  }
  out_.append("{");
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out_.append(item_separator_);
    new_line(depth);
    write_string(key_text(entries[i]->first));
    out_.append(key_separator_);
    write_value(entries[i]->second, depth + 1);
  }
  if (!entries.empty()) new_line(depth - 1);
  out_.append("}");
}

void JsonWriter::write_string(const Text& text) {
  out_.append("\"");
  const std::string_view bytes = text.view();
  size_t plain = 0;  // start of the bytes to copy unchanged
  for (size_t at = 0, n = 0; at < bytes.size(); at += n) {
    n = char_bytes(bytes, at);
    const uint32_t code = char_code(bytes, at);
    char escaped[16] = "";
    static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    const size_t simple = code < 0x80 ? kFrom.find(static_cast<char>(code)) : kFrom.npos;
    if (simple != kFrom.npos) {
      snprintf(escaped, sizeof escaped, "\\%c", kTo[simple]);
    } else if (code < 0x20 || (ascii_ && code > 0x7e && code < 0x10000)) {
      snprintf(escaped, sizeof escaped, "\\u%04x", code);
    } else if (ascii_ && code >= 0x10000) {
      snprintf(escaped, sizeof escaped, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
               0xdc00 + (code & 0x3ff));
    }
    if (!escaped[0]) continue;
    out_.append(text, plain, at - plain);
    out_.append(escaped, text.origin_at(at));
    plain = at + n;
  }
  out_.append(text, plain, bytes.size() - plain);
  out_.append("\"");
}

}  // namespace

Text json_text(const Value& value, const Value& indent, const Value& separators, bool ascii, bool sort_keys) {
  return JsonWriter(indent, separators, ascii, sort_keys).write(value);
}

}  // namespace tandem::jinja
