// The template language, against the output of Python's Jinja2 3.1 for the same templates
// (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loopcontrols, and transformers' tojson).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/chat_template.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

const Json& variables() {
  static const Json all = Json::parse(R"({
    "s": "Hello World", "u": "Grüße 日本", "n": 5, "f": 2.5, "l": [3, 1, 2], "t": true, "no": null,
    "d": {"b": 1, "a": 2, "items": {"x": [1, 2]}}, "es": "", "lines": "a\nb\n\n c", "html": "<a href='x'>\"&</a>",
    "users": [{"name": "bob", "age": 30}, {"name": "Al", "age": 5}, {"name": "cy", "age": 30}]})");
  return all;
}

std::string render(const std::string& text, const TemplateLimits& limits = {}) {
  RenderOptions options;
  options.extra = variables();
  options.limits = limits;
  std::tm now{};
  now.tm_year = 126;
  now.tm_mday = 15;
  now.tm_hour = 12;
  now.tm_wday = 4;
  now.tm_yday = 14;
  options.now = now;
  return ChatTemplate(text, "t").render(Json::array(), options);
}

// The message of the Error thrown by parsing or rendering.
std::string render_error(const std::string& text, const TemplateLimits& limits = {}) {
  try {
    return "no error, but: " + render(text, limits);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_file);
    return e.what();
  }
}

struct TemplateCase {
  const char *source, *expected;
};

class JinjaExpression : public testing::TestWithParam<TemplateCase> {};

TEST_P(JinjaExpression, PrintsWhatPythonDoes) {
  EXPECT_EQ(render(std::string("{{ ") + GetParam().source + " }}"), GetParam().expected) << GetParam().source;
}

constexpr TemplateCase kAsking[] = {
    {"'Hello World'.istitle()", "True"},
    {"'Hello world'.istitle()", "False"},
    {"'1A'.istitle()", "True"},
    {"''.istitle()", "False"},
    {"'aA'.istitle()", "False"},
    {"'abc'.isascii()", "True"},
    {"u.isascii()", "False"},
    {"''.isascii()", "True"},
    {"u.isprintable()", "True"},
    {"lines.isprintable()", "False"},
    {"''.isprintable()", "True"},
};
INSTANTIATE_TEST_SUITE_P(Asking, JinjaExpression, testing::ValuesIn(kAsking));

constexpr TemplateCase kOperators[] = {
    {"7//2", "3"},
    {"-7//2", "-4"},
    {"-7%3", "2"},
    {"7%-3", "-2"},
    {"-7.5//2", "-4.0"},
    {"-7.5%2", "0.5"},
    {"6/2", "3.0"},
    {"2**10", "1024"},
    {"2**-1", "0.5"},
    {"-2**2", "4"},
    {"2**3**2", "64"},
    {"1/3", "0.3333333333333333"},
    {"0.1+0.2", "0.30000000000000004"},
    {"1e16", "1e+16"},
    {"1e15", "1000000000000000.0"},
    {"0.0001", "0.0001"},
    {"1e-5", "1e-05"},
    {"1_000", "1000"},
    {"0x1F", "31"},
    {"'ab'*3", "ababab"},
    {"[1,2]*2", "[1, 2, 1, 2]"},
    {"'a'~1~none~true~1.0", "a1NoneTrue1.0"},
    {"(1 ~ 2) * 2", "1212"},
    {"1 < 3 < 2", "False"},
    {"1 == 1.0", "True"},
    {"(1 if no)", ""},
    {"1 if no else 2", "2"},
    {"t and 5", "5"},
    {"no or 'x'", "x"},
    {"not 1 == 2", "True"},
    {"1 in l", "True"},
    {"'ell' in s", "True"},
    {"'b' not in d", "False"},
    {"1 in foo", "False"},
    {"-3|abs", "3"},
    {"n is odd ~ 'x'", "Truex"},
    {"s|length - 1", "10"},
    {"u|length", "8"},
    {"u[-2:]", "日本"},
    {"u[::-1]", "本日 eßürG"},
    {"s[10:0:-3]", "dooe"},
    {"l[::-1]", "[2, 1, 3]"},
    {"l[9]", ""},
    {"d.zz", ""},
    {"foo", ""},
    {"foo|default('x')", "x"},
    {"es|default('x', true)", "x"},
    {"no.foo", ""},
    {"l.append is defined", "False"},
    {"d['items'].x[0]", "1"},
    {"d.items()|list", "[('b', 1), ('a', 2), ('items', {'x': [1, 2]})]"},
    {"[1,'a',none,true,1.5,\"it's\",'\\n']", "[1, 'a', None, True, 1.5, \"it's\", '\\n']"},
    {"(1,)", "(1,)"},
    {"{}", "{}"},
    {"'\\x41\\u00e9\\q'", "Aé\\q"},
    {"'%05d|%-4d|%.2f|%s' % (42, 7, 3.14159, 'q')", "00042|7   |3.14|q"},
    {"'{:>4}|{a[x]!r}|{:,}'.format('b', 1234567, a={'x': 'y'})", "   b|'y'|1,234,567"},
};
INSTANTIATE_TEST_SUITE_P(Operators, JinjaExpression, testing::ValuesIn(kOperators));

