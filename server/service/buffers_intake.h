#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/loop/event_loop.h"
#include "server/membership/trainer.h"

namespace psd {

/// Receives the model's buffers from a trainer's session, in slices of a safetensors file. Belongs to an
/// event loop; its promises must not outlive the session that owns it.
class BuffersIntake {
 public:
  BuffersIntake(EventLoop& loop, std::shared_ptr<ServedModel> model, const TrainerRef& trainer)
      : loop_(loop), model_(std::move(model)), trainer_(trainer) {}

  /// Takes one slice; the last one replaces all buffers, and resolves when that is durable. `bytes` are
  /// copied.
  kj::Promise<Status> take(uint64_t size, uint64_t offset, std::span<const std::byte> bytes);

 private:
  Status check(uint64_t size, uint64_t offset, uint64_t bytes) const;

  EventLoop& loop_;
  const std::shared_ptr<ServedModel> model_;
  const TrainerRef trainer_;
  std::vector<std::byte> file_;  // received so far
  uint64_t size_ = 0;            // of the whole file
  bool replacing_ = false;       // the last slice is not answered
};

}  // namespace psd
