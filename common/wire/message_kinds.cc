// The side of MessageStream that looks at what kind of an RPC message it hands over.

#include <iterator>

#include "common/wire/message_stream.h"

namespace psd::wire {
namespace {

using capnp::word;

// Most capabilities in a message from a peer. None are wanted: the RPC system keeps account of each, and
// answers.
constexpr uint64_t kCapabilitiesMax = 16;

}  // namespace

void MessageStream::checkKind(capnp::MessageReader& message) {
  using Kind = capnp::rpc::Message::Which;
  if (options_.unfinishedCallsMax == UINT64_MAX) return;
  auto kind = Kind::UNIMPLEMENTED;
  uint64_t capabilities = 0;
  // A message with a broken encoding throws here. The RPC system says so of its own accord.
  static_cast<void>(kj::runCatchingExceptions([&] {
    const auto root = message.getRoot<capnp::rpc::Message>();
    kind = root.which();
    if (kind == Kind::CALL) capabilities = root.getCall().getParams().getCapTable().size();
    if (kind == Kind::RETURN && root.getReturn().isResults()) {
      capabilities = root.getReturn().getResults().getCapTable().size();
    }
  }));
  if (capabilities > kCapabilitiesMax) {
    refuse(kj::str("a message with ", capabilities, " capabilities; nobody here takes any"));
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
      refuse(kj::str("more than ", options_.unfinishedCallsMax,
                     " calls that it has not finished (limits.calls)"));
    default: refuse("a message that is none of Cap'n Proto's RPC between two parties");
  }
}

bool MessageStream::aborted() const {
  const kj::ArrayPtr<const word> segment(newest_, std::size(newest_));
  bool abort = false;
  // A message with a broken encoding throws, and is no abort.
  static_cast<void>(kj::runCatchingExceptions([&] {
    capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1));
    abort = reader.getRoot<capnp::rpc::Message>().isAbort();
  }));
  return abort;
}

}  // namespace psd::wire