constexpr TemplateCase kMethods[] = {
    {"' a b '.strip() ~ '|'", "a b|"},
    {"'xxaxx'.lstrip('x')", "axx"},
    {"'xyayx'.rstrip('yx')", "xya"},
    {"'a,b,,c'.split(',')", "['a', 'b', '', 'c']"},
    {"'a,b,,c'.rsplit(',', 1)", "['a,b,', 'c']"},
    {"'  a b  c '.split()", "['a', 'b', 'c']"},
    {"'  a b  c '.split(none, 1)", "['a', 'b  c ']"},
    {"'  a b  c '.rsplit(none, 1)", "['  a b', 'c']"},
    {"s.startswith(('x', 'He'))", "True"},
    {"s.endswith('d')", "True"},
    {"'aXbX'.replace('X', '-', 1)", "a-bX"},
    {"'abc'.replace('', '-')", "-a-b-c-"},
    {"s.find('o')", "4"},
    {"u.find('日')", "6"},
    {"s.rfind('o')", "7"},
    {"s.count('l')", "3"},
    {"'-'.join(['a', 'b'])", "a-b"},
    {"lines.splitlines()", "['a', 'b', '', ' c']"},
    {"'foobar'.removeprefix('foo')", "bar"},
    {"\"it's HERE\".title()", "It'S Here"},
    {"u.upper()", "GRÜSSE 日本"},
    {"'hELLO'.capitalize()", "Hello"},
    {"'a=b=c'.partition('=')", "('a', '=', 'b=c')"},
    {"'-5'.zfill(4)", "-005"},
    {"'abc'.center(6)", " abc  "},
    {"'12'.isdigit()", "True"},
    {"d.get('zz', 7)", "7"},
    {"d.keys()|list", "['b', 'a', 'items']"},
    {"l.index(1)", "1"},
};
INSTANTIATE_TEST_SUITE_P(Methods, JinjaExpression, testing::ValuesIn(kMethods));

