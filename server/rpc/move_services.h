#pragma once

#include <functional>
#include <memory>
#include <string>

#include "schema/psd.capnp.h"
#include "server/rpc/counted_service.h"
#include "server/service/administration.h"

namespace psd {

void writeTerms(const MoveTerms& terms, schema::MoveTerms::Builder out);
/// ErrorCode::invalidArgument if there are more addresses than a daemon may have.
Result<MoveTerms> readTerms(schema::MoveTerms::Reader in);

/// Sends what `write(stream)` writes on another thread to a sink, which then receives the path that it
/// resolves with; an empty one: nothing was written. `connection`: to the sink, on whose loop this is called.
kj::Promise<Status> sendImage(
    schema::ReplicaSink::Client sink, std::shared_ptr<Connection> connection,
    const std::function<kj::Promise<Result<std::string>>(std::shared_ptr<ImageStream> stream)>& write);

/// Calls by which an operator's command moves the model away from this daemon. If it is dropped, trainers
/// continue here. Belongs to the connection's loop.
class LeavingService final : public CountedService<schema::LeavingModel> {
 public:
  /// `administration` outlives it.
  LeavingService(std::shared_ptr<Connection> connection, Administration& administration, uint64_t move)
      : CountedService(std::move(connection)), administration_(administration), move_(move) {}
  ~LeavingService() noexcept(false);

 protected:
  kj::Promise<void> quiesced(QuiescedContext context) override;
  kj::Promise<void> give(GiveContext context) override;
  kj::Promise<void> commit(CommitContext context) override;
  kj::Promise<void> heartbeat(HeartbeatContext context) override;

 private:
  Administration& administration_;
  const uint64_t move_;
};

/// Calls by which an operator's command moves a model to this daemon. If it is dropped, what is not yet
/// installed is discarded. Belongs to the connection's loop.
class ArrivingService final : public CountedService<schema::ArrivingModel> {
 public:
  /// `administration` outlives it.
  ArrivingService(std::shared_ptr<Connection> connection, Administration& administration, uint64_t move)
      : CountedService(std::move(connection)), administration_(administration), move_(move) {}
  ~ArrivingService() noexcept(false);

 protected:
  kj::Promise<void> sink(SinkContext context) override;
  kj::Promise<void> install(InstallContext context) override;
  kj::Promise<void> commit(CommitContext context) override;
  kj::Promise<void> check(CheckContext context) override;
  kj::Promise<void> giveUp(GiveUpContext context) override;
  kj::Promise<void> heartbeat(HeartbeatContext context) override;
  kj::Promise<void> versionSink(VersionSinkContext context) override;

 private:
  Administration& administration_;
  const uint64_t move_;
};

}  // namespace psd
