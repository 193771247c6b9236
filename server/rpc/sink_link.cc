#include "server/rpc/sink_link.h"

#include <cstring>

#include "common/text/text.h"
#include "common/wire/convert.h"

namespace psd {
namespace {

Status broken(const kj::Exception& exception) {
  return {ErrorCode::unavailable, "the connection to the receiving daemon broke: " +
                                      printable(wire::textIn(exception.getDescription()), 300)};
}

/// Sends a call that returns a status.
template <class Request>
kj::Promise<Status> acknowledged(Request&& request) {
  return request.send().then([](auto&& answer) { return wire::readStatus(answer.getStatus()); },
                             [](kj::Exception&& exception) { return broken(exception); });
}

/// Sends a call that returns the follower's progress.
template <class Request>
kj::Promise<Result<uint64_t>> heldBy(Request&& request) {
  return request.send().then(
      [](auto&& answer) -> Result<uint64_t> {
        if (answer.isError()) return wire::readError(answer.getError());
        return answer.getHeld();
      },
      [](kj::Exception&& exception) -> Result<uint64_t> { return broken(exception).error(); });
}

}  // namespace

kj::Promise<Status> SinkLink::image(ImagePart part) {
  auto request = sink_.imageRequest();
  request.setPath(part.path.c_str());
  request.setRenamedTo(part.renamedTo.c_str());
  auto bytes = request.initBytes(part.bytes.size());
  if (!part.bytes.empty()) std::memcpy(bytes.begin(), part.bytes.data(), part.bytes.size());
  return acknowledged(kj::mv(request));
}

kj::Promise<Status> SinkLink::imageDone(const std::string& path) {
  auto request = sink_.imageDoneRequest();
  request.setPath(path.c_str());
  return acknowledged(kj::mv(request));
}

kj::Promise<Result<uint64_t>> SinkLink::records(std::span<const std::byte> records,
                                                std::shared_ptr<const void> owner) {
  auto request = sink_.recordsRequest(capnp::MessageSize{8, 0});
  connection_->pin(records.data(), std::move(owner));
  request.adoptBytes(
      wire::referenceBytes(static_cast<schema::ReplicaSink::RecordsParams::Builder&>(request), records));
  return heldBy(kj::mv(request));
}

kj::Promise<Result<uint64_t>> SinkLink::beat() { return heldBy(sink_.heartbeatRequest()); }

kj::Promise<Status> SinkLink::documentChanged() {
  return acknowledged(sink_.clusterDocumentChangedRequest());
}

kj::Promise<Status> SinkLink::runEnded(const std::string& reason) {
  auto request = sink_.runEndedRequest();
  request.setReason(reason.c_str());
  return acknowledged(kj::mv(request));
}

}  // namespace psd