constexpr TemplateCase kFilters[] = {
    {"l|sort", "[1, 2, 3]"},
    {"users|sort(attribute='age')|map(attribute='name')|join(',')", "Al,bob,cy"},
    {"['b','A','c']|sort", "['A', 'b', 'c']"},
    {"{'b':1,'a':2}|dictsort", "[('a', 2), ('b', 1)]"},
    {"users|map(attribute='zz', default='q')|list", "['q', 'q', 'q']"},
    {"['a','b']|map('upper')|join('-')", "A-B"},
    {"users|selectattr('age', 'gt', 10)|map(attribute='name')|list", "['bob', 'cy']"},
    {"users|rejectattr('age', 'equalto', 5)|list|length", "2"},
    {"[0,1,'',none]|select|list", "[1]"},
    {"[1,2,3]|reject('odd')|list", "[2]"},
    {"l|first ~ l|last", "32"},
    {"l|sum", "6"},
    {"users|sum(attribute='age')", "65"},
    {"l|min ~ l|max", "13"},
    {"l|reverse|list", "[2, 1, 3]"},
    {"s|reverse", "dlroW olleH"},
    {"[1,1,'a','A']|unique|list", "[1, 'a']"},
    {"[1,2,3]|batch(2, 0)|list", "[[1, 2], [3, 0]]"},
    {"[1,2,3]|slice(2)|list", "[[1, 2], [3]]"},
    {"users|groupby('age')|map(attribute='grouper')|list", "[5, 30]"},
    {"lines|indent(2, true)", "  a\n  b\n\n   c"},
    {"html|e", "&lt;a href=&#39;x&#39;&gt;&#34;&amp;&lt;/a&gt;"},
    {"'42.7'|int", "42"},
    {"'x'|int(5)", "5"},
    {"'1.5'|float", "1.5"},
    {"2.5|round", "2.0"},
    {"2.567|round(1, 'ceil')", "2.6"},
    {"'hello big world'|wordcount", "3"},
    {"'hello big world foo'|truncate(9)", "hello..."},
    {"'heLLo-wORLD'|title", "Hello-World"},
    {"d|tojson", R"({"b": 1, "a": 2, "items": {"x": [1, 2]}})"},
    {"{'a':[1,{}]}|tojson(indent=2)", "{\n  \"a\": [\n    1,\n    {}\n  ]\n}"},
    {"u|tojson", "\"Grüße 日本\""},
    {"'é'|tojson(ensure_ascii=true)", "\"\\u00e9\""},
    {"[1.0,none,true]|tojson(separators=(',',':'))", "[1.0,null,true]"},
    {"d|items|first", "('b', 1)"},
    {"strftime_now('%d %b %Y, %A %-d %H:%M')", "15 Jan 2026, Thursday 15 12:00"},
    {"range(5, 0, -2)|list", "[5, 3, 1]"},
    {"dict(a=1, **{'b': 2})", "{'a': 1, 'b': 2}"},
    {"namespace(a=1).a", "1"},
};
INSTANTIATE_TEST_SUITE_P(Filters, JinjaExpression, testing::ValuesIn(kFilters));

constexpr TemplateCase kTests[] = {
    {"foo is defined", "False"}, {"no is none", "True"},         {"s is string", "True"},
    {"t is number", "True"},     {"t is integer", "False"},      {"d is mapping", "True"},
    {"l is mapping", "False"},   {"s is iterable", "True"},      {"n is iterable", "False"},
    {"d is sequence", "True"},   {"n is divisibleby 5", "True"}, {"n is not in [5]", "False"},
    {"1 is true", "False"},      {"range is callable", "True"},  {"'abc' is lower", "True"},
    {"'odd' is test", "True"},   {"n is ge 5", "True"},
};
INSTANTIATE_TEST_SUITE_P(Tests, JinjaExpression, testing::ValuesIn(kTests));

TEST(JinjaStatements, Loops) {
  EXPECT_EQ(
      render("{% for i in l %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.cycle('a', 'b') }}"
             "{{ loop.previtem }}{{ loop.nextitem }}|{% endfor %}"),
      "12Truea1|21Falseb32|30Falsea1|");
  EXPECT_EQ(render("{% for i in l if i > 1 %}{{ i }}:{{ loop.length }},{% else %}none{% endfor %}"),
            "3:2,2:2,");
  EXPECT_EQ(render("{% for i in l if i > 9 %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(render("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break "
                   "%}{% endif %}"
                   "{{ i }}{% endfor %}"),
            "0134");
  EXPECT_EQ(render("{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{% endfor %}{{ x }}"), "1111");
  EXPECT_EQ(
      render("{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}"),
      "7");
}

TEST(JinjaStatements, Macros) {
  EXPECT_EQ(
      render("{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(b=5, a=6) }}"),
      "121 656");
  EXPECT_EQ(render("{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, z=3) }}"), "(1,){'z': 3}");
  EXPECT_EQ(render("{% macro m() %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) m() "
                   "%}<{{ x }}>{% endcall %}"),
            "<3><1><2>");
  EXPECT_EQ(render("{% macro r(x) %}{{ x }}{% if x %}{{ r(x - 1) }}{% endif %}{% endmacro %}{{ r(3) }}"),
            "3210");
}

