#pragma once

#include "schema/psd.capnp.h"
#include "server/replica/follower_link.h"

namespace psd {

/// A follower at the peer of a connection. Belongs to the connection's loop.
class SinkLink final : public FollowerLink {
 public:
  explicit SinkLink(schema::ReplicaSink::Client sink) : sink_(kj::mv(sink)) {}
  ~SinkLink() noexcept override {}

  kj::Promise<Status> image(ImagePart part) override;
  kj::Promise<Status> imageDone(const std::string& path) override;
  kj::Promise<Result<uint64_t>> records(std::span<const std::byte> bytes) override;
  kj::Promise<Result<uint64_t>> beat() override;
  kj::Promise<Status> documentChanged() override;
  kj::Promise<Status> runEnded(const std::string& reason) override;

 private:
  schema::ReplicaSink::Client sink_;
};

}  // namespace psd
