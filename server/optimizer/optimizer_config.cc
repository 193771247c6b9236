#include "server/optimizer/optimizer_config.h"

#include <array>
#include <string>
#include <utility>

#include "server/optimizer/option_text.h"

namespace psd {
namespace {

constexpr uint64_t kUpdatesMax = uint64_t{1} << 53;  // exact in JSON numbers and in double
constexpr size_t kTextMax = 4096;
constexpr NumberRange kRateRange{kLearningRateRange.min, kLearningRateRange.max};

NumberRange numberRange(OptionRange range) {
  return {.min = range.min, .max = range.max, .maxExclusive = range.maxExclusive};
}

/// Sets each option of an optimizer from the configuration; absent options keep their values.
struct OptionFiller {
  ConfigReader& in;

  void number(OptionKey key, double& value, OptionRange range = {}) {
    const nlohmann::ordered_json whole = {{"multipleOf", 1}};
    in.number({key.name, key.text}, value, numberRange(range),
              range.whole ? whole : nlohmann::ordered_json());
  }
  void flag(OptionKey key, bool& value) { in.boolean({key.name, key.text}, value); }
  void numbers(OptionKey key, std::array<double, 2>& values, OptionRange range) {
    in.numbers({key.name, key.text}, values, numberRange(range));
  }
};

/// Writes each option of an optimizer to a JSON object.
struct OptionWriter {
  nlohmann::ordered_json& out;

  void number(OptionKey key, double value, OptionRange = {}) { out[std::string(key.name)] = value; }
  void flag(OptionKey key, bool value) { out[std::string(key.name)] = value; }
  void numbers(OptionKey key, const std::array<double, 2>& values, OptionRange) {
    out[std::string(key.name)] = values;
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
std::vector<Alternative> alternatives(std::index_sequence<kIndices...>) {
  return {{std::variant_alternative_t<kIndices, AnyOptimizer>::kName,
           std::variant_alternative_t<kIndices, AnyOptimizer>::kSummary}...};
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

void readStep(ConfigReader& in, Schedule& schedule) {
  schedule.type = Schedule::Type::step;
  in.integer({"every_updates",
              "Updates since the warm-up after which the rate is multiplied by `gamma`, each time."},
             schedule.everyUpdates, 1, kUpdatesMax);
  in.require("every_updates", "is required by type 'step'");
  in.number({"gamma", "Factor of the rate; see `every_updates`."}, schedule.gamma, {.min = 0, .max = 1e3});
}

void readCosine(ConfigReader& in, Schedule& schedule, double lr) {
  schedule.type = Schedule::Type::cosine;
  in.integer({"total_updates",
              "Update at which the rate reaches `lr_min`, warm-up included. More than `warmup_updates`."},
             schedule.totalUpdates, 1, kUpdatesMax);
  in.require("total_updates", "is needed by type 'cosine'");
  if (in.has("total_updates") && schedule.totalUpdates <= schedule.warmupUpdates) {
    in.fail("total_updates", "must be more than warmup_updates (" + std::to_string(schedule.warmupUpdates) +
                                 "), not " + std::to_string(schedule.totalUpdates));
  }
  in.number({"lr_min", "Learning rate from `total_updates` on. At most `lr`."}, schedule.lrMin, kRateRange);
  if (schedule.lrMin > lr) {
    in.fail("lr_min", "must be at most lr (" + numberText(lr) + "), not " + numberText(schedule.lrMin));
  }
}

Schedule readSchedule(ConfigReader in, double lr) {
  Schedule schedule;
  in.alternatives(
      {"type", "The learning rate after the warm-up."}, "constant",
      {{"constant", "A constant rate."},
       {"step", "A rate that falls in steps."},
       {"cosine", "A rate that falls by a cosine."}},
      [&schedule, lr](ConfigReader& options, std::string_view type) {
        options.integer(
            {"warmup_updates", "Updates over which the rate rises linearly; the last has the full rate."},
            schedule.warmupUpdates, 0, kUpdatesMax);
        if (type == "step") readStep(options, schedule);
        if (type == "cosine") readCosine(options, schedule, lr);
      });
  return schedule;
}

void readOptions(ConfigReader& in, Optimizer& optimizer) {
  in.number({"lr", optimizer.derivesWeights() ? "Learning rate, which never changes." : "Learning rate."},
            optimizer.fullLearningRate, numberRange(optimizer.learningRates()));
  std::visit(
      [&in](auto& chosen) {
        OptionFiller filler{in};
        chosen.visitOptions(filler);
        if constexpr (requires { chosen.problem(); }) {
          if (const auto problem = chosen.problem()) in.fail(problem->key, problem->message);
        }
      },
      optimizer.algorithm);
  if (optimizer.derivesWeights()) {
    return in.refuse("schedule", "cannot be combined with " + std::string(optimizer.name()) +
                                     ", whose state holds for one learning rate");
  }
  optimizer.schedule = readSchedule(in.object({"schedule", "Learning rate over the updates of a shard."}),
                                    optimizer.fullLearningRate);
}

}  // namespace

Optimizer readOptimizer(ConfigReader in, OptimizerUse use) {
  static constexpr auto kAll = std::make_index_sequence<std::variant_size_v<AnyOptimizer>>();
  Optimizer optimizer;
  in.alternatives({"type", "The algorithm."}, optimizer.name(), alternatives(kAll),
                  [&optimizer](ConfigReader& options, std::string_view type) {
                    choose(optimizer, type, kAll);
                    readOptions(options, optimizer);
                  });
  if (use == OptimizerUse::tensors && optimizer.rowsOnly()) {
    in.fail("type", "'" + std::string(optimizer.name()) + "' supports embedding tables only, not tensors; " +
                        std::string(optimizer.forTensors()) + " supports both");
    optimizer.algorithm = Sgd{};
  }
  return optimizer;
}

Result<Optimizer> parseOptimizer(std::string_view text) {
  const Error bad{ErrorCode::invalidArgument, "the trainer's optimizer is not a JSON object"};
  if (text.size() > kTextMax) return bad;
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) return bad;
  ObjectReader document(json);
  Optimizer optimizer = readOptimizer(document);
  if (const Status read = document.finish(); !read.ok()) {
    return Error{ErrorCode::invalidArgument, "the trainer's optimizer: " + read.message()};
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
  if (!optimizer.derivesWeights()) out["schedule"] = writeSchedule(optimizer.schedule);
  return out;
}

}  // namespace psd
