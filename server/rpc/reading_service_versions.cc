// The calls of ReadingService for published versions.

#include <algorithm>

#include "common/wire/convert.h"
#include "server/rpc/reading_service.h"
#include "server/rpc/version_answer.h"

namespace psd {
namespace {

constexpr uint64_t kVersionBytes = 256;  // of one entry in an answer

struct ReadBytes {
  std::shared_ptr<std::vector<std::byte>> bytes;  // with 7 bytes to spare, as referenceBytes() requires
  uint64_t count = 0;
};

Result<ReadBytes> readBytes(const OpenVersion& version, uint64_t offset, uint64_t count) {
  ReadBytes read{std::make_shared<std::vector<std::byte>>(count + 7), count};
  PSD_RETURN_IF_ERROR(version.file->read(offset, std::span(*read.bytes).first(count)));
  return read;
}

}  // namespace

kj::Promise<void> ReadingService::versions(VersionsContext context) {
  context.releaseParams();
  const auto store = administration_.versions();
  auto refuse = [context](const Error& error) mutable {
    wire::writeError(error, context.getResults().initError());
  };
  if (!store.ok()) {
    refuse(store.error());
    return kj::READY_NOW;
  }
  auto versions = store->get().versions();
  const uint64_t bytes = versions.size() * kVersionBytes;
  auto make = [context, versions = std::move(versions)]() mutable {
    auto out = context.getResults().initVersions(static_cast<kj::uint>(versions.size()));
    for (kj::uint i = 0; i < out.size(); i++) writeVersion(versions[i], out[i]);
  };
  return connection_->answerWithin(bytes, std::move(make), std::move(refuse));
}

kj::Promise<void> ReadingService::published(PublishedContext context) {
  const uint64_t number = context.getParams().getNumber();
  context.releaseParams();
  context.allowCancellation();
  const auto store = administration_.versions();
  if (!store.ok()) {
    wire::writeError(store.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  if (waitsForVersion_) return KJ_EXCEPTION(OVERLOADED, "this connection already waits for a version");
  waitsForVersion_ = true;
  return connection_->parked(store->get().whenPublished(number))
      .then([context](Result<VersionInfo> version) mutable { writeVersion(version, context.getResults()); })
      .attach(kj::defer([this] { waitsForVersion_ = false; }));
}

kj::Promise<void> ReadingService::leaseVersion(LeaseVersionContext context) {
  const auto params = context.getParams();
  const uint64_t id = params.getLease(), number = params.getNumber();
  const std::chrono::seconds time(params.getSeconds());
  context.releaseParams();
  const auto store = administration_.versions();
  if (!store.ok()) {
    wire::writeError(store.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  const auto lease = [&versions = store->get(), id, number, time,
                      reader = connection_->caller().described()]() -> Result<VersionInfo> {
    PSD_ASSIGN_OR_RETURN(const VersionStore::Lease granted, versions.lease(id, number, time, reader));
    PSD_ASSIGN_OR_RETURN(const auto version, versions.find(granted.number));
    return version->info;
  };
  return background_.tryRun<Result<VersionInfo>>(lease).then(
      [context](Result<VersionInfo> version) mutable { writeVersion(version, context.getResults()); });
}

kj::Promise<void> ReadingService::releaseVersion(ReleaseVersionContext context) {
  const uint64_t id = context.getParams().getLease();
  context.releaseParams();
  if (const auto store = administration_.versions(); store.ok()) store->get().release(id);
  return kj::READY_NOW;
}

kj::Promise<void> ReadingService::readVersion(ReadVersionContext context) {
  const auto params = context.getParams();
  const uint64_t number = params.getNumber(), offset = params.getOffset();
  const uint64_t count =
      std::min<uint64_t>(params.getCount(), connection_->loop().config().limits.sliceBytes);
  context.releaseParams();
  auto refuse = [context](const Error& error) mutable {
    wire::writeError(error, context.getResults().initError());
  };
  const auto find = [&]() -> Result<std::shared_ptr<const OpenVersion>> {
    PSD_ASSIGN_OR_RETURN(const auto store, administration_.versions());
    PSD_ASSIGN_OR_RETURN(auto version, store.get().find(number));
    const uint64_t size = version->info.bytes;
    if (count == 0 || offset > size || count > size - offset) {
      return Error{ErrorCode::badSlice, "no such bytes in the file of the version"};
    }
    return version;
  };
  auto found = find();
  if (!found.ok()) {
    refuse(found.error());
    return kj::READY_NOW;
  }
  auto make = [this, context, version = *std::move(found), offset, count]() mutable {
    return background_
        .tryRun<Result<ReadBytes>>([version, offset, count] { return readBytes(*version, offset, count); })
        .then([this, context](Result<ReadBytes> read) mutable {
          if (!read.ok()) return wire::writeError(read.error(), context.getResults().initError());
          const std::span<const std::byte> bytes(read->bytes->data(), read->count);
          connection_->pin(bytes.data(), std::move(read->bytes));
          auto results = context.getResults(capnp::MessageSize{8, 0});
          results.adoptBytes(wire::referenceBytes(results, bytes));
        });
  };
  return connection_->answerWithin(count, std::move(make), std::move(refuse));
}

}  // namespace psd
