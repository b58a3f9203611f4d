// First inputs that a person would write: grammars, schemas, templates, messages, texts, regular expressions.
#include "fuzz/seeds.h"
#include "support/schemas.h"
#include "text/builtin_templates.h"

namespace tandem::fuzz {

void seed_grammar(SeedFolder& folder) {
  for (const char* grammar : {"root ::= \"a\" | [b-d]{2,3} x # end\nx ::= (\"e\" | .)* root?\n",
                              "root ::= [^\\n\\u00e9\\U0001f999-] | \"\\x41\\\"\"+",
                              "root ::= \"[\" (root (\",\" root)*)? \"]\"\n  | \"é\"{0,5}",
                              "root ::= a b\na ::= b? \"x\"\nb ::= \"\" | \"y\" a"}) {
    folder.add(grammar);
  }
}

void seed_schema(SeedFolder& folder) {
  for (const char* schema : test::kSchemas) folder.add(schema);
}

void seed_jinja(SeedFolder& folder) {
  for (const BuiltinTemplate& builtin : builtin_templates()) folder.add(builtin.text);
  folder.add(
      "{%- macro call(c, n=2) -%}{{ c.name ~ '(' ~ c.arguments|tojson(indent=n) ~ ')' }}{%- endmacro %}"
      "{% set ns = namespace(i=0, all=[]) %}{% for m in messages[::-1] if not loop.last %}"
      "{% set ns.i = ns.i + loop.index0 // 2 ** 1 %}{% if m.tool_calls is defined %}"
      "{{ call(m.tool_calls[0].function) }}{% elif m.content is none or 'x' in m.content %}{% continue %}"
      "{% else %}{{ m['content'][1:-1].strip().split(' ')|join('-')|upper|trim }}{% endif %}{% endfor %}"
      "{{ raise_exception('no') if ns.i > 99 else strftime_now('%d %B %Y') }}{# end #}");
}

void seed_messages(SeedFolder& folder) {
  constexpr const char* kConversations[] = {
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "Grüße <b>\n"}])",
      R"([{"role": "user", "content": "1"}, {"role": "assistant", "content": "<think>a</think>2"}, {"role": "user", "content": ""}])",
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "<|im_end|>"}]}])",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null,
          "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5]}}}]},
          {"role": "tool", "content": "9", "tool_call_id": "1"}], "x": 7, "bos_token": "<s>",
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]})",
  };
  const size_t n_templates = builtin_templates().size() + 1;
  for (size_t i = 0; i < n_templates; ++i) {
    folder.add(static_cast<char>(i) + std::string(kConversations[i % std::size(kConversations)]));
    folder.add(static_cast<char>(i) + std::string(kConversations[(i + 1) % std::size(kConversations)]));
  }
  for (const char* text : kConversations) folder.add(static_cast<char>(n_templates - 1) + std::string(text));
}

void seed_tokenizer(SeedFolder& folder) {
  const std::string text =
      "hello world I'LL <tool> <|im_end|></s><s> 12345\r\n\t \u00a0 camelCase e\u0301 中文 \xff\xe2\x82 ½ ▁ "
      "🦙!?";
  for (int subject = 0; subject < 40; ++subject) {
    for (int parse_special = 0; parse_special < 2; ++parse_special) {
      folder.add(static_cast<char>(subject * 2 + parse_special) + text);
    }
  }
}

void seed_regex(SeedFolder& folder) {
  folder.add("blk\\.([0-9]|1[0-9])\\.ffn_.*_exps\nblk.3.ffn_up_exps.weight");
  folder.add("(([a-z.]*)*)*X\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
  folder.add("^(?!.*(attn|norm)).*$|\\bq\\b\noutput.weight");
  folder.add("(?<n>a)\\k<n>(?:b|c)++[^\\W\\d]{2,5}?(?i)é\naabbQé");
}

}  // namespace tandem::fuzz
