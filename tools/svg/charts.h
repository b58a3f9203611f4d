// The two kinds of charts that reports are drawn as: measured values over a parameter, and stacked bars.
//
// Pure functions; nothing is thrown.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tandem::tools {

struct ChartPoint {
  double x = 0;             // a number, or the index of a category
  double y = 0, error = 0;  // the error bar goes from y - error to y + error
  std::string tip;          // what the pointer shows
};

struct ChartSeries {
  std::string name;  // in the legend; empty: none
  std::vector<ChartPoint> points;
};

// Values over numbers are curves; over categories, bars. The y axis begins at 0.
struct ChartPanel {
  std::string title, x_label, y_label;
  std::vector<std::string> categories;  // names of x = 0, 1, ...; empty: x is a number
  std::vector<ChartSeries> series;
};

// Panels from top to bottom, each with its own scale.
std::string draw_panels(const std::string& title, const std::string& note,
                        const std::vector<ChartPanel>& panels);

// One horizontal bar of parts.
struct StackedBar {
  std::string name, total;    // before and after the bar
  std::vector<double> parts;  // in the order of the legend
  std::vector<std::string> tips;
  double size = 0;              // of the memory, shown as an outline; 0: not known
  std::optional<double> limit;  // shown as a line
};

struct StackedBars {
  std::string title;
  std::vector<std::string> notes;   // lines below the title
  std::vector<std::string> legend;  // names of the parts
  std::string axis;                 // what the scale counts: "GiB"
  std::vector<StackedBar> bars;
};

std::string draw_stacked_bars(const StackedBars& chart);

}  // namespace tandem::tools
