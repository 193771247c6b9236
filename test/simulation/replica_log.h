#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace psd::testing {

constexpr size_t kReplicaTrainers = 2;

/// A trainer's push: each trainer's are numbered from 1 and pushed in order, the next after the answer.
struct ReplicaPush {
  size_t trainer = 0;
  uint64_t step = 0;
};

/// The updates that a daemon holds, in order, and the table by which it recognizes repeated pushes. A value
/// type.
class ReplicaLog {
 public:
  uint64_t size() const { return pushes_.size(); }
  /// Of record `number`, from 1.
  const ReplicaPush& at(uint64_t number) const { return pushes_[number - 1]; }
  /// The number of the record that holds the push; 0: none.
  uint64_t find(const ReplicaPush& push) const {
    const auto& numbers = numbers_[push.trainer];
    return push.step <= numbers.size() ? numbers[push.step - 1] : 0;
  }
  void append(const ReplicaPush& push) {
    auto& numbers = numbers_[push.trainer];
    pushes_.push_back(push);
    if (numbers.size() < push.step) numbers.resize(push.step);
    twice_ |= numbers[push.step - 1] != 0;
    numbers[push.step - 1] = size();
    uint64_t& whole = whole_[push.trainer];
    while (whole < numbers.size() && numbers[whole] != 0) whole++;
  }
  /// Whether a push was applied twice.
  bool twice() const { return twice_; }
  /// Each trainer's steps without a gap from the first on.
  const std::array<uint64_t, kReplicaTrainers>& whole() const { return whole_; }
  /// Whether each trainer's first `steps` pushes are all here.
  bool holds(const std::array<uint64_t, kReplicaTrainers>& steps) const {
    for (size_t i = 0; i < kReplicaTrainers; i++) {
      if (whole_[i] < steps[i]) return false;
    }
    return true;
  }

 private:
  std::vector<ReplicaPush> pushes_;
  std::array<std::vector<uint64_t>, kReplicaTrainers> numbers_;  // by step: the record, 0 for none
  std::array<uint64_t, kReplicaTrainers> whole_{};               // steps without a gap from the first on
  bool twice_ = false;
};

}  // namespace psd::testing
