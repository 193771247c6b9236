#pragma once

#include <memory>
#include <utility>

#include "common/os/shared_memory.h"
#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"

namespace psd {

/// Passes the descriptor of a memory file to a peer and keeps the file alive meanwhile. Belongs to the
/// connection's loop.
class SharedMemoryService final : public CountedService<schema::SharedMemory> {
 public:
  SharedMemoryService(std::shared_ptr<Connection> connection, std::shared_ptr<const SharedMemory> memory)
      : CountedService(std::move(connection)), memory_(std::move(memory)) {}

  kj::Maybe<int> getFd() override { return memory_->fd(); }

 private:
  const std::shared_ptr<const SharedMemory> memory_;
};

}  // namespace psd
