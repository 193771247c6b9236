#include "server/optimizer/optimizer.h"

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

}  // namespace psd
