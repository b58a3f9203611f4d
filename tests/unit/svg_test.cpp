// Pictures: the SVG writer, the two charts, and the pictures of bench and plan against their numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"
#include "tools/bench/report_svg.h"
#include "tools/svg/charts.h"
#include "tools/svg/svg.h"

namespace tandem::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// The attributes of all elements with this name and a class that matches, in order.
std::vector<std::map<std::string, std::string>> elements(const std::string& svg, const std::string& name,
                                                         const std::string& style) {
  std::vector<std::map<std::string, std::string>> list;
  const std::regex element("<" + name + "( [^>]*?)/?>(<title>([^<]*)</title>)?"),
      attribute(" ([a-z0-9-]+)=\"([^\"]*)\"");
  for (std::sregex_iterator e(svg.begin(), svg.end(), element), end; e != end; ++e) {
    std::map<std::string, std::string> found{{"tip", (*e)[3].str()}};
    const std::string text = (*e)[1].str();
    for (std::sregex_iterator a(text.begin(), text.end(), attribute); a != end; ++a) found[(*a)[1]] = (*a)[2];
    if (std::regex_match(found["class"], std::regex(style))) list.push_back(found);
  }
  return list;
}

double number(const std::map<std::string, std::string>& element, const char* name) {
  return std::stod(element.at(name));
}

// What Python's parser says of it: empty if it is well-formed, or there is no Python.
std::string xml_error(const std::string& svg) {
  const test::TempDir directory;
  const std::string path = directory.path("a.svg"), out = directory.path("out");
  std::ofstream(path) << svg;
  const std::string command =
      "if command -v python3 >/dev/null; then python3 -c 'import sys, xml.dom.minidom as x; "
      "x.parse(sys.argv[1])' " +
      path + " >" + out + " 2>&1; else : >" + out + "; fi";
  if (std::system(command.c_str()) == 0) return "";
  std::ifstream file(out);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Svg, EscapesText) {
  EXPECT_EQ(xml_text("a<b>&\"c\"é"), "a&lt;b&gt;&amp;&quot;c&quot;é");
  EXPECT_EQ(xml_text(std::string("\x01"
                                 "a\xff"
                                 "b\0c",
                                 6)),
            "\xef\xbf\xbd"
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd"
            "c");
  Svg svg(10, 10, "</svg>&\x1b");
  svg.text(0, 0, Anchor::start, Svg::Text::label, "<script>\"'\xff");
  svg.bar(0, 0, 1, 1, 0, "]]>&amp;");
  const std::string text = svg.finish();
  EXPECT_THAT(text, Not(HasSubstr("<script>")));
  EXPECT_EQ(xml_error(text), "");
}

TEST(Svg, HasColoursForLightAndDarkPages) {
  const std::string text = Svg(10, 10, "").finish();
  const size_t dark = text.find("prefers-color-scheme:dark");
  ASSERT_NE(dark, std::string::npos);
  for (int i = 0; i < Svg::kColours; ++i) {
    const std::string colour = format(".c{}{{fill:", i);
    ASSERT_NE(text.find(colour), std::string::npos);
    EXPECT_GT(text.find(colour, dark), dark);
    EXPECT_NE(text.find(colour, dark), std::string::npos);
  }
}

TEST(StackedBars, PartsFollowEachOther) {
  StackedBars chart{"memory", {"a note"}, {"weights", "cache"}, "GiB", {}};
  chart.bars.push_back({"GPU", "24.00", {10, 14}, {"10", "14"}, 24, 23.0});
  chart.bars.push_back({"CPU", "2.00", {2, 0}, {"2", "0"}, 64, std::nullopt});
  const std::string svg = draw_stacked_bars(chart);
  EXPECT_EQ(xml_error(svg), "");
  std::vector<std::map<std::string, std::string>> bars;
  for (const auto& bar : elements(svg, "rect", "c[0-9]")) {
    if (!bar.at("tip").empty()) bars.push_back(bar);
  }
  ASSERT_EQ(bars.size(), 3u);  // nothing of a part of 0
  EXPECT_NEAR(number(bars[0], "x") + number(bars[0], "width"), number(bars[1], "x"), 0.15);
  EXPECT_EQ(bars[0].at("y"), bars[1].at("y"));
  EXPECT_GE(number(bars[2], "y"), number(bars[0], "y") + number(bars[0], "height"));
  EXPECT_NEAR(number(bars[1], "width") / number(bars[0], "width"), 1.4, 0.01);
  EXPECT_NEAR(number(bars[0], "width") / number(bars[2], "width"), 5, 0.05);
  EXPECT_EQ(elements(svg, "line", "limit").size(), 1u);
  for (const char* text : {">weights<", ">cache<", ">24.00<", ">GiB<", ">a note<"})
    EXPECT_THAT(svg, HasSubstr(text));
}

BenchResult result(int32_t n_prompt, int32_t n_gen, int32_t n_depth, std::vector<uint64_t> samples_ns) {
  BenchResult r;
  r.test.n_prompt = n_prompt;
  r.test.n_gen = n_gen;
  r.test.n_depth = n_depth;
  r.model_type = "llama 1.1B <Q4_0>";
  r.samples_ns = std::move(samples_ns);
  return r;
}

std::string picture_of(const std::vector<BenchResult>& results) {
  const test::TempDir directory;
  const std::string path = directory.path("a.svg");
  FILE* file = fopen(path.c_str(), "w");
  {
    Output out(fileno(file));
    BenchMachine machine;
    machine.cpu = "A CPU & its \"cores\"";
    const auto report = make_svg_report(out, machine);
    report->begin();
    for (const BenchResult& r : results) report->row(r);
    report->end();
  }
  fclose(file);
  std::ifstream read(path);
  return {std::istreambuf_iterator<char>(read), {}};
}

