#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

#include "test/trials/digits_trainer.h"

namespace psd::trials {

/// Several concurrent trainers, each a thread with a connection of its own.
struct Barrier {
  uint32_t trainers = 4;
  uint64_t steps = 100;     ///< per trainer, at most
  double seconds = 600;     ///< at most
  double accuracy = 2;      ///< ends when the test accuracy reaches it
  uint32_t stepMs = 0;      ///< sleep in every step, replacing the work of a larger model
  uint32_t slowStepMs = 0;  ///< that of rank 0; 0: the same
  bool autoBatch = false;   ///< the daemon assigns and sizes the batches; the sleep is proportional
  uint32_t garbage = 0;  ///< this many of the last ranks push noise of this deviation instead of gradients …
  double garbageScale = 1000;
  uint32_t evaluateMs = 250;  ///< between two measurements of the test accuracy
};

/// {"curve": [{"seconds", "accuracy", "loss", "steps"} …], "steps": {by rank}, "samples": {by rank},
/// "errors": […]}
Result<nlohmann::ordered_json> trainTogether(const Setting& setting, const Barrier& options);

/// One thread plays `delay` + 1 trainers in turn, each of which pushes a gradient of the parameters from
/// `delay` updates ago: constant staleness, and deterministic runs.
struct Delayed {
  uint32_t delay = 0;
  uint64_t steps = 1000;  ///< in total
  uint64_t evaluateEvery = 50;
};

/// {"curve": [{"steps", "accuracy", "loss"} …]}
Result<nlohmann::ordered_json> trainDelayed(const Setting& setting, const Delayed& options);

}  // namespace psd::trials
