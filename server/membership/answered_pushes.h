#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// Answers to the finished pushes of one trainer to one shard: a repeated push gets the same answer and is
/// not applied twice. Holds the newest kMost, at least as many as a trainer leaves unanswered (psd-trainer
/// --inflight allows that many). Pure; owned by one thread.
template <class Answer>
class AnsweredPushes {
 public:
  static constexpr size_t kMost = 64;
  using Entry = std::pair<Step, Answer>;

  /// The push of `step` is finished; the first answer is kept.
  void add(Step step, Answer answer) {
    if (find(step)) return;
    if (answers_.size() == kMost) answers_.erase(answers_.begin());
    answers_.emplace(place(step), step, std::move(answer));
  }
  /// The answer to the step; null if the push never finished, or is too old to be remembered.
  const Answer* find(Step step) const {
    if (answers_.empty() || answers_.back().first < step) return nullptr;
    auto entry = place(step);
    return entry != answers_.end() && entry->first == step ? &entry->second : nullptr;
  }

  /// Oldest first.
  const std::vector<Entry>& entries() const { return answers_; }

 private:
  auto place(Step step) const {
    return std::lower_bound(answers_.begin(), answers_.end(), step,
                            [](const Entry& each, Step wanted) { return each.first < wanted; });
  }

  std::vector<Entry> answers_;  // by step
};

}  // namespace psd
