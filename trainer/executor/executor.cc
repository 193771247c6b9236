#include "trainer/executor/executor.h"

#include <utility>

#include <fmt/format.h>

#include "common/types/model_layout.h"

namespace psd {
namespace {

// Daemon sessions for each admitted trainer: its own, and one of a trainer that has departed.
constexpr uint32_t kSessionsPerTrainer = 2;
// One stashed, one being pulled, one gradient, and one for a second trainer.
constexpr uint64_t kArraysMin = 4;
constexpr size_t kOwnersMax = 16'384;

/// Increments the counter until all copies of the result are destroyed, on any thread.
Executor::CallSlot holdCount(const std::shared_ptr<std::atomic<uint32_t>>& counter) {
  ++*counter;
  return {nullptr, [counter](const void*) { --*counter; }};
}

}  // namespace

Result<std::unique_ptr<Executor>> Executor::make(ExecutorConfig config, ClientOptions daemon,
                                                 std::unique_ptr<ExecutionModel> model) {
  const uint64_t least = kArraysMin * ModelLayout(model->spec()).totalElements() * sizeof(float);
  if (config.memoryBytes < least) {
    return Error{
        ErrorCode::invalidArgument,
        fmt::format("memory_bytes: {} is less than the model needs; expected at least {}, {} times its "
                    "parameters",
                    config.memoryBytes, least, kArraysMin)};
  }
  try {
    return std::unique_ptr<Executor>(new Executor(std::move(config), std::move(daemon), std::move(model)));
  } catch (const std::system_error& error) {
    return Error{ErrorCode::overloaded, std::string("no threads for workers: ") + error.what()};
  }
}

Executor::Executor(ExecutorConfig config, ClientOptions daemon, std::unique_ptr<ExecutionModel> model)
    : config_(std::move(config)),
      daemon_(std::move(daemon)),
      model_(std::move(model)),
      memory_(ByteBudget::make(config_.memoryBytes)),
      arrays_(ModelLayout(model_->spec()).totalElements(), memory_),
      location_(daemon_.servers),
      turns_(config_.exclusive, config_.age),
      workers_(config_.workers, config_.age,
               [threads = config_.threadsPerWorker] { useComputeThreads(threads); }) {}

Result<Executor::CallSlot> Executor::admitCall() {
  if (const uint32_t there = *calls_; there >= config_.queue) {
    refused_++;
    return Error{ErrorCode::overloaded,
                 fmt::format("{} calls wait or are computed; `queue` allows {}", there, config_.queue)};
  }
  return holdCount(calls_);
}

Result<std::shared_ptr<DaemonSession>> Executor::makeDaemonSession(uint64_t incarnation,
                                                                   std::vector<uint64_t> rowsAt) {
  PSD_RETURN_IF_ERROR(checkSessions());
  ClientOptions options = daemon_;
  options.incarnation = incarnation;
  options.resumable = true;  // a trainer that reconnects gets another session
  options.rowsAt = std::move(rowsAt);
  try {
    auto session = std::make_unique<DaemonSession>(*model_, arrays_, location_, config_, std::move(options),
                                                   holdCount(sessions_));
    return std::shared_ptr<DaemonSession>(session.release(), [this](DaemonSession* ended) {
      ending_.add(std::unique_ptr<DaemonSession>(ended));
    });
  } catch (const std::system_error& error) {
    return Error{ErrorCode::overloaded, std::string("no thread for another trainer: ") + error.what()};
  }
}

void Executor::keep(uint64_t incarnation, std::shared_ptr<DaemonSession> session) {
  kept_[incarnation] = {std::move(session), std::chrono::steady_clock::now()};
}

std::shared_ptr<DaemonSession> Executor::takeKeptSession(uint64_t incarnation) {
  auto kept = kept_.extract(incarnation);
  return kept ? std::move(kept.mapped().session) : nullptr;
}

Status Executor::checkOwner(uint64_t incarnation, const std::string& owner) const {
  const auto known = owners_.find(incarnation);
  if (owner.empty() || known == owners_.end() || known->second == owner) return {};
  return {
      ErrorCode::forbidden,
      "the trainer of this incarnation belongs to another caller; only the certificate or user that started "
      "a session may resume it"};
}

void Executor::recordOwner(uint64_t incarnation, const std::string& owner) {
  if (owner.empty()) return;
  if (!owners_.contains(incarnation)) owned_.push_back(incarnation);
  owners_[incarnation] = owner;
  if (owned_.size() <= kOwnersMax) return;
  owners_.erase(owned_.front());
  owned_.pop_front();
}

Status Executor::checkSessions() const {
  if (*sessions_ < kSessionsPerTrainer * config_.trainers) return {};
  return {ErrorCode::overloaded,
          fmt::format("{} daemon sessions of departed trainers have not ended; `trainers` ({}) "
                      "allows no more",
                      ending_.size() + kept_.size(), config_.trainers)};
}

Status Executor::checkCapacity() const {
  if (trainers_.size() < config_.trainers) return {};
  return {ErrorCode::overloaded,
          fmt::format("{} trainers are admitted; `trainers` allows {}", trainers_.size(), config_.trainers)};
}

Status Executor::admit(ExecutorTrainer& trainer) {
  PSD_RETURN_IF_ERROR(checkCapacity());
  trainers_.insert(&trainer);
  return {};
}

void Executor::dropIdle() {
  const auto now = std::chrono::steady_clock::now();
  for (ExecutorTrainer* trainer : trainers_) trainer->dropIdle(now - config_.context);
  std::erase_if(kept_, [&](const auto& each) { return each.second.since < now - config_.silence; });
}

ExecutorStatus Executor::status() const {
  ExecutorStatus status;
  status.module = model_->spec().name;
  status.weights = config_.weights == WeightsMode::live ? "live" : "stashed";
  for (const Device& device : model_->devices()) status.devices.push_back(device.toString());
  status.parameters = model_->spec().parameterCount();
  status.workers = config_.workers;
  status.passes = workers_.figures();
  status.calls = *calls_;
  status.callsMax = config_.queue;
  status.overloaded = refused_;
  status.memoryBytes = memory_->used();
  status.memoryBytesMax = memory_->bytesMax();
  status.ending = ending_.size() + kept_.size();
  status.trainersMax = config_.trainers;
  for (const ExecutorTrainer* trainer : trainers_) status.trainers.push_back(trainer->status());
  if (Status room = checkCapacity(); !room.ok()) status.full = room.message();
  if (Status room = checkSessions(); !room.ok()) status.full = room.message();
  return status;
}

}  // namespace psd
