#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include <kj/async.h>

#include "common/safetensors/buffer_set.h"
#include "server/store/update_log.h"

namespace psd {

/// The buffers of a served model, and the log of their changes. Thread-safe.
class Buffers {
 public:
  /// A set and its number, which rises with each; null and 0: there are no buffers.
  struct Current {
    std::shared_ptr<const BufferSet> set;
    uint64_t number = 0;
  };
  Current get() const;
  /// Replaces all buffers and logs that, if there is a log. A set that equals the current one changes
  /// nothing.
  void set(std::shared_ptr<const BufferSet> next, ByteBudget::Lease space = {});
  /// set() with room in the log; resolves once the change is as durable as the log makes it.
  kj::Promise<void> replace(std::shared_ptr<const BufferSet> next);
  /// Sets the log of later changes.
  void setLog(std::shared_ptr<UpdateLog> log);

 private:
  mutable std::mutex mutex_;  // guards what follows; held while a change is logged: the log has their order
  Current current_;
  std::shared_ptr<UpdateLog> log_;  // null: none
  uint64_t logged_ = 0;             // its number of the newest change
};

}  // namespace psd