TEST(BenchPicture, IsSpeedOverDepth) {
  std::vector<BenchResult> results;
  for (const int32_t depth : {0, 512, 1024}) {
    results.push_back(result(512, 0, depth, {1000000000, 1100000000}));
    results.push_back(result(0, 128, depth, {static_cast<uint64_t>(1e9 + depth * 1e6)}));
  }
  const std::string svg = picture_of(results);
  EXPECT_EQ(xml_error(svg), "");
  const auto dots = elements(svg, "circle", "c0");
  ASSERT_EQ(dots.size(), 6u);  // the prompts' panel first
  for (size_t i = 0; i < 6; ++i) {
    const BenchResult& r = results[i < 3 ? 2 * i : 2 * (i - 3) + 1];
    const std::vector<double> samples = r.samples_ts();
    EXPECT_EQ(dots[i].at("tip"), format("{}: {:.2f} ± {:.2f} t/s", test_name(r.test), mean(samples),
                                        standard_deviation(samples)));
  }
  EXPECT_EQ(dots[0].at("cx"), dots[3].at("cx"));
  EXPECT_NEAR(number(dots[1], "cx") - number(dots[0], "cx"), number(dots[2], "cx") - number(dots[1], "cx"),
              0.15);
  EXPECT_GT(number(dots[4], "cy"), number(dots[3], "cy"));      // slower is lower
  EXPECT_EQ(elements(svg, "line", "error s0").size(), 3u * 3);  // one sample has no deviation
  EXPECT_EQ(elements(svg, "polyline", "curve s0").size(), 2u);
  for (const char* text : {"tokens in the cache before the test", "Prompt (pp512)", "Generation (tg128)",
                           "llama 1.1B &lt;Q4_0&gt;", "A CPU &amp; its"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
}

TEST(BenchPicture, HasASeriesForEachOtherParameter) {
  std::vector<BenchResult> results;
  for (const int32_t threads : {1, 2}) {
    for (const int32_t depth : {0, 64}) {
      results.push_back(result(0, 16, depth, {1000000000}));
      results.back().test.n_threads = threads;
    }
  }
  const std::string svg = picture_of(results);
  EXPECT_THAT(svg, HasSubstr(">threads 1<"));
  EXPECT_THAT(svg, HasSubstr(">threads 2<"));
  EXPECT_EQ(elements(svg, "polyline", "curve s[01]").size(), 2u);
}

TEST(BenchPicture, TypesAreColumnsThatDoNotOverlap) {
  std::vector<BenchResult> results;
  for (const char* model : {"llama Q4_0", "llama Q8_0", "llama F16"}) {
    for (const int32_t n : {16, 32, 64}) {
      results.push_back(result(0, n, 0, {1000000000, 1200000000}));
      results.back().model_type = model;
    }
  }
  const std::string svg = picture_of(results);
  EXPECT_EQ(xml_error(svg), "");
  std::vector<std::pair<double, double>> spans;
  for (const auto& bar : elements(svg, "rect", "c[0-9]")) {
    if (!bar.at("tip").empty()) spans.emplace_back(number(bar, "x"), number(bar, "x") + number(bar, "width"));
  }
  ASSERT_EQ(spans.size(), 9u);
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) EXPECT_GE(spans[i].first, spans[i - 1].second);
  for (const char* text : {">llama Q4_0<", ">llama Q8_0<", ">llama F16<", ">tg16<", ">tg64<"})
    EXPECT_THAT(svg, HasSubstr(text));
}

TEST(BenchPicture, OfNothingIsNothing) {
  EXPECT_EQ(picture_of({}), "");
}

TEST(PlanPicture, HasTheNumbersOfTheJson) {
  TANDEM_NEED_BINARY();
  const test::TempDir directory;
  const std::string model = directory.path("a&b.gguf");
  test::tiny_llama().write(model);
  const auto plan = [&](const char* format) {
    return test::shell("XDG_CACHE_HOME=" + directory.path("cache"),
                       "plan '" + model + "' -c 64 --gpu rtx4090 --max-ram 1GiB --log-disable -o " + format);
  };
  const auto json = nlohmann::json::parse(plan("json").out);
  const test::Outcome picture = plan("svg");
  EXPECT_EQ(picture.exit_code, 0);
  EXPECT_EQ(xml_error(picture.out), "");
  const auto bars = elements(picture.out, "rect", "c[0-9]");
  std::vector<std::string> tips;
  for (const auto& bar : bars) tips.push_back(bar.at("tip"));
  size_t n_parts = 0;
  for (const auto& tier : json["tiers"]) {
    for (const auto& [key, name] : std::map<std::string, std::string>{{"weights", "weights"},
                                                                      {"kv", "KV cache"},
                                                                      {"activations", "activations"},
                                                                      {"staging", "staging"},
                                                                      {"scratch", "scratch"},
                                                                      {"overhead", "driver"}}) {
      const double mib = tier[key].get<double>() / 0x1p20;
      const std::string tip = format("{}: {} {:.2f} MiB", tier["name"].get<std::string>(), name, mib);
      EXPECT_EQ(std::count(tips.begin(), tips.end(), tip), mib > 0 ? 1 : 0) << tip;
      n_parts += mib > 0;
    }
  }
  EXPECT_GT(n_parts, 4u);
  EXPECT_EQ(static_cast<size_t>(
                std::count_if(tips.begin(), tips.end(), [](const std::string& t) { return !t.empty(); })),
            n_parts);
}

}  // namespace
}  // namespace tandem::tools
