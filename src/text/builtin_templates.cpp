#include "text/builtin_templates.h"

namespace tandem {
namespace {

constexpr std::string_view kChatml = R"({% for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %})";

constexpr std::string_view kLlama3 = R"({{ bos_token }}
{%- for m in messages -%}
<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>
{%- endfor -%}
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %})";

// The system prompt goes inside the first user turn.
constexpr std::string_view kLlama2 = R"({% set ns = namespace(system='') %}
{%- for m in messages -%}
{%- if m.role == 'system' %}{% set ns.system = '<<SYS>>\n' ~ (m.content | trim) ~ '\n<</SYS>>\n\n' %}
{%- elif m.role == 'user' -%}
{{ bos_token ~ '[INST] ' ~ ns.system ~ (m.content | trim) ~ ' [/INST]' }}{% set ns.system = '' %}
{%- else -%}
{{ ' ' ~ (m.content | trim) ~ ' ' ~ eos_token }}
{%- endif %}
{%- endfor %})";

constexpr std::string_view kMistral = R"({{ bos_token }}{% set ns = namespace(system='') %}
{%- for m in messages -%}
{%- if m.role == 'system' %}{% set ns.system = m.content ~ '\n\n' %}
{%- elif m.role == 'user' -%}
{{ '[INST] ' ~ ns.system ~ m.content ~ ' [/INST]' }}{% set ns.system = '' %}
{%- else -%}
{{ ' ' ~ (m.content | trim) ~ eos_token }}
{%- endif %}
{%- endfor %})";

// No system role: the system prompt goes before the first user message.
constexpr std::string_view kGemma = R"({{ bos_token }}{% set ns = namespace(system='') %}
{%- for m in messages -%}
{%- if m.role == 'system' %}{% set ns.system = (m.content | trim) ~ '\n\n' %}
{%- else -%}
{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' ~ ns.system ~ (m.content | trim) ~ '<end_of_turn>\n' }}
{%- set ns.system = '' %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %})";

constexpr std::string_view kPhi3 = R"({% for m in messages -%}
<|{{ m.role }}|>
{{ m.content }}<|end|>
{% endfor -%}
{% if add_generation_prompt %}<|assistant|>
{% endif %})";

constexpr std::string_view kZephyr = R"({% for m in messages -%}
<|{{ m.role }}|>
{{ m.content ~ eos_token }}
{% endfor -%}
{% if add_generation_prompt %}<|assistant|>
{% endif %})";

constexpr std::string_view kVicuna = R"({{ bos_token }}
{%- for m in messages -%}
{%- if m.role == 'system' %}{{ (m.content | trim) ~ '\n\n' }}
{%- elif m.role == 'user' %}{{ 'USER: ' ~ (m.content | trim) ~ '\n' }}
{%- else %}{{ 'ASSISTANT: ' ~ (m.content | trim) ~ eos_token ~ '\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %})";

constexpr BuiltinTemplate kTemplates[] = {{"chatml", kChatml},   {"llama3", kLlama3}, {"llama2", kLlama2},
                                          {"mistral", kMistral}, {"gemma", kGemma},   {"phi3", kPhi3},
                                          {"zephyr", kZephyr},   {"vicuna", kVicuna}};

}  // namespace

std::span<const BuiltinTemplate> builtin_templates() {
  return kTemplates;
}

const BuiltinTemplate* find_builtin_template(std::string_view name) {
  for (const BuiltinTemplate& t : kTemplates) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

}  // namespace tandem
