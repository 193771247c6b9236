#include "common/wire/client_rpc.h"

#include <utility>

#include <capnp/message.h>

namespace psd::wire {
namespace {

using capnp::rpc::twoparty::Side;

constexpr size_t kPooledBytesMax = 16u << 20;

MessageStreamOptions with(MessageStreamOptions options, kj::AsyncCapabilityStream* descriptors) {
  options.descriptors = descriptors;
  return options;
}

}  // namespace

ClientRpc::ClientRpc(Socket socket, kj::Timer& timer, MessageStreamOptions options, uint32_t descriptorsMax,
                     capnp::ReaderOptions reading)
    : socket_(kj::mv(socket.stream)),
      stream_(*socket_, BufferPool::make(kPooledBytesMax), timer,
              with(std::move(options), socket.descriptors)),
      network_(stream_, descriptorsMax, Side::CLIENT, reading),
      rpc_(capnp::makeRpcClient(network_)) {}

capnp::Capability::Client ClientRpc::bootstrap() {
  capnp::MallocMessageBuilder vat;
  auto id = vat.initRoot<capnp::rpc::twoparty::VatId>();
  id.setSide(Side::SERVER);
  return rpc_.bootstrap(id);
}

}  // namespace psd::wire
