#include "server/replica/standby_disk.h"

#include <utility>

namespace psd {
namespace {

Status onTheDisk(const Status& status) {
  if (status.ok()) return status;
  return {status.error().code, "this standby cannot save the model on its disk: " + status.message()};
}

}  // namespace

StandbyDisk::StandbyDisk(Durability& durability, CheckpointSource copy, std::function<Status()> mark)
    : durability_(durability), copy_(std::move(copy)), mark_(std::move(mark)) {
  durability_.stop();
}

StandbyDisk::~StandbyDisk() {
  if (!keepSaving_) durability_.stop();
}

Status StandbyDisk::begin() {
  PSD_RETURN_IF_ERROR(onTheDisk(durability_.begin(copy_)));
  PSD_RETURN_IF_ERROR(flush());
  return onTheDisk(mark_());
}

std::vector<std::shared_ptr<ShardLock>> StandbyDisk::groupLocks() const {
  std::vector<std::shared_ptr<ShardLock>> locks;
  for (CheckpointSource::Group& group : copy_.groups()) locks.push_back(std::move(group.together));
  return locks;
}

void StandbyDisk::assigned(const LoggedAssignment& assignment) {
  static_cast<void>(durability_.assigned(assignment));
}

Status StandbyDisk::departed(const Departed& departed) {
  return onTheDisk(durability_.saveDepartedRanks(departed));
}

Status StandbyDisk::flush() { return onTheDisk(durability_.flushLog()); }

}  // namespace psd
