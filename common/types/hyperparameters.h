#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace psd {

/// Hyperparameters of one optimizer step, by runs of consecutive elements (of a gradient, of a shard) or of
/// consecutive tables. A push carries them, and they replace those of the model's optimizer. A value type.
struct Hyperparameters {
  struct Run {
    uint64_t end = 0;   ///< the element after the run, which starts where the previous one ends
    uint32_t set = 0;   ///< index into `sets`
    bool steps = true;  ///< false: the elements have no gradient; neither weights nor optimizer state change
    bool operator==(const Run&) const = default;
  };

  /// Each: the learning rate, then the optimizer's number options in the order of its declaration.
  std::vector<std::vector<double>> sets;
  std::vector<Run> runs;  ///< by rising `end`

  bool operator==(const Hyperparameters&) const = default;

  static constexpr uint64_t kHeaderBytes = 32;
  /// The size in a log record.
  uint64_t bytes() const {
    return kHeaderBytes + runs.size() * sizeof(Run) +
           (sets.empty() ? 0 : sets.size() * sets.front().size() * sizeof(double));
  }
  /// Whether the sets have equal sizes, at least 1, and the runs rise to `end` and name sets.
  bool isValid(uint64_t end) const {
    for (const std::vector<double>& set : sets) {
      if (set.empty() || set.size() != sets.front().size()) return false;
    }
    uint64_t begin = 0;
    for (const Run& run : runs) {
      if (run.end <= begin || run.set >= sets.size()) return false;
      begin = run.end;
    }
    return begin == end;
  }
  /// Appends elements up to `run.end`; adjacent runs that differ in `end` alone become one.
  void append(const Run& run) {
    if (!runs.empty() && runs.back().set == run.set && runs.back().steps == run.steps) {
      runs.back().end = run.end;
    } else {
      runs.push_back(run);
    }
  }
  /// The first run that ends after element `at`; end() if there is none.
  std::vector<Run>::const_iterator runAt(uint64_t at) const {
    return std::upper_bound(runs.begin(), runs.end(), at,
                            [](uint64_t element, const Run& run) { return element < run.end; });
  }
  /// The hyperparameters of `count` elements from `begin` on, with runs relative to `begin` and without
  /// unused sets.
  Hyperparameters part(uint64_t begin, uint64_t count) const {
    Hyperparameters found;
    std::map<uint32_t, uint32_t> numbers;
    for (auto run = runAt(begin); run != runs.end() && count > 0; ++run) {
      const auto [known, isNew] = numbers.emplace(run->set, static_cast<uint32_t>(found.sets.size()));
      if (isNew) found.sets.push_back(sets[run->set]);
      found.append({std::min(run->end - begin, count), known->second, run->steps});
      if (run->end >= begin + count) break;
    }
    return found;
  }
  /// A copy in which every run steps.
  Hyperparameters withAllSteps() const {
    Hyperparameters all{sets, {}};
    for (const Run& run : runs) all.append({run.end, run.set, true});
    return all;
  }
};

/// Hyperparameters of a step of a whole model. A value type.
struct ModelHyperparameters {
  Hyperparameters elements;  ///< by runs of the arena's elements, which cover it
  Hyperparameters tables;    ///< by runs of the model's tables, which cover them

  bool isValid(uint64_t elementCount, uint64_t tableCount) const {
    return elements.isValid(elementCount) && tables.isValid(tableCount);
  }
  /// The hyperparameters of a partition of the model: of `count` elements from `begin` on, and of all tables.
  ModelHyperparameters part(uint64_t begin, uint64_t count) const {
    return {elements.part(begin, count), tables};
  }
};

}  // namespace psd