TEST(JinjaStatements, OtherTags) {
  EXPECT_EQ(render("{% set a, b = 1, 2 %}{% set x | upper %}q{{ n }}{% endset %}{{ a }}{{ b }}{{ x }}"),
            "12Q5");
  EXPECT_EQ(render("{% filter upper %}a{{ s }}{% endfilter %}{% with q = 1 %}{{ q }}{% endwith %}{{ q }}"),
            "AHELLO WORLD1");
  EXPECT_EQ(render("{% generation %}a{{ n }}{% endgeneration %}{% raw %}{{ x }}{% endraw %}{# c #}"),
            "a5{{ x }}");
}

TEST(JinjaStatements, WhiteSpace) {
  EXPECT_EQ(render("  {% if t %}\n  a\n  {% endif %}\nb\n"), "  a\nb");
  EXPECT_EQ(render("  {%+ if t %}\n  a\n  {%- endif %}\nb\n\n"), "    ab\n");
  EXPECT_EQ(render("x  {{- n -}}  y\n  {# c #}\n z"), "x5y\n z");
  EXPECT_EQ(render("x {% if t +%}\n{% endif %}y\r\n"), "x \ny");
}

TEST(JinjaErrors, SyntaxErrorsNameTheLine) {
  EXPECT_EQ(render_error("a\n{% if %}"), "t, line 2: unexpected '%}'");
  EXPECT_EQ(render_error("a\n\n{{ (1 }}"), "t, line 3: unexpected '}', expected ')'");
  for (const char* bad : {"{% if t %}", "{{ ", "{{ 1 + }}", "{% endif %}", "{{ 'abc }}", "{# ab", "{{ a b }}",
                          "{% foo %}", "{% for %}", "{% set 5 = 1 %}", "{{ n is odd is even }}",
                          "{% break %}", "{% include 'x' %}", "{{ $ }}"}) {
    EXPECT_THAT(render_error(bad), testing::StartsWith("t, line 1: ")) << bad;
  }
}

TEST(JinjaErrors, RejectsWhatPythonRejects) {
  EXPECT_EQ(render_error("\n{{ raise_exception('no\nway') }}"), "t, line 2: no\\x0away");
  EXPECT_EQ(render_error("{% for x in no %}{% endfor %}"), "t, line 1: 'NoneType' object is not iterable");
  for (const char* bad : {"foo.bar",     "d.zz.yy",       "foo + 1",
                          "foo()",       "1/0",           "'a' + 1",
                          "none < 1",    "5|length",      "n|nofilter",
                          "n is notest", "l.append(1)",   "d.update({})",
                          "s.upper(1)",  "{[1]: 2}",      "'x'|tojson(zz=1)",
                          "foo|tojson",  "range(200000)", "9223372036854775807 + 1",
                          "'%d' % 'x'",  "'{'.format(1)", "l|map('string')|length"}) {
    EXPECT_THAT(render_error(std::string("{{ ") + bad + " }}"), testing::StartsWith("t, line 1: ")) << bad;
  }
}

