#pragma once

#include <memory>
#include <utility>

#include "schema/psd.capnp.h"
#include "server/replica/follower_link.h"
#include "server/rpc/connection.h"

namespace psd {

/// A follower at the peer of a connection. Belongs to the connection's loop.
class SinkLink final : public FollowerLink {
 public:
  SinkLink(schema::ReplicaSink::Client sink, std::shared_ptr<Connection> connection)
      : sink_(kj::mv(sink)), connection_(std::move(connection)) {}
  ~SinkLink() noexcept override {}

  kj::Promise<Status> image(ImagePart part) override;
  kj::Promise<Status> imageDone(const std::string& path) override;
  kj::Promise<Result<uint64_t>> records(std::span<const std::byte> bytes,
                                        std::shared_ptr<const void> owner) override;
  kj::Promise<Result<uint64_t>> beat() override;
  kj::Promise<Status> documentChanged() override;
  kj::Promise<Status> runEnded(const std::string& reason) override;

 private:
  schema::ReplicaSink::Client sink_;
  const std::shared_ptr<Connection> connection_;  // to the peer
};

}  // namespace psd
