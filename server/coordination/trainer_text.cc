#include "server/coordination/trainer_text.h"

#include <utility>

#include <spdlog/fmt/fmt.h>

#include "common/types/bridge.h"

namespace psd {

std::string named(const Candidate& trainer) {
  return fmt::format("{} (process {} on {})", rankText(trainer.rank), trainer.pid, trainer.host);
}

LogFields fieldsOf(std::string event, const Candidate& trainer) {
  LogFields fields{.event = std::move(event), .process = fmt::format("{}@{}", trainer.pid, trainer.host)};
  if (!trainer.bridges && !trainer.anyRank) fields.rank = trainer.rank.value;
  return fields;
}

LogFields fieldsOf(std::string event, const Candidate& trainer, uint64_t step) {
  LogFields fields = fieldsOf(std::move(event), trainer);
  fields.step = step;
  return fields;
}

const char* initializerText(ModelInitialization::Role role, const Candidate& trainer) {
  if (role != ModelInitialization::Role::initialize) return "";
  return trainer.lastDaemon == 0
             ? " and initializes the model"
             : " and initializes the model with its own parameters: this daemon starts without any";
}

}  // namespace psd
