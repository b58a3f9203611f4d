// One lambda for each alternative of a std::variant: std::visit(Overloaded{...}, variant).
#pragma once

namespace tandem {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace tandem