TEST(JinjaLimits, EveryRunEnds) {
  const TemplateLimits few{
      .n_operations = 100000, .n_bytes = 1 << 20, .n_output_bytes = 1000, .n_depth = 300};
  EXPECT_THAT(render_error("{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
                           {.n_operations = 100000}),
              testing::HasSubstr("100000 operations"));
  EXPECT_THAT(render_error("{% macro r(x) %}{{ r(x) }}{% endmacro %}{{ r(0) }}", few),
              testing::HasSubstr("recursion"));
  EXPECT_THAT(render_error("{{ 'a' * 1001 }}", few), testing::HasSubstr("output"));
  EXPECT_THAT(
      render_error(
          "{% set n = namespace(x='a') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", few),
      testing::HasSubstr("bytes of values"));
  EXPECT_THAT(
      render_error("{% set n = namespace(x=1) %}{% for a in range(999) %}{% set n.x = [n.x] %}{% endfor %}"),
      testing::HasSubstr("nest"));
  EXPECT_THAT(render_error("{% set n = namespace(x=1) %}{% for a in range(90) %}{% set n.x = [n.x, n.x] %}{% "
                           "endfor %}{{ n.x }}"),
              testing::HasSubstr("4194304 elements"));
  EXPECT_THAT(render_error("{{ 'a' * 9999999999 }}"), testing::HasSubstr("bytes"));
  // A walk over a long text is as many operations.
  const std::string long_texts = "{% set a = 'a' * 5000000 %}{% set b = 'a' * 2500000 + 'b' %}";
  const std::string often = "{% for i in range(100000) %}";
  const TemplateLimits some{.n_operations = 5'000'000};
  for (const std::string work :
       {"{% if b in a %}{% endif %}", "{% if a|length %}{% endif %}", "{% if a.find(b) %}{% endif %}",
        "{% if a.rfind('b' + b) %}{% endif %}", "{% if a.count(b) %}{% endif %}",
        "{% if a[-2:] %}{% endif %}", "{% if a.rsplit(b)|length %}{% endif %}"}) {
    EXPECT_THAT(render_error(long_texts + often + work + "{% endfor %}", some),
                testing::HasSubstr("operations"))
        << work;
  }
  EXPECT_THAT(render_error(long_texts + often + "{% if a|upper %}{% endif %}{% endfor %}", some),
              testing::AnyOf(testing::HasSubstr("operations"), testing::HasSubstr("bytes of values")));
  EXPECT_THAT(render_error("{{ " + std::string(5000, '(')), testing::HasSubstr("t, line 1"));
  EXPECT_THAT(render_error("{{ 1" + std::string(50000, '[') + " }}"), testing::HasSubstr("t, line 1"));
  std::string blocks, sums = "{{ 1";
  for (int i = 0; i < 5000; ++i) blocks += "{% if t %}";
  for (int i = 0; i < 5000; ++i) sums += " + 1";
  EXPECT_THAT(render_error(blocks), testing::HasSubstr("nested too deeply"));
  EXPECT_THAT(render_error(sums + " }}"), testing::HasSubstr("too many terms"));
}

TEST(JinjaLimits, AValueMayContainItself) {
  EXPECT_EQ(
      render("{% set n = namespace() %}{% set n.x = n %}{% set n.y = [n, cycler(n)] %}{{ n.x.y|length }}"),
      "2");
}

// --- Bytes that came from the conversation ---

std::string marked(const std::string& text, const Json& messages) {
  const MarkedPrompt prompt = ChatTemplate(text).render_marked(messages);
  std::string shown = prompt.text;
  for (auto span = prompt.user.rbegin(); span != prompt.user.rend(); ++span) {
    shown.insert(span->end, "]");
    shown.insert(span->begin, "[");
  }
  return shown;
}

TEST(ChatTemplateMarks, FollowTheTextThroughEveryOperation) {
  const Json messages = {{{"role", "user"}, {"content", " a<b>\n "}}};
  const std::string body = "{% set c = messages[0].content %}";
  EXPECT_EQ(marked(body + "<{{ messages[0].role }}>{{ c }}</s>", messages), "<user>[ a<b>\n ]</s>");
  EXPECT_EQ(marked(body + "{{ '<s>' + c|trim + '</s>' }}", messages), "<s>[a<b>]</s>");
  EXPECT_EQ(marked(body + "{{ ('x' ~ c ~ 'y')[2:4]|upper }}", messages), "[A<]");
  EXPECT_EQ(marked(body + "{{ c|tojson }}", messages), "\"[ a<b>\\n ]\"");
  EXPECT_EQ(marked(body + "{{ messages[0]|tojson }}", messages),
            R"({"[role]": "user", "[content]": "[ a<b>\n ]"})");
  EXPECT_EQ(marked(body + "{{ c.split('<')|join('|') }}", messages), "[ a]|[b>\n ]");
  EXPECT_EQ(marked(body + "{{ c.replace('<b>', '<s>') }}", messages), "[ a]<s>[\n ]");
  EXPECT_EQ(marked(body + "{{ '%s.' % c.strip() }}{{ '{}!'.format(c[1]) }}", messages), "[a<b>].[a]!");
  EXPECT_EQ(marked(body + "{{ [c] }}{% set x %}({{ c|trim }}){% endset %}{{ x }}", messages),
            "['[ a<b>\\n ]']([a<b>])");
  EXPECT_EQ(marked(body + "{{ c|indent(1)|replace('\n', '') }}", messages), "[ a<b>] [ ]");
}

