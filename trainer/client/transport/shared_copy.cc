#include "trainer/client/transport/shared_copy.h"

#include <thread>

namespace psd {
namespace {

constexpr int kPiecesPerTurn = 16;  // about a millisecond

kj::Promise<Result<PullInfo>> copyPieces(std::shared_ptr<SharedCopy> copy, DaemonConnection& connection) {
  if (connection.ended()) {
    copy->stop();
    return Result<PullInfo>(*connection.ended());
  }
  bool taken = true;
  for (int i = 0; i < kPiecesPerTurn && taken; i++) taken = copy->copyPiece();
  if (copy->done()) return Result<PullInfo>(copy->info());
  // Another thread copies the last piece, for some microseconds; a timer would wait for a millisecond.
  if (!taken) std::this_thread::yield();
  // Through the timer, so that the loop serves its sockets: else the lease of a large model's trainer would
  // expire during the copy.
  return connection.timer()
      .afterDelay(0 * kj::NANOSECONDS)
      .then([&connection, copy = std::move(copy)]() mutable {
        return copyPieces(std::move(copy), connection);
      });
}

}  // namespace

kj::Promise<Result<PullInfo>> copyOnLoop(std::shared_ptr<SharedCopy> copy, DaemonConnection& connection) {
  // Deferred, so that the end of the connection is read from the socket first.
  return kj::evalLater(
      [&connection, copy = std::move(copy)]() mutable { return copyPieces(std::move(copy), connection); });
}

}  // namespace psd
