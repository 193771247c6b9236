#include "trainer/client/transport/batched_copies.h"

#include <kj/debug.h>

namespace psd {

kj::Promise<Status> BatchedCopies::copy(void* to, const void* from, size_t bytes) {
  if (Status begun = copier_.begin(to, from, bytes); !begun.ok()) return begun;
  if (!open_) {
    open_ = true;
    ending_ = kj::evalLast([this]() -> Status {
                open_ = false;
                return copier_.synchronize();
              }).fork();
  }
  return KJ_ASSERT_NONNULL(ending_).addBranch();
}

void BatchedCopies::end() {
  if (open_) static_cast<void>(copier_.synchronize());
}

}  // namespace psd
