// The part of MessageStream that inspects the kind of each incoming RPC message.

#include <iterator>

#include "common/wire/message_stream.h"

namespace psd::wire {
namespace {

using capnp::word;

// Most capabilities in a message from a peer. psd expects none: the RPC system tracks and answers each one.
constexpr uint64_t kCapabilitiesMax = 16;

}  // namespace

void MessageStream::checkKind(capnp::MessageReader& message) {
  using Kind = capnp::rpc::Message::Which;
  if (options_.unfinishedCallsMax == UINT64_MAX) return;
  auto kind = Kind::UNIMPLEMENTED;
  uint64_t capabilities = 0;
  // A message with a broken encoding throws here. The RPC system reports it itself.
  static_cast<void>(kj::runCatchingExceptions([&] {
    const auto root = message.getRoot<capnp::rpc::Message>();
    kind = root.which();
    if (kind == Kind::CALL) capabilities = root.getCall().getParams().getCapTable().size();
    if (kind == Kind::RETURN && root.getReturn().isResults()) {
      capabilities = root.getReturn().getResults().getCapTable().size();
    }
  }));
  if (capabilities > kCapabilitiesMax) {
    refuse(kj::str("a message with ", capabilities, " capabilities, which psd does not accept"));
  }
  switch (kind) {
    case Kind::UNIMPLEMENTED:
    case Kind::ABORT:
    case Kind::RETURN:
    case Kind::RESOLVE:
    case Kind::RELEASE:
    case Kind::DISEMBARGO: return;
    case Kind::FINISH:
      if (unfinishedCalls_ > 0) unfinishedCalls_--;
      return;
    case Kind::CALL:
    case Kind::BOOTSTRAP:
      if (++unfinishedCalls_ <= options_.unfinishedCallsMax) return;
      refuse(kj::str("more than ", options_.unfinishedCallsMax, " unfinished calls (limits.calls)"));
    default: refuse("a message of a kind that is not part of Cap'n Proto's two-party RPC");
  }
}

bool MessageStream::aborted() const {
  const kj::ArrayPtr<const word> segment(newest_, std::size(newest_));
  bool abort = false;
  // A message with a broken encoding throws and is not an abort.
  static_cast<void>(kj::runCatchingExceptions([&] {
    capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1));
    abort = reader.getRoot<capnp::rpc::Message>().isAbort();
  }));
  return abort;
}

}  // namespace psd::wire
