// The calls of Channel for a model's buffers.

#include <algorithm>
#include <utility>

#include "common/wire/buffers.h"
#include "trainer/client/channel.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {

kj::Promise<Status> Channel::setBuffers(std::shared_ptr<const std::vector<std::byte>> file) {
  return connection_.call([&]() -> kj::Promise<Status> {
    if (!connection_.canPush()) return Status(ErrorCode::invalidArgument, "setBuffers() comes after join()");
    const uint64_t most = std::min<uint64_t>(chunkBytes_, terms_.sliceElementsMax * sizeof(float));
    return wire::sendBuffers(connection_.trainer(), std::move(file), most).then([](const Status& status) {
      return sanitized(status);
    });
  });
}

kj::Promise<Result<std::vector<std::byte>>> Channel::buffers() {
  using Answer = Result<std::vector<std::byte>>;
  return connection_.call([this]() -> kj::Promise<Answer> {
    if (!connection_.canPull()) {
      return Answer(ErrorCode::invalidArgument, "buffers() comes after join() or observe()");
    }
    return wire::pullBuffers(connection_.reader()).then([](Answer file) -> Answer {
      return file.ok() ? std::move(file) : Answer(sanitized(file.error()));
    });
  });
}

}  // namespace psd
