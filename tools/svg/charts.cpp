#include "tools/svg/charts.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "tools/svg/svg.h"

namespace tandem::tools {
namespace {

constexpr double kWidth = 760, kMargin = 24, kLeft = 84, kRight = kWidth - kMargin;
constexpr double kPanelHeight = 220, kLegendRow = 20;

// A scale from 0 to a round number at or above `most`, with a step of 1, 2 or 5 times a power of ten.
struct Scale {
  double step = 1, top = 1;
  explicit Scale(double most) {
    if (!(most > 0) || !std::isfinite(most)) return;
    const double rough = most / 5, power = std::pow(10, std::floor(std::log10(rough)));
    step = 10 * power;
    for (const double factor : {5.0, 2.0, 1.0}) {
      if (factor * power >= rough * 0.999) step = factor * power;
    }
    top = step * std::ceil(most / step * 0.999);
  }
};

std::string tick_text(double value) {
  return std::fabs(value - std::round(value)) < 1e-9 ? format("{:.0f}", value) : format("{:g}", value);
}

// The marks of colours with their names, in rows; returns the y below them.
double draw_legend(Svg& svg, double x, double y, const std::vector<std::string>& names) {
  double at = x;
  for (size_t i = 0; i < names.size(); ++i) {
    const double width = 18 + label_width(names[i]) + 14;
    if (at > x && at + width > kRight) {
      at = x;
      y += kLegendRow;
    }
    svg.bar(at, y - 10, 12, 12, static_cast<int>(i));
    svg.text(at + 18, y, Anchor::start, Svg::Text::label, names[i]);
    at += width;
  }
  return names.empty() ? y : y + kLegendRow;
}

double legend_height(const std::vector<std::string>& names, double x) {
  Svg unused(1, 1, "");
  return draw_legend(unused, x, 0, names);
}

std::vector<std::string> names_of(const ChartPanel& panel) {
  std::vector<std::string> names;
  for (const ChartSeries& series : panel.series) names.push_back(series.name);
  if (names.size() == 1 && names[0].empty()) names.clear();
  return names;
}

// Maps values to pixels.
class PanelAxes {
 public:
  PanelAxes(const ChartPanel& panel, double top) : panel_(panel), top_(top), y_(highest(panel)) {
    for (const ChartSeries& series : panel.series) {
      for (const ChartPoint& p : series.points) xs_.insert(p.x);
    }
  }

  double x(double value) const {
    if (!panel_.categories.empty()) return kLeft + band() * (value + 0.5);
    if (xs_.size() < 2) return (kLeft + kRight) / 2;
    const double low = *xs_.begin(), high = *xs_.rbegin();
    return kLeft + 20 + (kRight - kLeft - 40) * (value - low) / (high - low);
  }
  double y(double value) const { return bottom() - kPanelHeight * value / y_.top; }
  double band() const { return (kRight - kLeft) / static_cast<double>(panel_.categories.size()); }
  double bottom() const { return top_ + kPanelHeight; }

  void draw(Svg& svg) const {
    for (double value = 0; value <= y_.top * 1.001; value += y_.step) {
      svg.line(kLeft, y(value), kRight, y(value), value == 0 ? Svg::Line::axis : Svg::Line::grid);
      svg.text(kLeft - 8, y(value) + 4, Anchor::end, Svg::Text::label, tick_text(value));
    }
    svg.vertical_text(kMargin, top_ + kPanelHeight / 2, panel_.y_label);
    svg.text((kLeft + kRight) / 2, bottom() + 38, Anchor::middle, Svg::Text::label, panel_.x_label);
    if (!panel_.categories.empty()) return draw_categories(svg);
    double used = -1e9;  // labels that would touch are left out
    for (const double value : xs_) {
      svg.line(x(value), bottom(), x(value), bottom() + 5, Svg::Line::axis);
      const std::string text = tick_text(value);
      if (x(value) - label_width(text) / 2 < used) continue;
      svg.text(x(value), bottom() + 20, Anchor::middle, Svg::Text::label, text);
      used = x(value) + label_width(text) / 2 + 6;
    }
  }

 private:
  static double highest(const ChartPanel& panel) {
    double most = 0;
    for (const ChartSeries& series : panel.series) {
      for (const ChartPoint& p : series.points) most = std::max(most, p.y + p.error);
    }
    return most;
  }

  void draw_categories(Svg& svg) const {
    for (size_t i = 0; i < panel_.categories.size(); ++i) {
      std::string name = panel_.categories[i];
      const auto room = static_cast<size_t>(band() / 7);
      if (name.size() > room) name = name.substr(0, std::max<size_t>(room, 2) - 1) + "…";
      svg.text(x(static_cast<double>(i)), bottom() + 20, Anchor::middle, Svg::Text::label, name);
    }
  }

