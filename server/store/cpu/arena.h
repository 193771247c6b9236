#pragma once

#include <cstdint>
#include <memory>

#include "common/status/status.h"

namespace psd {

/// One run of zeroed floats in anonymous memory, on huge pages where the system gives them. Pages
/// are taken when first touched. At least 7 bytes past the end are readable, as messages that
/// reference the memory in place need. The memory itself has no owner thread; the object is
/// immutable.
class Arena {
 public:
  /// ErrorCode::overloaded, naming the bytes, when the system refuses. At most 2^60 floats.
  static Result<std::shared_ptr<Arena>> map(uint64_t floats);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  float* data() const { return data_; }

 private:
  Arena(void* mapping, uint64_t bytes);

  float* data_;
  uint64_t bytes_;
};

}  // namespace psd
