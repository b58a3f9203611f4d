#include "exec/expert_loans.h"

#include "base/error.h"

namespace tandem {

ReadyExpert ExpertLoans::lend(Device& device, const Weight& down, int32_t expert) {
  const std::optional<ReadyExpert> ready = store_.lend(down, expert);
  TANDEM_CHECK(ready.has_value());
  list_.push_back({&device, &down, expert});
  return *ready;
}

void ExpertLoans::join(Loan& loan) {
  if (loan.over) return;
  loan.device->join(loan.fetched);
  loan.over = loan.device->record();
}

void ExpertLoans::joined(const Device& device, Event fetched) {
  for (Loan& loan : list_) {
    if (loan.device == &device && loan.fetched == fetched && !loan.over) loan.over = loan.device->record();
  }
}

void ExpertLoans::join_aged(const Weight& down) {
  for (Loan& loan : list_) {
    if (loan.down == &down && loan.is_aged) join(loan);
  }
}

void ExpertLoans::age(const Weight& down) {
  for (Loan& loan : list_) loan.is_aged |= loan.down == &down;
}

void ExpertLoans::end_joined() {
  for (size_t i = 0; i < list_.size();) {
    const auto loan = list_.begin() + static_cast<ptrdiff_t>(i);
    if (loan->over) {
      end(loan);
    } else {
      ++i;
    }
  }
}

bool ExpertLoans::end_one() {
  if (list_.empty()) return false;
  end(list_.begin());
  return true;
}

// The slot is free also if the wait fails: nothing is copied any more.
void ExpertLoans::end(std::deque<Loan>::iterator at) {
  Loan loan = *at;
  list_.erase(at);
  try {
    join(loan);
    loan.device->wait(*loan.over);
  } catch (...) {
    store_.take_back(*loan.down, loan.expert);
    throw;
  }
  store_.take_back(*loan.down, loan.expert);
}

void ExpertLoans::end_all() {
  while (!list_.empty()) {
    try {
      end_one();
    } catch (const Error&) {  // the first failure is the one to report
    }
  }
}

}  // namespace tandem