  const ChartPanel& panel_;
  double top_;
  Scale y_;
  std::set<double> xs_;
};

void draw_curve(Svg& svg, const PanelAxes& axes, ChartSeries series, int colour) {
  std::sort(series.points.begin(), series.points.end(),
            [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  std::string line;
  for (const ChartPoint& p : series.points)
    line += format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", axes.x(p.x), axes.y(p.y));
  if (series.points.size() > 1) svg.curve(line, colour);
  for (const ChartPoint& p : series.points) {
    if (p.error > 0)
      svg.error_bar(axes.x(p.x), axes.y(std::max(0.0, p.y - p.error)), axes.y(p.y + p.error), colour);
    svg.dot(axes.x(p.x), axes.y(p.y), colour, p.tip);
  }
}

// The bars of one series: beside those of the other series in each category.
void draw_columns(Svg& svg, const PanelAxes& axes, const ChartSeries& series, size_t index, size_t n_series) {
  const double group = axes.band() * 0.8, width = std::min(60.0, group / static_cast<double>(n_series));
  for (const ChartPoint& p : series.points) {
    const double left =
        axes.x(p.x) + width * (static_cast<double>(index) - static_cast<double>(n_series) / 2);
    const double top = axes.y(p.y);
    svg.bar(left + 1, top, width - 2, axes.bottom() - top, static_cast<int>(index), p.tip);
    if (p.error > 0) {
      svg.error_bar(left + width / 2, axes.y(std::max(0.0, p.y - p.error)), axes.y(p.y + p.error), 5);
    }
  }
}

constexpr double kBarHeight = 30, kBarRow = 50;

}  // namespace

std::string draw_panels(const std::string& title, const std::string& note,
                        const std::vector<ChartPanel>& panels) {
  double height = 64;
  for (const ChartPanel& panel : panels)
    height += 34 + legend_height(names_of(panel), kLeft) + kPanelHeight + 60;
  Svg svg(kWidth, height, title);
  svg.text(kMargin, 32, Anchor::start, Svg::Text::title, title);
  svg.text(kMargin, 52, Anchor::start, Svg::Text::note, note);
  double y = 64;
  for (const ChartPanel& panel : panels) {
    svg.text(kLeft, y + 20, Anchor::start, Svg::Text::title, panel.title);
    const double top = draw_legend(svg, kLeft, y + 44, names_of(panel)) - 10;
    const PanelAxes axes(panel, top);
    axes.draw(svg);
    for (size_t i = 0; i < panel.series.size(); ++i) {
      if (panel.categories.empty()) {
        draw_curve(svg, axes, panel.series[i], static_cast<int>(i));
      } else {
        draw_columns(svg, axes, panel.series[i], i, panel.series.size());
      }
    }
    y = axes.bottom() + 60;
  }
  return svg.finish();
}

std::string draw_stacked_bars(const StackedBars& chart) {
  double most = 0, name_width = 0, total_width = 0;
  for (const StackedBar& bar : chart.bars) {
    double sum = 0;
    for (const double part : bar.parts) sum += part;
    most = std::max({most, sum, bar.limit.value_or(0)});
    name_width = std::max(name_width, label_width(bar.name));
    total_width = std::max(total_width, label_width(bar.total));
  }
  // A memory much larger than what is in it is cut, so that the parts stay visible.
  const double longest = most * 3;
  for (const StackedBar& bar : chart.bars) most = std::max(most, std::min(bar.size, longest));
  const Scale scale(most);
  const double left = kMargin + name_width + 12, right = kRight - total_width - 12;
  const auto x = [&](double value) { return left + (right - left) * std::min(value / scale.top, 1.0); };

  const double first = 44 + 20 * static_cast<double>(chart.notes.size()) + 14;
  const double bars_top = first + legend_height(chart.legend, kMargin) + 4;
  const double bars_bottom = bars_top + kBarRow * static_cast<double>(chart.bars.size());
  Svg svg(kWidth, bars_bottom + 52, chart.title);
  svg.text(kMargin, 32, Anchor::start, Svg::Text::title, chart.title);
  for (size_t i = 0; i < chart.notes.size(); ++i)
    svg.text(kMargin, 54 + 20 * static_cast<double>(i), Anchor::start, Svg::Text::note, chart.notes[i]);
  draw_legend(svg, kMargin, first + 8, chart.legend);
  for (double value = 0; value <= scale.top * 1.001; value += scale.step) {
    svg.line(x(value), bars_top, x(value), bars_bottom, value == 0 ? Svg::Line::axis : Svg::Line::grid);
    svg.text(x(value), bars_bottom + 18, Anchor::middle, Svg::Text::label, tick_text(value));
  }
  svg.text((left + right) / 2, bars_bottom + 38, Anchor::middle, Svg::Text::label, chart.axis);
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    const StackedBar& bar = chart.bars[i];
    const double y = bars_top + kBarRow * static_cast<double>(i) + (kBarRow - kBarHeight) / 2;
    svg.text(left - 8, y + kBarHeight / 2 + 4, Anchor::end, Svg::Text::label, bar.name);
    if (bar.size > 0)
      svg.outline(left, y, x(bar.size) - left, kBarHeight, format("{} in all: {:.2f}", bar.name, bar.size));
    double sum = 0;
    for (size_t p = 0; p < bar.parts.size(); ++p) {
      const double from = x(sum), to = x(sum += bar.parts[p]);
      if (bar.parts[p] > 0) svg.bar(from, y, to - from, kBarHeight, static_cast<int>(p), bar.tips[p]);
    }
    if (bar.limit) svg.line(x(*bar.limit), y - 5, x(*bar.limit), y + kBarHeight + 5, Svg::Line::limit);
    svg.text(right + 10, y + kBarHeight / 2 + 4, Anchor::start, Svg::Text::label, bar.total);
  }
  return svg.finish();
}

}  // namespace tandem::tools
