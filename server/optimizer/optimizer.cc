#include "server/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>

#include "server/optimizer/option_text.h"

namespace psd {
namespace {

/// Collects the options as "key=value", in order.
struct OptionLister {
  std::vector<std::string> texts;

  void number(OptionKey key, double value, OptionRange = {}) { add(key.name, numberText(value)); }
  void flag(OptionKey key, bool value) { add(key.name, value ? "true" : "false"); }
  void numbers(OptionKey key, const std::array<double, 2>& values, OptionRange) {
    add(key.name, numberText(values[0]) + "," + numberText(values[1]));
  }

 private:
  void add(std::string_view key, const std::string& value) {
    texts.push_back(std::string(key) + "=" + value);
  }
};

/// Collects the hyperparameters that a push may bring.
struct HyperparameterLister {
  struct Entry {
    std::string name;
    double value;
    OptionRange range;
  };
  std::vector<Entry> entries;

  void number(OptionKey key, double value, OptionRange range = {}) {
    entries.push_back({std::string(key.name), value, range});
  }
  void flag(OptionKey, bool) {}
  void numbers(OptionKey key, const std::array<double, 2>& values, OptionRange range) {
    for (size_t i = 0; i < values.size(); i++) {
      number({std::string(key.name) + "[" + std::to_string(i) + "]", ""}, values[i], range);
    }
  }
};

std::vector<HyperparameterLister::Entry> listHyperparameters(const Optimizer& optimizer) {
  HyperparameterLister lister;
  lister.number({"lr", ""}, optimizer.fullLearningRate, optimizer.learningRates());
  std::visit([&](auto chosen) { chosen.visitOptions(lister); }, optimizer.algorithm);
  return std::move(lister.entries);
}

Status checkValue(const HyperparameterLister::Entry& entry, double value) {
  const OptionRange& range = entry.range;
  const bool above = range.maxExclusive ? value >= range.max : value > range.max;
  if (std::isfinite(value) && value >= range.min && !above && (!range.whole || value == std::floor(value))) {
    return {};
  }
  return {ErrorCode::invalidArgument,
          "a push's " + entry.name + " must be " + (range.whole ? "an integer " : "") + "from " +
              numberText(range.min) + " to " + (range.maxExclusive ? "below " : "") + numberText(range.max) +
              ", not " + numberText(value)};
}

template <class Algorithm>
std::vector<std::string> listOptions(Algorithm algorithm) {
  OptionLister lister;
  algorithm.visitOptions(lister);
  return std::move(lister.texts);
}

}  // namespace

std::string_view Optimizer::name() const {
  return std::visit([](const auto& chosen) { return chosen.kName; }, algorithm);
}

std::vector<Slot> Optimizer::slots() const {
  return std::visit([](const auto& chosen) { return chosen.slots(); }, algorithm);
}

bool Optimizer::hasMomentum() const {
  return std::visit(
      [](const auto& chosen) {
        if constexpr (requires { chosen.momentum; }) return chosen.momentum > 0;
        return false;
      },
      algorithm);
}

bool Optimizer::zerosChangeNothing() const {
  return std::visit(
      [](const auto& chosen) {
        if constexpr (requires { chosen.zerosChangeNothing(); }) return chosen.zerosChangeNothing();
        return false;
      },
      algorithm);
}

bool Optimizer::tensorsOnly() const {
  return std::visit([]<class Algorithm>(const Algorithm&) { return kTensorsOnly<Algorithm>; }, algorithm);
}

bool Optimizer::rowsOnly() const {
  return std::visit([]<class Algorithm>(const Algorithm&) { return kRowsOnly<Algorithm>; }, algorithm);
}

bool Optimizer::derivesWeights() const {
  return std::visit([]<class Algorithm>(const Algorithm&) { return kDerivesWeights<Algorithm>; }, algorithm);
}

std::string_view Optimizer::forTensors() const {
  return std::visit(
      []<class Algorithm>(const Algorithm&) -> std::string_view {
        if constexpr (kRowsOnly<Algorithm>) return Algorithm::kForTensors;
        return Algorithm::kName;
      },
      algorithm);
}

OptionRange Optimizer::learningRates() const {
  return std::visit(
      []<class Algorithm>(const Algorithm&) {
        if constexpr (kDerivesWeights<Algorithm>) return Algorithm::kLearningRates;
        return kLearningRateRange;
      },
      algorithm);
}

std::string Optimizer::describe() const {
  std::string text = std::string(name()) + " lr=" + numberText(fullLearningRate);
  std::visit(
      [&](const auto& chosen) {
        const auto given = listOptions(chosen);
        const auto usual = listOptions(std::decay_t<decltype(chosen)>{});
        for (size_t i = 0; i < given.size(); ++i) {
          if (given[i] != usual[i]) text += " " + given[i];
        }
      },
      algorithm);
  const std::string scheduled = schedule.describe();
  return scheduled.empty() ? text : text + ", schedule " + scheduled;
}

std::vector<std::string> Optimizer::hyperparameterNames() const {
  std::vector<std::string> names;
  for (auto& entry : listHyperparameters(*this)) names.push_back(std::move(entry.name));
  return names;
}

std::vector<double> Optimizer::hyperparameters() const {
  std::vector<double> values;
  for (const auto& entry : listHyperparameters(*this)) values.push_back(entry.value);
  return values;
}

Status Optimizer::checkHyperparameters(std::span<const double> values) const {
  const auto entries = listHyperparameters(*this);
  if (values.size() != entries.size()) {
    return {ErrorCode::invalidArgument, "a push carries " + std::to_string(values.size()) +
                                            " hyperparameters; expected the " +
                                            std::to_string(entries.size()) + " of " + std::string(name())};
  }
  for (size_t i = 0; i < values.size(); i++) PSD_RETURN_IF_ERROR(checkValue(entries[i], values[i]));
  for (size_t i = 0; derivesWeights() && i < values.size(); i++) {
    if (values[i] == entries[i].value) continue;
    return {ErrorCode::invalidArgument,
            "a push's " + entries[i].name + " must be " + numberText(entries[i].value) +
                ", that of the model's " + std::string(name()) +
                ", whose weights are a function of its state and its numbers, not " + numberText(values[i])};
  }
  return std::visit(
      [&](const auto& chosen) -> Status {
        const auto changed = withOptions(chosen, values.subspan(1));
        if constexpr (requires { changed.problem(); }) {
          if (const auto problem = changed.problem()) {
            return {ErrorCode::invalidArgument, "a push's hyperparameters: " + std::string(problem->message)};
          }
        }
        // A step addresses state by its place. With momentum 0 a buffer may exist and is not used.
        const std::vector<Slot> needed = changed.slots(), kept = chosen.slots();
        const auto sameName = [](const Slot& one, const Slot& other) { return one.name == other.name; };
        if (needed.size() <= kept.size() && std::equal(needed.begin(), needed.end(), kept.begin(), sameName))
          return {};
        return {ErrorCode::invalidArgument,
                "a push's momentum must be " + std::string(needed.size() > kept.size() ? "" : "above ") +
                    "0, as in the model's optimizer, " + describe() + ", which keeps other state per weight"};
      },
      algorithm);
}

}  // namespace psd
