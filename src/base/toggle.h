// A choice that may be left to the program.
#pragma once

namespace tandem {

enum class Toggle { automatic, on, off };

constexpr Toggle on_or_off(bool is_on) {
  return is_on ? Toggle::on : Toggle::off;
}

}  // namespace tandem