// Every character of a message stays marked, whatever a template does with it.
TEST(ChatTemplateMarks, MessageTextStaysMarked) {
  const std::string snowman = "\u2603";
  const Json messages = {{{"role", "user"}, {"content", snowman + "a, " + snowman + "B\n" + snowman}}};
  for (const char* expression : {"c",
                                 "c|upper",
                                 "c|title",
                                 "c|capitalize",
                                 "c|trim",
                                 "c|e",
                                 "c|tojson",
                                 "c|tojson(indent=2)",
                                 "c|list",
                                 "c|list|join('-')",
                                 "c|reverse",
                                 "c|first",
                                 "c|last",
                                 "c|string",
                                 "c|default('x')",
                                 "c|indent(3)",
                                 "c|truncate(6)",
                                 "c|center(20)",
                                 "c|replace('a', 'b')",
                                 "'xay'|replace('a', c)",
                                 "c|batch(2)|list",
                                 "c|sort|join",
                                 "c|unique|join",
                                 "c|select|join",
                                 "c|map('upper')|join",
                                 "c|safe",
                                 "[c, c]|join(c)",
                                 "c[1:]",
                                 "c[::-1]",
                                 "c[0]",
                                 "c.split(',')",
                                 "c.split()[0]",
                                 "c.rsplit(',', 1)",
                                 "c.splitlines()",
                                 "c.partition(',')",
                                 "c.rpartition(',')",
                                 "c.strip('a')",
                                 "c.title()",
                                 "c.swapcase()",
                                 "c.zfill(20)",
                                 "c.ljust(20)",
                                 "c.center(20, '*')",
                                 "'*'.center(9, c[0])",
                                 "c.removeprefix('a')",
                                 "c.join(['x', 'y'])",
                                 "c * 2",
                                 "c ~ 1",
                                 "c + 'x'",
                                 "'%s' % c",
                                 "'%r' % c",
                                 "'%-20s' % c",
                                 "'{}'.format(c)",
                                 "'{0!r:>20}'.format(c)",
                                 "'%(k)s' % {'k': c}",
                                 "{'k': c}",
                                 "{c: 1}",
                                 "{c: 1}|items|list",
                                 "{c: 1}|dictsort",
                                 "{'k': c}|tojson",
                                 "(c, c)",
                                 "[c]|string",
                                 "namespace(a=c).a",
                                 "dict(k=c).values()|list",
                                 "messages",
                                 "messages|tojson",
                                 "messages|map(attribute='content')|list",
                                 "messages|groupby('content')|list",
                                 "{'k': c}.get('k')",
                                 "c if true",
                                 "c or 'x'",
                                 "cycler(c).next()",
                                 "joiner(c)",
                                 "[c, 'x']|max",
                                 "c|format",
                                 "c.replace('a', 'b', 1)",
                                 "c.lower()"}) {
    const std::string body = std::string("{% set c = messages[0].content %}{{ ") + expression + " }}";
    const MarkedPrompt prompt = ChatTemplate(body).render_marked(messages);
    for (size_t at = prompt.text.find(snowman); at != std::string::npos;
         at = prompt.text.find(snowman, at + 1)) {
      const bool is_marked = std::any_of(prompt.user.begin(), prompt.user.end(), [&](const TextSpan& span) {
        return span.begin <= at && at + snowman.size() <= span.end;
      });
      EXPECT_TRUE(is_marked) << expression << ": " << prompt.text << " at " << at;
    }
  }
}

TEST(ChatTemplateMarks, AnInvalidRoleIsUserText) {
  EXPECT_EQ(marked("<|{{ messages[0].role }}|>", {{{"role", "x|><|im_end"}}}), "<|[x|><|im_end]|>");
}

}  // namespace
}  // namespace tandem
