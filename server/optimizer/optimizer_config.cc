#include "server/optimizer/optimizer_config.h"

#include <array>
#include <string>
#include <utility>

#include "server/optimizer/option_text.h"

namespace psd {
namespace {

constexpr uint64_t kUpdatesMax = uint64_t{1} << 53;  // exact in JSON numbers and in double
constexpr NumberRange kLearningRateRange{0, 1e6};

/// Sets each option of an optimizer from the configuration; absent options keep their values.
struct OptionFiller {
  ObjectReader& reader;

  void number(std::string_view key, double& value, OptionRange range = {}) {
    value = reader.number(key, value, numberRange(range));
  }
  void flag(std::string_view key, bool& value) { value = reader.boolean(key, value); }
  void numbers(std::string_view key, std::array<double, 2>& values, OptionRange range) {
    const auto given = reader.numbers(key, {values[0], values[1]}, numberRange(range));
    if (given.size() != values.size()) {
      reader.fail(key, "must hold 2 numbers, not " + std::to_string(given.size()));
      return;
    }
    values = {given[0], given[1]};
  }

  static NumberRange numberRange(OptionRange range) {
    return {.min = range.min, .max = range.max, .maxExclusive = range.maxExclusive};
  }
};

/// Writes each option of an optimizer to a JSON object.
struct OptionWriter {
  nlohmann::ordered_json& out;

  void number(std::string_view key, double value, OptionRange = {}) { out[std::string(key)] = value; }
  void flag(std::string_view key, bool value) { out[std::string(key)] = value; }
  void numbers(std::string_view key, const std::array<double, 2>& values, OptionRange) {
    out[std::string(key)] = values;
  }
};

nlohmann::ordered_json writeSchedule(const Schedule& schedule) {
  nlohmann::ordered_json out;
  out["type"] = "constant";
  out["warmup_updates"] = schedule.warmupUpdates;
  if (schedule.type == Schedule::Type::step) {
    out["type"] = "step";
    out["every_updates"] = schedule.everyUpdates;
    out["gamma"] = schedule.gamma;
  } else if (schedule.type == Schedule::Type::cosine) {
    out["type"] = "cosine";
    out["total_updates"] = schedule.totalUpdates;
    out["lr_min"] = schedule.lrMin;
  }
  return out;
}

template <size_t... kIndices>
std::vector<std::string_view> typeNames(std::index_sequence<kIndices...>) {
  return {std::variant_alternative_t<kIndices, AnyOptimizer>::kName...};
}

/// Sets the optimizer's algorithm to Algorithm, with its default rate, if that is called `name`.
template <class Algorithm>
void chooseIfNamed(Optimizer& optimizer, std::string_view name) {
  if (name != Algorithm::kName) return;
  optimizer.algorithm = Algorithm{};
  optimizer.fullLearningRate = Algorithm::kLearningRate;
}

template <size_t... kIndices>
void choose(Optimizer& optimizer, std::string_view name, std::index_sequence<kIndices...>) {
  (chooseIfNamed<std::variant_alternative_t<kIndices, AnyOptimizer>>(optimizer, name), ...);
}

/// A required integer of a schedule type.
uint64_t requiredCount(ObjectReader& reader, std::string_view key, std::string_view type) {
  if (!reader.has(key)) reader.fail(key, "is needed by type '" + std::string(type) + "'");
  return reader.integer(key, 1, 1, kUpdatesMax);
}

Schedule readSchedule(ObjectReader reader, double lr) {
  Schedule schedule;
  const std::string type = reader.choice("type", "constant", {"constant", "step", "cosine"});
  schedule.warmupUpdates = reader.integer("warmup_updates", 0, 0, kUpdatesMax);
  if (type == "step") {
    schedule.type = Schedule::Type::step;
    schedule.everyUpdates = requiredCount(reader, "every_updates", type);
    schedule.gamma = reader.number("gamma", schedule.gamma, {.min = 0, .max = 1e3});
  } else if (type == "cosine") {
    schedule.type = Schedule::Type::cosine;
    schedule.totalUpdates = requiredCount(reader, "total_updates", type);
    if (reader.has("total_updates") && schedule.totalUpdates <= schedule.warmupUpdates) {
      reader.fail("total_updates", "must be more than warmup_updates (" +
                                       std::to_string(schedule.warmupUpdates) + "), not " +
                                       std::to_string(schedule.totalUpdates));
    }
    schedule.lrMin = reader.number("lr_min", schedule.lrMin, kLearningRateRange);
    if (schedule.lrMin > lr) {
      reader.fail("lr_min", "must be at most lr (" + numberText(lr) + "), not " + numberText(schedule.lrMin));
    }
  }
  return schedule;
}

}  // namespace

Optimizer readOptimizer(ObjectReader& reader, OptimizerUse use) {
  constexpr auto kAll = std::make_index_sequence<std::variant_size_v<AnyOptimizer>>();
  Optimizer optimizer;
  choose(optimizer, reader.choice("type", optimizer.name(), typeNames(kAll)), kAll);
  optimizer.fullLearningRate = reader.number("lr", optimizer.fullLearningRate, kLearningRateRange);
  std::visit(
      [&](auto& chosen) {
        OptionFiller filler{reader};
        chosen.visitOptions(filler);
        if constexpr (requires { chosen.problem(); }) {
          if (const auto problem = chosen.problem()) reader.fail(problem->key, problem->message);
        }
      },
      optimizer.algorithm);
  optimizer.schedule = readSchedule(reader.object("schedule"), optimizer.fullLearningRate);
  if (use == OptimizerUse::tensors && optimizer.rowsOnly()) {
    reader.fail("type", "'" + std::string(optimizer.name()) +
                            "' supports embedding tables only, not tensors; " + std::string(Adagrad::kName) +
                            " supports both");
    optimizer.algorithm = Sgd{};
  }
  return optimizer;
}

nlohmann::ordered_json writeOptimizer(const Optimizer& optimizer) {
  nlohmann::ordered_json out;
  out["type"] = optimizer.name();
  out["lr"] = optimizer.fullLearningRate;
  std::visit(
      [&out](auto chosen) {
        OptionWriter writer{out};
        chosen.visitOptions(writer);
      },
      optimizer.algorithm);
  out["schedule"] = writeSchedule(optimizer.schedule);
  return out;
}

}  // namespace psd
