#include "tools/svg/svg.h"

#include "base/error.h"
#include "base/utf8.h"

namespace tandem::tools {
namespace {

constexpr std::string_view kStyle = R"(<style>
.page{fill:#ffffff}
.title{fill:#1f2328;font-size:16px;font-weight:600}
.note{fill:#59636e;font-size:12px}
.label{fill:#1f2328;font-size:12px}
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.axis{stroke:#59636e;stroke-width:1}
.grid{stroke:#d1d9e0;stroke-width:1}
.limit{stroke:#cf222e;stroke-width:2;stroke-dasharray:4 3}
.empty{fill:none;stroke:#818b98;stroke-width:1}
.curve{fill:none;stroke-width:2}
.error{stroke-width:1.5}
.c0{fill:#2563eb}.c1{fill:#d97706}.c2{fill:#059669}.c3{fill:#db2777}
.c4{fill:#7c3aed}.c5{fill:#64748b}.c6{fill:#0891b2}.c7{fill:#b91c1c}
.s0{stroke:#2563eb}.s1{stroke:#d97706}.s2{stroke:#059669}.s3{stroke:#db2777}
.s4{stroke:#7c3aed}.s5{stroke:#64748b}.s6{stroke:#0891b2}.s7{stroke:#b91c1c}
@media (prefers-color-scheme:dark){
.page{fill:#0d1117}
.title,.label{fill:#f0f6fc}
.note{fill:#9198a1}
.axis{stroke:#9198a1}
.grid{stroke:#3d444d}
.limit{stroke:#ff7b72}
.empty{stroke:#9198a1}
.c0{fill:#60a5fa}.c1{fill:#fbbf24}.c2{fill:#34d399}.c3{fill:#f472b6}
.c4{fill:#a78bfa}.c5{fill:#94a3b8}.c6{fill:#22d3ee}.c7{fill:#f87171}
.s0{stroke:#60a5fa}.s1{stroke:#fbbf24}.s2{stroke:#34d399}.s3{stroke:#f472b6}
.s4{stroke:#a78bfa}.s5{stroke:#94a3b8}.s6{stroke:#22d3ee}.s7{stroke:#f87171}
}
</style>
)";

// Tenths of a pixel are enough.
std::string number(double x) {
  std::string text = format("{:.1f}", x);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

const char* anchor_name(Anchor anchor) {
  switch (anchor) {
    case Anchor::start: return "start";
    case Anchor::middle: return "middle";
    case Anchor::end: return "end";
  }
  return "start";
}

const char* class_of(Svg::Text kind) {
  return kind == Svg::Text::title ? "title" : kind == Svg::Text::note ? "note" : "label";
}

}  // namespace

std::string xml_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Char next = next_utf8(text);
    const std::string_view bytes = text.substr(0, next.n_bytes);
    const char c = bytes[0];
    const bool is_control = static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n';
    const bool is_noncharacter = bytes == "\xef\xbf\xbe" || bytes == "\xef\xbf\xbf";  // U+FFFE, U+FFFF
    if (next.status != Utf8Status::valid || is_control || is_noncharacter) {
      out += kReplacementCharacter;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += bytes;
    }
    text.remove_prefix(next.n_bytes);
  }
  return out;
}

double label_width(std::string_view text) {
  size_t n = 0;
  for (const char c : text) n += (c & 0xc0) != 0x80;
  return 7.0 * static_cast<double>(n);
}

Svg::Svg(double width, double height, std::string_view title) {
  out_ = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "role=\"img\">\n<title>{2}</title>\n",
      number(width), number(height), xml_text(title));
  out_ += kStyle;
  out_ +=
      format("<rect class=\"page\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n", number(width), number(height));
}

void Svg::close(std::string_view element, std::string_view tip) {
  if (tip.empty()) {
    out_ += "/>\n";
  } else {
    out_ += format("><title>{}</title></{}>\n", xml_text(tip), element);
  }
}

void Svg::bar(double x, double y, double width, double height, int colour, std::string_view tip) {
  out_ += format("<rect class=\"c{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", colour % kColours,
                 number(x), number(y), number(width), number(height));
  close("rect", tip);
}

void Svg::outline(double x, double y, double width, double height, std::string_view tip) {
  out_ += format("<rect class=\"empty\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", number(x), number(y),
                 number(width), number(height));
  close("rect", tip);
}

void Svg::dot(double x, double y, int colour, std::string_view tip) {
  out_ +=
      format("<circle class=\"c{}\" cx=\"{}\" cy=\"{}\" r=\"4\"", colour % kColours, number(x), number(y));
  close("circle", tip);
}

void Svg::curve(std::string_view points, int colour) {
  out_ += format("<polyline class=\"curve s{}\" points=\"{}\"/>\n", colour % kColours, points);
}

void Svg::error_bar(double x, double y0, double y1, int colour) {
  const auto part = [&](double xa, double ya, double xb, double yb) {
    out_ += format("<line class=\"error s{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", colour % kColours,
                   number(xa), number(ya), number(xb), number(yb));
  };
  part(x, y0, x, y1);
  part(x - 4, y0, x + 4, y0);
  part(x - 4, y1, x + 4, y1);
}

void Svg::line(double x0, double y0, double x1, double y1, Line kind) {
  const char* name = kind == Line::axis ? "axis" : kind == Line::grid ? "grid" : "limit";
  out_ += format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", name, number(x0),
                 number(y0), number(x1), number(y1));
}

void Svg::text(double x, double y, Anchor anchor, Text kind, std::string_view text) {
  out_ += format("<text class=\"{}\" x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", class_of(kind),
                 number(x), number(y), anchor_name(anchor), xml_text(text));
}

void Svg::vertical_text(double x, double y, std::string_view text) {
  out_ += format(
      "<text class=\"label\" x=\"{0}\" y=\"{1}\" text-anchor=\"middle\" transform=\"rotate(-90 {0} "
      "{1})\">{2}</text>\n",
      number(x), number(y), xml_text(text));
}

std::string Svg::finish() {
  return std::move(out_) + "</svg>\n";
}

}  // namespace tandem::tools
