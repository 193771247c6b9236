#include "server/rpc/sink_link.h"

#include <cstring>

#include "common/text/text.h"
#include "common/wire/convert.h"

namespace psd {
namespace {

Status broken(const kj::Exception& exception) {
  return {ErrorCode::unavailable,
          "the connection to the standby broke: " + printable(wire::textIn(exception.getDescription()), 300)};
}

/// Sends a call that is answered with a status.
template <class Request>
kj::Promise<Status> told(Request&& request) {
  return request.send().then([](auto&& answer) { return wire::readStatus(answer.getStatus()); },
                             [](kj::Exception&& exception) { return broken(exception); });
}

/// Sends a call that is answered with a progress.
template <class Request>
kj::Promise<Result<FollowerProgress>> progressed(Request&& request) {
  return request.send().then(
      [](auto&& answer) -> Result<FollowerProgress> {
        if (answer.isError()) return wire::readError(answer.getError());
        const auto progress = answer.getProgress();
        return FollowerProgress{progress.getHeld(), progress.getApplied()};
      },
      [](kj::Exception&& exception) -> Result<FollowerProgress> { return broken(exception).error(); });
}

}  // namespace

kj::Promise<Status> SinkLink::image(ImagePart part) {
  auto request = sink_.imageRequest();
  request.setPath(part.path.c_str());
  request.setRenamedTo(part.renamedTo.c_str());
  auto bytes = request.initBytes(part.bytes.size());
  if (!part.bytes.empty()) std::memcpy(bytes.begin(), part.bytes.data(), part.bytes.size());
  return told(kj::mv(request));
}

kj::Promise<Status> SinkLink::imageDone(const std::string& path) {
  auto request = sink_.imageDoneRequest();
  request.setPath(path.c_str());
  return told(kj::mv(request));
}

kj::Promise<Result<FollowerProgress>> SinkLink::records(std::span<const std::byte> records) {
  auto request = sink_.recordsRequest();
  auto bytes = request.initBytes(records.size());
  if (!records.empty()) std::memcpy(bytes.begin(), records.data(), records.size());
  return progressed(kj::mv(request));
}

kj::Promise<Result<FollowerProgress>> SinkLink::beat() { return progressed(sink_.beatRequest()); }

kj::Promise<Status> SinkLink::inSync(uint64_t revision) {
  auto request = sink_.inSyncRequest();
  request.setRevision(revision);
  return told(kj::mv(request));
}

kj::Promise<Status> SinkLink::takeOver(uint64_t revision) {
  auto request = sink_.takeOverRequest();
  request.setRevision(revision);
  return told(kj::mv(request));
}

kj::Promise<Status> SinkLink::runEnded(const std::string& reason) {
  auto request = sink_.runEndedRequest();
  request.setReason(reason.c_str());
  return told(kj::mv(request));
}

}  // namespace psd
